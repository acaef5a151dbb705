"""Layers over relations, which take the relation of each edge."""

import copy

import torch
import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import Case, layer, left
from tests.fullgraph.matrix.cases_edges import featured
from tests.fullgraph.matrix.graphs import CHANNELS
from tests.fullgraph.matrix.models import Stack, frozen
from torch import nn

from graphbraid import nn as gnn

RELATIONS = 5


def with_types(data):
    """Gives the data relations, of which one has no edges."""
    draw = torch.Generator().manual_seed(7)
    data = copy.copy(data)
    types = torch.randint(RELATIONS - 1, (data.num_edges,), generator=draw)
    data.edge_type = types + (types >= 2)  # relation 2 has none
    return data


class Related(Stack):
    """Two layers that get the relations."""

    def forward(self, x, edge_index, edge_type):
        return self.second(self.between(self.first(x, edge_index, edge_type)), edge_index, edge_type)


class OfData(Stack):
    """Takes all of the data."""

    def forward(self, data):
        h = self.between(self.first(data.x, data.edge_index, data.edge_type))
        return self.second(x=h, edge_index=data.edge_index, edge_type=data.edge_type)


def residual(self, x, edge_index, edge_type):
    h = self.first(x, edge_index, edge_type).relu()
    return self.head(self.norm(self.second(h, edge_index, edge_type) + h + self.skip(x)))


def shared(self, x, edge_index, edge_type):
    h = self.first(x, edge_index, edge_type)
    return self.head(self.second(h.relu(), edge_index, edge_type) + self.second(h, edge_index, edge_type))


def other_relations(self, x, edge_index, edge_type):
    return self.head(self.first(x, edge_index, edge_type * 1))


def beside_gcn(self, x, edge_index, edge_type):
    return self.head(self.first(x, edge_index, edge_type) + self.gcn(x, edge_index))


def of_a_pair(self, x, edge_index, edge_type):
    return self.head(self.first((x, x), edge_index, edge_type))


def conv(kind=pyg.RGCNConv, relations=RELATIONS, **options):
    """A maker of layers over relations."""
    return layer(kind, num_relations=relations, **options)


def case(part, name, make):
    return Case(part, name, make, prepare=with_types)


def left_alone(name, make, reason=""):
    return left("RGCNConv", name, make, reason, prepare=with_types)


_OPTIONS = {
    "plain": {},
    "aggr='sum'": {"aggr": "sum"},
    "num_bases=2": {"num_bases": 2},
    "num_bases=3, aggr='sum', root_weight=False": {"num_bases": 3, "aggr": "sum", "root_weight": False},
    "root_weight=False, bias=False": {"root_weight": False, "bias": False},
    "more relations than there are": {"relations": RELATIONS + 2},
}
_BLOCKS = {"num_blocks=2": {"num_blocks": 2}, "num_blocks=2, aggr='sum'": {"num_blocks": 2, "aggr": "sum"}}
_OF_PYG = {"aggr='add'": {"aggr": "add"}, "is_sorted=True": {"is_sorted": True}}
_LEFT = {
    "aggr='max'": ({"aggr": "max"}, "aggr"),
    "flow='target_to_source'": ({"flow": "target_to_source"}, "flow"),
}
_KINDS = {
    "RGCNConv": (pyg.RGCNConv, _OPTIONS | _OF_PYG | _BLOCKS),
    "FastRGCNConv": (pyg.FastRGCNConv, _OPTIONS | _BLOCKS),
    "graphbraid's RGCNConv": (gnn.RGCNConv, _OPTIONS),
}
_PLAIN = conv()

_CASES = [
    *(
        case(part, name, lambda k=kind, o=given: Related(conv(k, **o)))
        for part, (kind, options) in _KINDS.items()
        for name, given in options.items()
    ),
    *(
        case(part, "wide", lambda k=kind: Related(conv(k), hidden=4 * CHANNELS))
        for part, (kind, _) in _KINDS.items()
    ),
    case("graphbraid's RGCNConv", "BasisRGCNConv", lambda: Related(conv(gnn.BasisRGCNConv, num_bases=2))),
    case("RGCNConv", "of forward(data)", lambda: OfData(_PLAIN)),
    case("RGCNConv", "residual", lambda: featured(residual)(_PLAIN)),
    case("RGCNConv", "a layer used twice", lambda: featured(shared)(conv(num_bases=2))),
    case("RGCNConv", "evaluation", lambda: Related(_PLAIN, nn.Dropout(0.5)).eval()),
    case("RGCNConv", "batch norm", lambda: Related(_PLAIN, nn.BatchNorm1d(8))),
    case("RGCNConv", "a frozen weight", lambda: frozen(Related(_PLAIN), ".weight")),
    case("RGCNConv", "frozen bases", lambda: frozen(Related(conv(num_bases=2)), ".weight")),
    case("RGCNConv", "a frozen layer", lambda: frozen(Related(_PLAIN), "first.")),
    *(
        left_alone(name, lambda o=given: Related(conv(**o)), reason)
        for name, (given, reason) in _LEFT.items()
    ),
    left_alone("a subclass", lambda: Related(conv(type("RGCNConv", (pyg.RGCNConv,), {})))),
    left_alone("other relations", lambda: featured(other_relations)(_PLAIN)),
    left_alone(
        "beside GCNConv",
        lambda: featured(beside_gcn)(_PLAIN, gcn=pyg.GCNConv(CHANNELS, 8)),
        "others all edges together",
    ),
    left_alone("of a pair", lambda: featured(of_a_pair)(_PLAIN), "a pair of matrices"),
]
RELATIONAL = sorted(_CASES, key=lambda case: [*_KINDS].index(case.part))
