"""Message passing layers of a user's own: messages that work row by row, and others."""

import copy
from itertools import count

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import Case, layer, left, partly
from tests.fullgraph.matrix.cases_edges import FEATURED, FEATURES, Featured
from tests.fullgraph.matrix.models import Stack, Weighted
from torch import nn
from torch_geometric.utils import scatter, softmax


class Own(pyg.MessagePassing):
    """A linear map, the messages of a subclass, and the nodes' own rows."""

    def __init__(self, i, o, **options):
        super().__init__(**options)
        self.lin, self.own = nn.Linear(i, o), nn.Linear(i, o)
        self.mlp = nn.Sequential(nn.Linear(2 * o, o), nn.ReLU(inplace=True), nn.Linear(o, o), nn.LayerNorm(o))
        self.att = nn.Parameter(torch.linspace(-1, 1, o).view(1, o))
        self.edge, self.slope, self.kept = nn.Linear(FEATURES, o), 0.1, None

    def forward(self, x, edge_index):
        return self.own(x) + self.propagate(edge_index, x=self.lin(x))


_NUMBERS = count()


def own(message, **options):
    """A maker of layers with this message; each has its own aggregation, which ``double()`` may change."""
    kind = _made(message=message)
    return lambda i, o: kind(i, o, **copy.deepcopy(options))


def _made(**members):
    for name, member in members.items():
        member.__name__ = name  # by which PyG finds its signature
    return type(f"Own{next(_NUMBERS)}", (Own,), members)  # PyG keeps what it makes for a class by its name


def _gate(self, x_i, x_j):
    return torch.sigmoid(x_i + x_j) * x_j


def _distance(self, x_i, x_j):
    distance = (x_i - x_j).pow(2).sum(dim=-1, keepdim=True)
    return x_j * torch.exp(-distance)


def _heads(self, x_i, x_j):
    heads, count = x_j.view(-1, 2, x_j.size(-1) // 2), x_j.size(0)
    scores = (heads * x_i.view(count, 2, -1)).sum(-1).softmax(dim=-1)
    return (heads * scores.unsqueeze(-1)).reshape(count, -1)


def _halves(self, x_i, x_j):
    first, second = x_j.chunk(2, dim=-1)
    return torch.cat([first * second, x_i[:, : first.shape[1]]], dim=1)


def _stored(self, x_j):
    self.kept = x_j
    return x_j


def _own_softmax(self, x_i, x_j, index):
    weight = (x_i * x_j).sum(-1, keepdim=True).exp()
    return x_j * weight / scatter(weight, index)[index]


_ROW_BY_ROW = {
    "a gate": _gate,
    "a product of tanh": lambda self, x_i, x_j: torch.tanh(x_i) * torch.tanh(x_j) - x_j,
    "a network of both ends": lambda self, x_i, x_j: self.mlp(torch.cat([x_i, x_j - x_i], dim=-1)),
    "a parameter": lambda self, x_j: F.leaky_relu(x_j * torch.tanh(self.att), self.slope) + self.att,
    "the distance of both ends": _distance,
    "heads": _heads,
    "halves": _halves,
    "a product with a parameter": lambda self, x_j: x_j @ self.att.t() * x_j.clamp(min=0),
    "the neighbour alone": lambda self, x_j: x_j,
    "the node alone": lambda self, x_i: F.relu(x_i),
    "softmax of the neighbourhood": lambda self, x_i, x_j, index, ptr, size_i: (
        x_j * softmax((x_i * x_j).sum(-1), index, ptr, size_i).view(-1, 1)
    ),
}


def _without_gradients(self, x_i, x_j):
    with torch.no_grad():
        gate = torch.sigmoid(x_i)
    return x_j * gate


_LEFT = {
    "a part without gradients": (_without_gradients, "without gradients"),
    "a default of what propagate is not given": (
        lambda self, x_j, flag_j=True: 2 * x_j if flag_j else -x_j,
        "no matrix of node rows",
    ),
    "the first edge's row": (
        lambda self, x_j: x_j - x_j[:1],
        "getitem, which is not known to leave edges apart",
    ),
    "the mean of all edges": (
        lambda self, x_j: x_j - x_j.mean(0),
        "mean, which is not known to leave edges apart",
    ),
    "the number of edges": (lambda self, x_j: x_j / x_j.size(0), "reads the number of edges"),
    "edges in another order": (lambda self, x_j: x_j.flip(0), "flip, which"),
    "a softmax of the writer's own": (_own_softmax, "reads where edges lead to"),
    "a product of edges": (
        lambda self, x_i, x_j: (x_i @ x_j.t()).tanh() @ x_j / 100,
        "t, which is not known to leave edges apart",
    ),
    "a message that is kept": (_stored, "changes 'kept'"),
    "rows written over": (lambda self, x_j: x_j.mul_(2.0), "mul_, which writes in place"),
    "rows written over by relu": (lambda self, x_j: F.relu(x_j, inplace=True), "writes in place"),
    "a branch on a value": (
        lambda self, x_j: x_j if x_j.sum() > 0 else -x_j,
        "sum, which is not known to leave edges apart",
    ),
}


class Masked(Own):
    """Attention whose scores are masked by a large number on all edges of a destination."""

    def message(self, x_i, x_j, index):
        return x_j * softmax(x_i * 0.0 - 1e9, index)


class Headed(Own):
    """Attention of two heads, whose messages have three dimensions; the heads' mean is the result."""

    def __init__(self, i, o):
        super().__init__(i, o, node_dim=0)
        self.lin = nn.Linear(i, 2 * o)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x).view(x.size(0), 2, -1)).mean(dim=1)

    def message(self, x_i, x_j, index, ptr, size_i):
        return x_j * softmax((x_i * x_j).sum(-1), index, ptr, size_i).unsqueeze(-1)


