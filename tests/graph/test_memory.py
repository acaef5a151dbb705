"""Peak memory of building and editing a graph, measured in a process of its own."""

import sys

import pytest
from tests.kernels import needs_kernels
from tests.peaks import least_peak, printed

NUM_EDGES = 4_000_000

# Prints the peak of resident memory over what the process held before it made the input, as a multiple of the
# bytes of the larger of input and result as an int64 edge list.
MEASURE = """
import sys
from pathlib import Path
import torch
from graphbraid.graph import Graph
from tests.peaks import held

operation, num_edges = sys.argv[1], int(sys.argv[2])
num_nodes = num_edges // 20
Graph.from_edge_index(torch.randint(100, (2, 10_000)), 100).symmetrized()  # loads the kernels

def edges():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(num_nodes, (2, num_edges), generator=generator)

OPERATIONS = {
    "from_edge_index": lambda source: Graph.from_edge_index(source, num_nodes),
    "from_edge_index, no ids": lambda source: Graph.from_edge_index(source, num_nodes, keep_edge_id=False),
    "symmetrized": lambda source: source.symmetrized(),
    "symmetrized again": lambda source: source.symmetrized(),
    "without_duplicates": lambda source: source.without_duplicates(),
    "with_self_loops": lambda source: source.with_self_loops(),
    "without_self_loops": lambda source: source.without_self_loops(),
    "validate": lambda source: source.validate(),
}
before = held("VmRSS")
source = edges()
if not operation.startswith("from_edge_index"):
    source = Graph.from_edge_index(source, num_nodes)
if operation == "symmetrized again":
    source = source.symmetrized()
Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
result = OPERATIONS[operation](source)
largest = max(result.num_edges, num_edges if isinstance(source, torch.Tensor) else source.num_edges)
print((held("VmHWM") - before) / (16 * largest))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, whose /proc it reads")
@pytest.mark.parametrize(
    ("operation", "bound"),
    [
        ("from_edge_index", 2.5),  # 1 (input) + 0.75 (result with ids) + 0.5 (between the passes)
        pytest.param("from_edge_index, no ids", 1.75, marks=pytest.mark.slow),  # 1 + 0.25 + 0.25
        pytest.param(
            "symmetrized", 2.5, marks=pytest.mark.slow
        ),  # 0.75 + 1.5 (result) + 0.5 (transpose) over twice the edges
        pytest.param("symmetrized again", 2.5, marks=pytest.mark.slow),  # 0.75 + 0.75 + 0.5
        pytest.param("without_duplicates", 2, marks=pytest.mark.slow),
        pytest.param("with_self_loops", 2, marks=pytest.mark.slow),
        pytest.param("without_self_loops", 2, marks=pytest.mark.slow),
        pytest.param("validate", 1, marks=pytest.mark.slow),
    ],
)
@needs_kernels
def test_peak_memory_stays_below_a_multiple_of_the_edges(operation, bound):
    assert least_peak(lambda: printed(MEASURE, operation, NUM_EDGES), bound) <= bound
