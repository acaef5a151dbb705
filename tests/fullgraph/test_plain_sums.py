"""Messages that are the source's row, with or without a factor: aggregations; and messages that look so."""

import copy

import pytest
import torch
from tests.beside_pyg import pyg
from tests.fullgraph.matrix.compare import LOWERED, assert_alike, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm


class Plain(pyg.MessagePassing):
    """The source's row."""

    def __init__(self, width=8, **options):
        super().__init__(**{"aggr": "sum"} | options)
        self.lin = nn.Linear(width, 8)

    def forward(self, x, edge_index, edge_weight=None):
        return self.propagate(edge_index, x=self.lin(x), edge_weight=edge_weight)

    def message(self, x_j):
        return x_j


class Weighed(Plain):
    """The source's row, times the edge's weight."""

    def message(self, x_j, edge_weight):
        return x_j * edge_weight.unsqueeze(-1)


class Normed(Weighed):
    """The weights are PyG's of a GCN; ``options`` are those of ``gcn_norm``."""

    def __init__(self, width=8, weighted=False, change=None, **options):
        super().__init__(width)
        self.weighted, self.change, self.options = weighted, change, options

    def forward(self, x, edge_index, edge_weight=None):
        edges, weight = gcn_norm(
            edge_index,
            edge_weight if self.weighted else None,
            x.size(0),
            **{"dtype": x.dtype} | self.options,
        )
        if self.change is not None:
            weight = self.change(weight, edge_weight)
        return self.propagate(edges, x=self.lin(x), edge_weight=weight)


class Second(Plain):
    """Of two matrices of sources, the message reads the second alone."""

    def forward(self, x, edge_index, edge_weight=None):
        x = self.lin(x)
        return self.propagate(edge_index, x=x, h=2 * x.relu())

    def message(self, x_j, h_j):
        return h_j


class Shifted(Plain):
    """A row and a number: no plain sum."""

    def message(self, x_j):
        return x_j + 0.5


class Squared(Weighed):
    """The weight twice: no plain sum."""

    def message(self, x_j, edge_weight):
        return x_j * edge_weight.unsqueeze(-1) * edge_weight.unsqueeze(-1)


class Unread(Weighed):
    """A product that nothing reads, before one of the row with itself."""

    def message(self, x_j, edge_weight):
        edge_weight.unsqueeze(-1)
        return x_j * x_j


class Model(nn.Module):
    """Two layers of one kind, and what its rows add up to."""

    def __init__(self, make):
        super().__init__()
        self.first, self.second, self.bias = make(CHANNELS), make(8), nn.Parameter(torch.rand(8))
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x, edge_index, edge_weight):
        x = (self.first(x, edge_index, edge_weight) + self.bias).tanh()
        return self.last(self.second(x, edge_index, edge_weight))


def _written_over(weight, _):
    weight.mul_(0.5)
    return weight


PLAIN = {
    "sum": (Plain, "sum"),
    "mean": (lambda width: Plain(width, aggr="mean"), "mean"),
    "weighted": (Weighed, "sum weighted"),
    "weighted mean": (lambda width: Weighed(width, aggr="mean"), "mean weighted"),
    "second": (Second, "sum"),
    "gcn": (Normed, "gcn + 1 I"),
    "gcn weighted": (lambda width: Normed(width, weighted=True), "gcn weighted + 1 I"),
    "gcn improved": (lambda width: Normed(width, weighted=True, improved=True), "gcn weighted + 2 I"),
    "gcn improved, unweighted": (lambda width: Normed(width, improved=True), "gcn + 1 I"),
    "gcn without loops": (lambda width: Normed(width, add_self_loops=False), "gcn"),
}
"""Layers, and the matrix that their messages are."""
OTHERS = {
    "max": lambda width: Plain(width, aggr="max"),
    "shifted": Shifted,
    "squared": Squared,
    "unread": Unread,
    "written over": lambda width: Normed(width, change=_written_over),
    "less exact": lambda width: Normed(width, dtype=torch.bfloat16),
    "scaled": lambda width: Normed(width, change=lambda weight, _: 2 * weight),
    "of other edges": lambda width: Normed(
        width, add_self_loops=False, change=lambda weight, own: weight + own
    ),
    "other weights": lambda width: Normed(width, add_self_loops=False, change=lambda _, own: own),
}
"""Layers whose messages look like sums of rows by a known matrix."""


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
@pytest.mark.parametrize("graph", ["untidy", "undirected"])
def test_equals_pyg_and_is_an_aggregation_where_it_is_one(name, graph):
    make, matrix = PLAIN.get(name, (OTHERS.get(name), ""))
    data = data_of(graph)
    torch.manual_seed(4)
    model = Model(make)
    twin, engine = copy.deepcopy(model), engine_of(model, data)
    assert verdict(engine) == LOWERED, engine.explain()
    lines = [line for line in engine.explain().splitlines() if "aggregate(" in line or "constant(" in line]
    found = [line.split(": ", 1)[1].removeprefix("aggregate ") for line in lines]
    assert {one.split(",")[0] for one in found} == ({matrix} if matrix else set()), engine.explain()
    assert_alike(model, twin, data, engine)