class Updating(Own):
    """Updates with the nodes' own rows."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x), own=self.own(x), scale=0.5)

    def message(self, x_j, scale):
        return scale * x_j.tanh()

    def update(self, inputs, own):
        return inputs.relu() + own


class Pairs(Own):
    """Sources and destinations have rows of their own."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=(self.lin(x), self.own(x)), h=self.own(x))

    def message(self, x_i, x_j, h_j):
        return torch.sigmoid(x_i - x_j) * h_j


class Updated(Own):
    """Computes coefficients of edges before, by ``edge_update``, and returns early without edges."""

    def forward(self, x, edge_index):
        h = self.lin(x)
        alpha = self.edge_updater(edge_index, x=h, scale=0.5)
        return self.own(x) + self.propagate(edge_index, x=h, alpha=alpha)

    def edge_update(self, x_i, x_j, scale, index, ptr, size_i):
        score = scale * ((x_i + x_j).tanh() * self.att).sum(-1)
        return score if index.numel() == 0 else softmax(score, index, ptr, size_i)

    def message(self, x_j, alpha):
        return alpha.view(-1, 1) * x_j


class UpdatedFeatures(Own):
    """Computes a row of each edge before, of the edges' features and both ends."""

    def forward(self, x, edge_index, edge_attr):
        gate = self.edge_updater(edge_index, x=self.lin(x), edge_attr=edge_attr)
        return self.own(x) + self.propagate(edge_index, h=self.own(x), gate=gate)

    def edge_update(self, x_i, x_j, edge_attr):
        return torch.sigmoid(x_i - x_j + self.edge(edge_attr))

    def message(self, h_j, gate):
        return gate * h_j


class WithFeatures(Own):
    """Reads the edges' features."""

    def forward(self, x, edge_index, edge_attr):
        return self.own(x) + self.propagate(edge_index, x=self.lin(x), edge_attr=edge_attr)

    def message(self, x_j, edge_attr):
        return torch.relu(x_j + self.edge(edge_attr))


