"""Layers and their options."""

import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import GCN, Case, gin, layer, left, partly
from tests.fullgraph.matrix.cases_edges import Featured
from tests.fullgraph.matrix.models import Sine, Stack, Weighted, negated
from torch import nn

_GCN_OPTIONS = {
    "plain": {},
    "cached=True": {"cached": True},
    "improved=True": {"improved": True},
    "add_self_loops=False": {"add_self_loops": False},
    "normalize=False": {"normalize": False},
    "bias=False": {"bias": False},
    "aggr='sum'": {"aggr": "sum"},
    "aggr='mean'": {"aggr": "mean"},
    "aggr='max'": {"aggr": "max"},
    "aggr=MedianAggregation()": {"aggr": pyg.aggr.MedianAggregation()},
    "aggr=['add', 'mean']": {"aggr": ["add", "mean"], "aggr_kwargs": {"mode": "sum"}},
}
_GCN_LEFT = {
    "flow='target_to_source'": {"flow": "target_to_source"},
    "node_dim=-2, decomposed_layers=2": {"decomposed_layers": 2},
}
_SAGE_OPTIONS = {
    "plain": {},
    "aggr='mean', bias=False": {"bias": False},
    "aggr='sum'": {"aggr": "sum"},
    "aggr='add'": {"aggr": "add"},
    "aggr='max'": {"aggr": "max"},
    "normalize=True": {"normalize": True},
    "root_weight=False": {"root_weight": False},
    "project=True": {"project": True},
    "project=True, aggr='max'": {"project": True, "aggr": "max"},
    "max, normalize, no root": {"aggr": "max", "normalize": True, "root_weight": False},
}
_SAGE_OPTIONS |= {
    "aggr='var'": {"aggr": "var"},
    "aggr='min'": {"aggr": "min"},
    "aggr='std'": {"aggr": "std"},
    "aggr='softmax'": {"aggr": "softmax"},
    "aggr=['mean', 'max']": {"aggr": ["mean", "max"]},
    "aggr=a module": {"aggr": pyg.aggr.MeanAggregation()},
}
_SAGE_LEFT = {"flow='target_to_source'": {"flow": "target_to_source"}}
_GIN_OPTIONS = {
    "plain": gin(),
    "eps=0.3": gin(eps=0.3),
    "train_eps=True": gin(eps=0.2, train_eps=True),
    "one linear map": gin(nn.Linear),
    "aggr='mean'": gin(aggr="mean"),
    "aggr='max'": gin(aggr="max"),
    "an identity first": gin(lambda i, o: nn.Sequential(nn.Identity(), nn.Linear(i, o))),
    "ReLU first": gin(lambda i, o: nn.Sequential(nn.ReLU(), nn.Linear(i, o))),
    "batch norm inside": gin(lambda i, o: nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU())),
    "train_eps, batch norm": gin(
        lambda i, o: nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU(), nn.Linear(o, o)),
        train_eps=True,
    ),
    "ReLU in place inside": gin(lambda i, o: nn.Sequential(nn.Linear(i, o), nn.ReLU(inplace=True))),
    "nested sequences": gin(
        lambda i, o: nn.Sequential(nn.Sequential(nn.Linear(i, o), nn.ReLU()), nn.Linear(o, o))
    ),
}
_GIN_LEFT = {"flow='target_to_source'": gin(flow="target_to_source")}
_GIN_PARTLY = {
    "a class of one's own inside": (gin(type("Linear", (nn.Linear,), {"forward": negated})), "linear"),
    "a lambda module inside": (gin(lambda i, o: nn.Sequential(nn.Linear(i, o), Sine())), "sin"),
}
_GAT_OPTIONS = {
    "plain": {},
    "heads=3, concat=False": {"heads": 3, "concat": False},
    "negative_slope=0.5": {"negative_slope": 0.5},
    "negative_slope=0": {"negative_slope": 0.0},
    "add_self_loops=False": {"add_self_loops": False},
    "bias=False": {"bias": False},
    "residual=True": {"residual": True},
    "heads=2, concat=False, residual=True": {"heads": 2, "concat": False, "residual": True},
    "fill_value='max', which nothing reads": {"fill_value": "max"},
    "aggr='mean'": {"aggr": "mean"},
    "aggr='max'": {"aggr": "max"},
}
_GAT_LEFT = {
    "flow='target_to_source'": {"flow": "target_to_source"},
    "dropout=1.0": {"dropout": 1.0},
}


def layer_of_heads(kind):
    """Two heads, whose rows stand side by side in the hidden layer."""
    return lambda i, o: kind(i, o // 2, heads=2)


def _options(part, base, kept, refused, make=Stack):
    return [
        *(Case(part, name, lambda o=o: make(layer(base, **o))) for name, o in kept.items()),
        *(left(part, name, lambda o=o: make(layer(base, **o))) for name, o in refused.items()),
    ]


def _named_attr(data):
    data.edge_attr, data.edge_weight = data.edge_weight, None
    return data


LAYERS = [
    *_options("GCNConv", pyg.GCNConv, _GCN_OPTIONS, _GCN_LEFT),
    *(
        Case("GCNConv with edge_weight", name, lambda o=o: Weighted(layer(pyg.GCNConv, **o)))
        for name, o in _GCN_OPTIONS.items()
    ),
    Case("GCNConv with edge_weight", "named edge_attr", lambda: Featured(GCN), prepare=_named_attr),
    Case(
        "GCNConv with edge_weight",
        "improved, named edge_attr",
        lambda: Featured(layer(pyg.GCNConv, improved=True)),
        prepare=_named_attr,
    ),
    *_options("SAGEConv", pyg.SAGEConv, _SAGE_OPTIONS, _SAGE_LEFT),
    *(Case("GINConv", name, lambda m=make: Stack(m)) for name, make in _GIN_OPTIONS.items()),
    *(left("GINConv", name, lambda m=make: Stack(m)) for name, make in _GIN_LEFT.items()),
    *(partly("GINConv", name, lambda m=make: Stack(m), why) for name, (make, why) in _GIN_PARTLY.items()),
    *_options("GATConv", pyg.GATConv, _GAT_OPTIONS, _GAT_LEFT),
    *_options(
        "GATv2Conv", pyg.GATv2Conv, _GAT_OPTIONS | {"share_weights=True": {"share_weights": True}}, _GAT_LEFT
    ),
    *(
        Case(name, "heads=2, side by side", lambda k=kind: Stack(layer_of_heads(k)))
        for name, kind in (("GATConv", pyg.GATConv), ("GATv2Conv", pyg.GATv2Conv))
    ),
]
