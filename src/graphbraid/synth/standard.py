"""Standard programs: one for each kind of model, for those who need no program of their own."""

from __future__ import annotations

from graphbraid.arguments import check_choice
from graphbraid.signatures import typed
from graphbraid.synth.language.syntax import Function
from graphbraid.synth.language.words import MODELS, USUAL
from graphbraid.synth.reading import parse_program

_TEXT = """\
function {kind}(Graph g, GNN gnn, container<int>& layers, String dataset) {{
  gnn.load(g, dataset);
  gnn.initializeLayers(layers, "xavier");
  for (int epoch = 0; epoch < totalEpoch; epoch++) {{
    for (int l = 0; l < gnn.getLayers(); l++) {{
      gnn.forwardPass(l, "{kind}", "{aggregation}");
    }}
    for (int l = gnn.getLayers() - 1; l >= 0; l--) {{
      gnn.backPropagation(l);
    }}
    gnn.optimizer("adam", 0.01);
  }}
}}
"""


@typed
def standard_program(model: str) -> Function:
    """Return the program that trains a kind of model by Adam, without dropout; its ``text`` shows it.

    Args:
        model: ``gcn``, ``sage``, ``gin`` or ``gat``.

    Raises:
        ConfigError: there is no such model.
    """
    check_choice(model, "model", [kind.lower() for kind in MODELS])
    kind = model.upper()
    return parse_program(_TEXT.format(kind=kind, aggregation=USUAL[kind]), source=model)


__all__ = ["standard_program"]
