"""PyG's layers that have no reader: their forward and message are traced."""

import torch
import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import Case, layer, left, partly
from tests.fullgraph.matrix.cases_edges import FEATURED, FEATURES, Featured
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES
from tests.fullgraph.matrix.models import HIDDEN, Stack, Weighted
from torch import nn
from torch_geometric.utils import add_self_loops, degree

_PART = "layers that are traced"


def _mlp(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o))


def _heads(kind, **options):
    """A maker of two heads, whose rows stand side by side."""
    return lambda i, o: kind(i, o // 2, heads=2, **options)


def _pna(**options):
    """A maker of PNA layers of all its scalers and of most of its aggregations."""
    aggregators = ["mean", "min", "max", "std", "var", "sum"]
    scalers = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
    histogram = torch.tensor([1, 4, 9, 5, 2])
    return lambda i, o: pyg.PNAConv(i, o, aggregators, scalers, histogram, **options)


class Narrowed(nn.Module):
    """A layer that keeps the width, and a linear map before it."""

    def __init__(self, i, o, conv):
        super().__init__()
        self.lin, self.conv = nn.Linear(i, o), conv

    def forward(self, x, edge_index):
        return self.conv(self.lin(x), edge_index)


class Doubled(pyg.GCNConv):
    """Calls PyG's own forward."""

    def forward(self, x, edge_index):
        return super().forward(2 * x, edge_index)


class LouderGAT(pyg.GATConv):
    """Calls PyG's own forward, which computes coefficients of edges by ``edge_updater`` before."""

    def forward(self, x, edge_index):
        return super().forward(2 * x, edge_index)


class Tutorial(pyg.MessagePassing):
    """After "Creating Message Passing Networks" of PyG's documentation."""

    def __init__(self, i=HIDDEN, o=HIDDEN, aggr="add"):
        super().__init__(aggr=aggr)
        self.lin = nn.Linear(i, o, bias=False)
        self.bias = nn.Parameter(torch.linspace(-1, 1, o))

    def forward(self, x, edge_index):
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        x = self.lin(x)
        row, col = edge_index
        deg = degree(col, x.size(0), dtype=x.dtype)
        deg_inv_sqrt = deg.pow(-0.5)
        deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
        norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
        return self.propagate(edge_index, x=x, norm=norm) + self.bias

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Encoded(nn.Module):
    """Two layers that get edge features mapped before them, in one of them by a map without bias."""

    def __init__(self, kind, **options):
        super().__init__()
        self.encoder, self.other = nn.Linear(FEATURES, 5), nn.Linear(FEATURES, 5, bias=False)
        self.first = kind(CHANNELS, HIDDEN, edge_dim=5, **options)
        self.second = kind(HIDDEN, CLASSES, edge_dim=5, **options)

    def forward(self, x, edge_index, edge_attr):
        x = self.first(x, edge_index, self.encoder(edge_attr)).relu()
        return self.second(x, edge_index, self.other(edge_attr))


_LAYERS = {
    "TransformerConv": layer(pyg.TransformerConv),
    "TransformerConv(heads=2)": _heads(pyg.TransformerConv),
    "TransformerConv(heads=2, concat=False, beta=True)": layer(
        pyg.TransformerConv, heads=2, concat=False, beta=True
    ),
    "TransformerConv(root_weight=False)": layer(pyg.TransformerConv, root_weight=False),
    "GENConv": layer(pyg.GENConv),
    "GENConv(learn_t=True, num_layers=3)": layer(pyg.GENConv, learn_t=True, num_layers=3, norm="layer"),
    "GENConv(aggr='powermean')": layer(pyg.GENConv, aggr="powermean"),
    "PNAConv": _pna(),
    "PNAConv(towers=2)": _pna(towers=2),
    "PNAConv(towers=2, divide_input=True, post_layers=2)": _pna(towers=2, divide_input=True, post_layers=2),
    "EdgeConv": lambda i, o: pyg.EdgeConv(_mlp(2 * i, o)),
    "EdgeConv(aggr='mean') of PyG's MLP": lambda i, o: pyg.EdgeConv(
        pyg.MLP([2 * i, o, o], norm=None), aggr="mean"
    ),
    "ResGatedGraphConv": layer(pyg.ResGatedGraphConv),
    "LEConv": layer(pyg.LEConv),
    "FiLMConv": layer(pyg.FiLMConv),
    "GeneralConv": layer(pyg.GeneralConv),
    "GeneralConv(attention=True)": layer(pyg.GeneralConv, attention=True, heads=2),
    "AGNNConv": lambda i, o: Narrowed(i, o, pyg.AGNNConv()),
    "AGNNConv(add_self_loops=False)": lambda i, o: Narrowed(i, o, pyg.AGNNConv(add_self_loops=False)),
    "ClusterGCNConv": layer(pyg.ClusterGCNConv),
    "ClusterGCNConv(diag_lambda=0.3)": layer(pyg.ClusterGCNConv, diag_lambda=0.3),
    "FeaStConv(heads=2)": layer(pyg.FeaStConv, heads=2),
    "GCNConv's subclass": Doubled,
    "GATConv's subclass": lambda i, o: LouderGAT(i, o // 2, heads=2),
    "the layer of PyG's tutorial": Tutorial,
    "GraphConv(aggr=['mul', 'var'])": layer(pyg.GraphConv, aggr=["mul", "var"], aggr_kwargs={"mode": "sum"}),
}
_WITH_FEATURES = {
    "TransformerConv(edge_dim, beta=True)": _heads(pyg.TransformerConv, edge_dim=FEATURES, beta=True),
    "GENConv(edge_dim)": layer(pyg.GENConv, edge_dim=FEATURES, aggr="add"),
    "NNConv": lambda i, o: pyg.NNConv(i, o, _mlp(FEATURES, i * o)),
    "ResGatedGraphConv(edge_dim)": layer(pyg.ResGatedGraphConv, edge_dim=FEATURES),
    "GeneralConv(attention_type='dot_product'), features": layer(
        pyg.GeneralConv, in_edge_channels=FEATURES, attention=True, attention_type="dot_product", heads=2
    ),
}
_MF = {
    "MFConv": {},
    "MFConv(max_degree=2, bias=False)": {"max_degree": 2, "bias": False},
    "MFConv(aggr='max')": {"max_degree": 4, "aggr": "max"},
    "MFConv(max_degree=0)": {"max_degree": 0},
}
TRACED = [
    *(Case(_PART, name, lambda m=make: Stack(m)) for name, make in _LAYERS.items()),
    *(
        Case(_PART, name, lambda m=make: Featured(m), prepare=FEATURED)
        for name, make in _WITH_FEATURES.items()
    ),
    Case(_PART, "TransformerConv, features encoded", lambda: Encoded(pyg.TransformerConv), prepare=FEATURED),
    Case(
        _PART,
        "GENConv(aggr='std'), features encoded",
        lambda: Encoded(pyg.GENConv, aggr="std"),
        prepare=FEATURED,
    ),
    Case(_PART, "LEConv with edge_weight", lambda: Weighted(layer(pyg.LEConv))),
    *(
        partly(_PART, name, lambda o=o: Stack(layer(pyg.MFConv, **o)), "index_copy")
        for name, o in _MF.items()
    ),
    left(_PART, "SuperGATConv", lambda: Stack(layer(pyg.SuperGATConv)), "cannot be traced"),
]
