"""Programs that the tests share."""

from pathlib import Path

LISTING = (Path(__file__).parents[2] / "examples" / "synth" / "listing1.gnn").read_text(encoding="utf-8")
"""Listing 1 of the paper, as printed."""


def program(
    model: str = "GCN",
    aggregation: str = "Sum",
    *,
    before: str = "",
    after_layer: str = "",
    after_epoch: str = "",
    optimizer: str = '"adam", 0.01',
    initialiser: str = "xavier",
) -> str:
    """A program of any kind, with more statements where they are wanted."""
    return f"""\
function Train(Graph g, GNN gnn, container<int>& layers, String dataset) {{
  gnn.load(g, dataset);
  gnn.initializeLayers(layers, "{initialiser}");
  {before}
  for (int epoch = 0; epoch < totalEpoch; epoch++) {{
    for (int l = 0; l < gnn.getLayers(); l++) {{
      gnn.forwardPass(l, "{model}", "{aggregation}");
      {after_layer}
    }}
    for (int l = gnn.getLayers() - 1; l >= 0; l--) {{
      gnn.backPropagation(l);
    }}
    gnn.optimizer({optimizer});
    {after_epoch}
  }}
}}
"""
