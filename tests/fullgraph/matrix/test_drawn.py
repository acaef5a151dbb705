"""Stacks drawn by hypothesis: any layers, options, parts between them, shapes of residuals and modes."""

import copy

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.beside_pyg import pyg
from tests.fullgraph.matrix.cases_edges import FEATURES, with_features
from tests.fullgraph.matrix.compare import LOWERED, assert_alike, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.suites import examples
from torch import nn

LAYERS = {
    "gcn": (pyg.GCNConv, {"bias": (True, False), "add_self_loops": (True, False), "cached": (True, False)}),
    "sage": (
        pyg.SAGEConv,
        {
            "aggr": ("mean", "max", "sum"),
            "root_weight": (True, False),
            "project": (True, False),
            "normalize": (True, False),
            "bias": (True, False),
        },
    ),
    "gat": (
        pyg.GATConv,
        {"heads": (1, 3), "residual": (True, False), "add_self_loops": (True, False), "bias": (True, False)},
    ),
    "gat edges": (
        pyg.GATConv,
        {
            "heads": (1, 3),
            "residual": (True, False),
            "add_self_loops": (True, False),
            "fill_value": ("mean", "max", "add", 0.3),
        },
    ),
    "gatv2": (pyg.GATv2Conv, {"heads": (1, 2), "share_weights": (True, False), "residual": (True, False)}),
    "gatv2 edges": (
        pyg.GATv2Conv,
        {
            "heads": (1, 3),
            "share_weights": (True, False),
            "residual": (True, False),
            "add_self_loops": (True, False),
            "fill_value": ("mean", "max", "add", 0.3),
        },
    ),
    "gin": (None, {"eps": (0.0, 0.4), "train_eps": (True, False)}),
    "gine": (None, {"eps": (0.0, 0.4), "train_eps": (True, False)}),
}
PARTS = {
    "relu": lambda _: nn.ReLU(),
    "relu in place": lambda _: nn.ReLU(inplace=True),
    "elu": lambda _: nn.ELU(),
    "tanh": lambda _: nn.Tanh(),
    "linear": lambda width: nn.Linear(width, width),
    "layer norm": nn.LayerNorm,
    "batch norm": nn.BatchNorm1d,
    "dropout": lambda _: nn.Dropout(0.5),
    "identity": lambda _: nn.Identity(),
}


class Drawn(nn.Module):
    """Layers of one width, parts after each, and sums of what came before."""

    def __init__(self, layers, parts, sums, width):
        super().__init__()
        self.inlet, self.head = nn.Linear(CHANNELS, width), nn.Linear(width, CLASSES)
        self.layers = nn.ModuleList(_made(kind, options, width) for kind, options in layers)
        self.parts = nn.ModuleList(nn.Sequential(*(PARTS[p](width) for p in some)) for some in parts)
        self.sums = sums

    def forward(self, x, edge_index, edge_attr):
        seen = [self.inlet(x)]
        for i, (layer, parts) in enumerate(zip(self.layers, self.parts, strict=True)):
            features = (
                (edge_attr,) if getattr(layer, "edge_dim", None) or isinstance(layer, pyg.GINEConv) else ()
            )
            h = parts(layer(seen[-1], edge_index, *features))
            if self.sums[i] == "own":
                h = h + seen[-1]
            elif self.sums[i] == "first":
                h += seen[0]
            seen.append(h)
        return self.head(seen[-1])


def _made(kind, options, width):
    if kind == "gin":
        return pyg.GINConv(nn.Sequential(nn.Linear(width, width), nn.ReLU()), **options)
    if kind == "gine":
        network = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        return pyg.GINEConv(network, edge_dim=FEATURES, **options)
    extra = {"concat": False} if kind.startswith("gat") else {}
    extra |= {"edge_dim": FEATURES} if kind.endswith("edges") else {}
    return LAYERS[kind][0](width, width, **options, **extra)


@st.composite
def stacks(draw):
    """The arguments of :class:`Drawn`, and which modules are in evaluation."""
    count = draw(st.integers(1, 3))
    layers = []
    for _ in range(count):
        kind = draw(st.sampled_from(sorted(LAYERS)))
        options = {key: draw(st.sampled_from(values)) for key, values in LAYERS[kind][1].items()}
        layers.append((kind, options))
    parts = [draw(st.lists(st.sampled_from(sorted(PARTS)), max_size=3)) for _ in range(count)]
    sums = [draw(st.sampled_from(["none", "own", "first"])) for _ in range(count)]
    return layers, parts, sums, draw(st.sampled_from([5, 8])), draw(st.booleans())


def runs_backward(model, data):
    """Whether PyTorch itself has a backward pass: not where ``+=`` writes over what one would read."""
    try:
        model(data.x.double(), data.edge_index, data.edge_attr.double()).sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return False
    return True


@settings(max_examples=examples(25))
@given(stack=stacks(), graph=st.sampled_from(["untidy", "directed", "undirected"]), seed=st.integers(0, 9))
def test_any_stack_equals_pyg(stack, graph, seed):
    *arguments, trains = stack
    data, models = with_features()(data_of(graph)), []
    for _ in range(2):
        torch.manual_seed(seed)
        models.append(Drawn(*arguments).train(trains))
        for module in models[-1].modules():
            if isinstance(module, nn.Dropout):
                module.eval()
    model, twin = models
    assume(runs_backward(copy.deepcopy(twin).double(), data))
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED, engine.explain()
    assert_alike(model, twin, data, engine, steps=2, rtol=1e-3, atol=1e-4)