class WithWeights(Own):
    """Reads the edges' weights."""

    def forward(self, x, edge_index, edge_weight=None):
        return self.propagate(edge_index, x=self.lin(x), edge_weight=edge_weight)

    def message(self, x_i, x_j, edge_weight):
        return x_j - x_i if edge_weight is None else edge_weight.view(-1, 1) * (x_j - x_i)


class WithEdges(Own):
    """Chooses and weighs edges by their order or by their ends."""

    def forward(self, x, edge_index):
        chosen, weight = self.chosen(edge_index)
        return self.propagate(chosen, x=self.lin(x), weight=weight.to(x.dtype).view(-1, 1))

    def message(self, x_j, weight):
        return x_j * weight


def _choosing(choose):
    return layer(type(f"WithEdges{next(_NUMBERS)}", (WithEdges,), {"chosen": staticmethod(choose)}))


_BY_ORDER = {
    "every other edge": lambda edges: (edges[:, ::2], edges[0, ::2] * 0 + 1),
    "the first edges": lambda edges: (edges[:, :1000], edges[0, :1000] * 0 + 1),
    "edges weighed by their number": lambda edges: (edges, torch.cumsum(edges[0] * 0 + 1, 0) / 9),
}
"""Calls that read the order of the edges, which a graph does not keep."""


def gated(**members):
    return layer(_made(message=_gate, **members))


def _aggregated(self, inputs, index, ptr=None, dim_size=None):
    return self.aggr_module(inputs * 2, index, ptr=ptr, dim_size=dim_size)


def _scattered(self, inputs, index, dim_size=None):
    return scatter(inputs, index, dim=self.node_dim, dim_size=dim_size, reduce="max")


def _scattered_twice(self, inputs, index, dim_size=None):
    return scatter(inputs, index, 0, dim_size) * scatter(inputs, index, 0, dim_size, "mean")


def _scattered_and_kept(self, inputs, index, dim_size=None):
    self.kept = inputs
    return scatter(inputs, index, dim=0, dim_size=dim_size, reduce="mean")


def _propagated(self, edge_index, x):
    return x * 2


def _updated_of_other_rows(self, x, edge_index):
    alpha = self.edge_updater(edge_index, x=self.own(x), scale=0.5)
    return self.propagate(edge_index, x=self.lin(x), alpha=alpha)


def _updated_along_others(self, x, edge_index):
    x = self.lin(x)
    alpha = self.edge_updater(edge_index.flip(0), x=x, scale=0.5)
    return self.propagate(edge_index, x=x, alpha=alpha)


def _updated_before_a_write(self, x, edge_index):
    x = self.lin(x)
    alpha = self.edge_updater(edge_index, x=x, scale=0.5)
    return self.propagate(edge_index, x=x.relu_(), alpha=alpha)


def _updated_by_its_own(self, edge_index, x, scale):
    return x[edge_index[0], 0] * scale


def updating(**members):
    """A maker of layers with an ``edge_update`` and these members."""
    return layer(type(f"Own{next(_NUMBERS)}", (Updated,), members))


