"""The matrix's cases: every way to write a model that is known here.

Add a case to the list of its file, or a file with a list of its own to ``CASES``. The page of lowered
models is made from them.
"""

from tests.fullgraph.matrix.cases_edges import EDGES
from tests.fullgraph.matrix.cases_forwards import FORWARDS
from tests.fullgraph.matrix.cases_instances import INSTANCES
from tests.fullgraph.matrix.cases_layers import LAYERS
from tests.fullgraph.matrix.cases_messages import MESSAGES
from tests.fullgraph.matrix.cases_modes import MODES
from tests.fullgraph.matrix.cases_operands import OPERANDS
from tests.fullgraph.matrix.cases_pairs import PAIRS
from tests.fullgraph.matrix.cases_propagation import PROPAGATION
from tests.fullgraph.matrix.cases_relations import RELATIONAL
from tests.fullgraph.matrix.cases_rowwise import FUNCTIONS, ROWWISE
from tests.fullgraph.matrix.cases_traced import TRACED

CASES = [
    *LAYERS,
    *ROWWISE,
    *FUNCTIONS,
    *FORWARDS,
    *INSTANCES,
    *MODES,
    *PROPAGATION,
    *EDGES,
    *RELATIONAL,
    *PAIRS,
    *MESSAGES,
    *TRACED,
    *OPERANDS,
]
