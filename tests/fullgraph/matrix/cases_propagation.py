"""Layers that propagate, PyG's ready models, arithmetic between matrices and what joins them."""

from itertools import cycle

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import BASES, GCN, SAGE, Case, layer, left, partly
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES
from tests.fullgraph.matrix.models import HIDDEN, Stack, Weighted, calls, functional
from torch import nn

_LAYERS = {
    "GraphConv": [{}, {"aggr": "mean"}, {"bias": False}],
    "SGConv": [{}, {"K": 3}, {"K": 2, "add_self_loops": False, "bias": False}],
    "SSGConv": [{"alpha": 0.1}, {"alpha": 0.5, "K": 3}, {"alpha": 0.0, "K": 2, "bias": False}],
    "TAGConv": [{}, {"K": 1}, {"normalize": False, "K": 2, "bias": False}],
    "ChebConv": [{"K": k} for k in (1, 2, 5)] + [{"K": 3, "normalization": n} for n in ("rw", None)],
    "ARMAConv": [
        {},
        {"num_stacks": 2, "num_layers": 2},
        {"num_layers": 3, "shared_weights": True, "act": None},
    ],
}
_UNWEIGHTED = {
    "MixHopConv": lambda i, o: pyg.MixHopConv(i, o // 2, powers=[0, 2]),
    "MixHopConv of powers in another order": lambda i, o: pyg.MixHopConv(
        i, o // 2, powers=[3, 1], add_self_loops=False, bias=False
    ),
    "GraphConv, max": layer(pyg.GraphConv, aggr="max"),
    "GINConv of PyG's MLP": lambda i, o: pyg.GINConv(pyg.MLP([i, HIDDEN, o])),
    "GINConv of an MLP without norm": lambda i, o: pyg.GINConv(pyg.MLP([i, o], norm=None, plain_last=False)),
}


def _words(options):
    return ", ".join(f"{key}={value!r}" for key, value in options.items()) or "plain"


def _layers(part, make):
    return [
        Case(f"{name}{part}", f"{_words(o)}, hidden {hidden}", lambda n=name, o=o, h=hidden: make(n, o, h))
        for name, many in _LAYERS.items()
        for hidden, o in zip(cycle((HIDDEN, 4)), many)
    ]


def propagating(**options):
    class Propagating(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = pyg.MLP([CHANNELS, HIDDEN, CLASSES], norm=None)
            self.propagate = pyg.APPNP(**{"K": 3, "alpha": 0.1} | options)

        def forward(self, x, edge_index):
            return self.propagate(self.mlp(x), edge_index).log_softmax(dim=-1)

    return Propagating


def _initial(**options):
    class Initial(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(CHANNELS, HIDDEN), nn.Linear(HIDDEN, CLASSES)
            kept = {"alpha": 0.2, "theta": 0.5} | options
            self.convs = nn.ModuleList(pyg.GCN2Conv(HIDDEN, layer=i + 1, **kept) for i in range(2))

        def forward(self, x, edge_index):
            x = first = self.first(x).relu()
            for conv in self.convs:
                x = conv(x, first, edge_index).relu()
            return self.last(x)

    return Initial


_READY = {
    "GCN": [
        {},
        {"num_layers": 1},
        {"jk": "cat", "num_layers": 3},
        {"jk": "max", "act": "tanh"},
        {"jk": "last", "norm": "batch_norm"},
        {"act": "gelu", "act_first": True, "norm": "layer_norm"},
        {"act": None, "out_channels": None},
        {"act": "PReLU", "normalize": False},
    ],
    "GraphSAGE": [{}, {"jk": "cat", "aggr": "max"}, {"act": "silu", "project": True}, {"normalize": True}],
    "GAT": [{}, {"heads": 2, "jk": "max"}, {"v2": True, "heads": 2, "act": "elu"}, {"act": "sigmoid"}],
    "GIN": [{}, {"norm": "batch_norm"}, {"jk": "cat", "train_eps": True, "act": "leaky_relu"}],
}


def ready(name, options):
    given = {"num_layers": 2, "out_channels": CLASSES} | options
    return getattr(pyg.models, name)(CHANNELS, HIDDEN, **given)


def _joined(join, width):
    """A head over what three layers gave, joined."""

    def run(self, x, edge_index):
        a = self.first(x, edge_index).relu()
        b = self.second(a, edge_index).relu()
        return self.out(join(self, [a, b, self.skip(x)]))

    return lambda: calls(run)(SAGE, out=nn.Linear(width, CLASSES), jump=None, cat=pyg.JumpingKnowledge("cat"))


_JOINS = {
    "torch.cat(dim=1)": (lambda self, xs: torch.cat(xs, dim=1), 3 * HIDDEN),
    "torch.cat(dim=-1), then tanh": (lambda self, xs: torch.cat(xs, -1).tanh(), 3 * HIDDEN),
    "torch.concat of one twice": (lambda self, xs: torch.concat([xs[0], xs[1], xs[0]], dim=1), 3 * HIDDEN),
    "JumpingKnowledge('cat')": (lambda self, xs: self.cat(xs), 3 * HIDDEN),
}
_FUNCTIONS = {
    "0.5 * x": lambda x: 0.5 * x,
    "x * 2 - x.relu()": lambda x: x * 2 - x.relu(),
    "-x / 3": lambda x: -x / 3,
    "torch.add(x, y, alpha=-0.5)": lambda x: torch.add(x, x.relu(), alpha=-0.5),
    "torch.sub(x, y, alpha=2)": lambda x: torch.sub(x, x.tanh(), alpha=2),
    "x *= 0.5": lambda x: x.mul_(0.5),
    "x - x": lambda x: x - x + x.sigmoid(),
    "torch.tanh": torch.tanh,
    "torch.sigmoid": torch.sigmoid,
    "F.gelu(approximate='tanh')": lambda x: F.gelu(x, approximate="tanh"),
    "F.silu": F.silu,
    "F.selu": F.selu,
    "F.celu(x, 0.5)": lambda x: F.celu(x, 0.5),
    "F.softplus(x, beta=2)": lambda x: F.softplus(x, beta=2),
    "F.hardtanh(x, -0.3, 0.3)": lambda x: F.hardtanh(x, -0.3, 0.3),
    "F.relu6": F.relu6,
    "F.softmax(x, dim=1)": lambda x: F.softmax(x, dim=1),
    "x.log_softmax(-1)": lambda x: x.log_softmax(-1),
}
_MODULES = {
    "PReLU": nn.PReLU,
    "PReLU(channels)": lambda: nn.PReLU(HIDDEN),
    "SELU": nn.SELU,
    "CELU(0.5)": lambda: nn.CELU(0.5),
    "GELU('tanh')": lambda: nn.GELU("tanh"),
    "Softmax(dim=-1)": lambda: nn.Softmax(dim=-1),
    "LogSoftmax(dim=1)": lambda: nn.LogSoftmax(dim=1),
    "PyG's MLP": lambda: pyg.MLP([HIDDEN, 5, HIDDEN], act="elu", act_first=True),
}
_LEFT = {"F.softmax(x, dim=0)": lambda x: F.softmax(x, dim=0)}


def light(self, x, edge_index, edge_weight=None):
    x = self.first(x, edge_index)
    return self.head(x + self.own(self.own(x, edge_index, edge_weight), edge_index, edge_weight))


PROPAGATION = [
    Case("LGConv", "plain", lambda: calls(light)(GCN, own=pyg.LGConv())),
    Case("LGConv", "normalize=False", lambda: calls(light)(SAGE, own=pyg.LGConv(normalize=False))),
    *_layers("", lambda name, o, hidden: Stack(layer(getattr(pyg, name), **o), hidden=hidden)),
    *_layers(
        " with edge_weight", lambda name, o, hidden: Weighted(layer(getattr(pyg, name), **o), hidden=hidden)
    ),
    *(Case("propagating layers", name, lambda m=make: Stack(m)) for name, make in _UNWEIGHTED.items()),
    *(
        Case("APPNP", _words(o), propagating(**o))
        for o in ({}, {"normalize": False}, {"add_self_loops": False, "cached": True}, {"alpha": 1.0})
    ),
    *(
        Case("GCN2Conv", _words(o), _initial(**o))
        for o in ({}, {"shared_weights": False}, {"normalize": False, "alpha": 0.0})
    ),
    *(
        Case(f"PyG's ready {name}", _words(o), lambda n=name, o=o: ready(n, o))
        for name, many in _READY.items()
        for o in many
    ),
    *(Case("joined", name, _joined(*join)) for name, join in _JOINS.items()),
    *(
        Case("arithmetic and activations", name, lambda c=call, b=base: functional(c)(b))
        for (name, call), base in zip(_FUNCTIONS.items(), cycle(BASES.values()))
    ),
    *(Case("between layers", name, lambda m=make: Stack(SAGE, m())) for name, make in _MODULES.items()),
    *(
        partly("arithmetic and activations", name, lambda c=call: functional(c)(GCN))
        for name, call in _LEFT.items()
    ),
    partly("PyG's ready GCN", "jk='lstm'", lambda: ready("GCN", {"jk": "lstm"}), "lstm"),
    left("SGConv", "cached=True, second layer", lambda: Stack(layer(pyg.SGConv, cached=True)), "cached"),
    partly("TAGConv", "aggr='max'", lambda: Stack(layer(pyg.TAGConv, aggr="max")), "linear"),
]