_OVERRIDDEN = {
    "an edge_update of other rows": (updating(forward=_updated_of_other_rows), "another 'x_[ij]'"),
    "an edge_update along other edges": (updating(forward=_updated_along_others), "along other edges"),
    "an edge_update before a write": (updating(forward=_updated_before_a_write), "may change"),
    "an edge_updater of its own": (updating(edge_updater=_updated_by_its_own), "edge_updater of its own"),
    "an aggregate of its own": (gated(aggregate=_aggregated), "aggregate of its own"),
    "an aggregate that scatters twice": (gated(aggregate=_scattered_twice), "aggregate of its own"),
    "an aggregate that keeps messages": (gated(aggregate=_scattered_and_kept), "'kept'|of its own"),
    "a propagate of its own": (gated(propagate=_propagated), "propagate of its own"),
    "flow='target_to_source'": (own(_gate, flow="target_to_source"), "flow"),
    "decomposed_layers=2": (own(_gate, decomposed_layers=2), "changes 'propagate'|decomposed_layers"),
    "an aggregation that is not known": (
        own(_gate, aggr=pyg.aggr.VariancePreservingAggregation()),
        "its aggregation holds VariancePreservingAggregation",
    ),
}
_AGGREGATIONS = {
    "aggr='var'": {"aggr": "var"},
    "aggr='std'": {"aggr": "std"},
    "aggr='mul'": {"aggr": "mul"},
    "aggr=['mean', 'max', 'sum']": {"aggr": ["mean", "max", "sum"], "aggr_kwargs": {"mode": "sum"}},
    "softmax with a learned temperature": {"aggr": "softmax", "aggr_kwargs": {"learn": True}},
    "a power mean": {"aggr": "powermean", "aggr_kwargs": {"p": 2.0}},
    "scaled by degrees": {"aggr": pyg.aggr.DegreeScalerAggregation("mean", "amplification", torch.arange(9))},
}
"""Aggregations that run as they are written, on all edges of some nodes at a time."""


def _hooked():
    model = Stack(own(_gate))
    model.first.register_message_forward_hook(lambda module, args, out: out * 2)
    return model


_PART = "layers of one's own"
MESSAGES = [
    *(
        Case(_PART, f"{name}, aggr={aggr!r}", lambda m=message, a=aggr: Stack(own(m, aggr=a)))
        for number, (name, message) in enumerate(_ROW_BY_ROW.items())
        for aggr in (
            ("sum", "mean", "max", "min") if number < 2 else ("mean", "max") if number % 2 else ("add",)
        )
    ),
    *(Case(_PART, name, lambda o=o: Stack(own(_gate, **o))) for name, o in _AGGREGATIONS.items()),
    Case(_PART, "a softmax of masked scores", lambda: Stack(layer(Masked))),
    Case(_PART, "heads", lambda: Stack(layer(Headed), hidden=8)),
    Case(_PART, "an update", lambda: Stack(layer(Updating))),
    Case(_PART, "a pair of matrices", lambda: Stack(layer(Pairs))),
    *(Case(_PART, f"an edge_update, {a}", lambda a=a: Stack(layer(Updated, aggr=a))) for a in ("add", "max")),
    Case(_PART, "an edge_update of features", lambda: Featured(layer(UpdatedFeatures)), prepare=FEATURED),
    Case(_PART, "edge features", lambda: Featured(layer(WithFeatures)), prepare=FEATURED),
    Case(_PART, "edge features, max", lambda: Featured(layer(WithFeatures, aggr="max")), prepare=FEATURED),
    Case(_PART, "edge weights", lambda: Weighted(layer(WithWeights))),
    Case(_PART, "edge weights, mean", lambda: Weighted(layer(WithWeights, aggr="mean"))),
    Case(_PART, "no edge weights", lambda: Stack(layer(WithWeights))),
    Case(_PART, "node_dim=0", lambda: Stack(own(_gate, node_dim=0))),
    Case(_PART, "an aggregate that scatters", lambda: Stack(gated(aggregate=_scattered))),
    *(
        left(_PART, name, lambda m=message: Stack(own(m)), reason)
        for name, (message, reason) in _LEFT.items()
    ),
    *(left(_PART, name, lambda m=make: Stack(m), reason) for name, (make, reason) in _OVERRIDDEN.items()),
    *(
        partly(_PART, name, lambda c=choose: Stack(_choosing(c)), "on its own edges, lowered")
        for name, choose in _BY_ORDER.items()
    ),
    Case(
        _PART,
        "edges by their ends",
        lambda: Stack(_choosing(lambda e: (e[:, e[0] < e[1] + 3], e[0, e[0] < e[1] + 3] % 5))),
    ),
    left(_PART, "a message hook", _hooked, "hooks"),
]
