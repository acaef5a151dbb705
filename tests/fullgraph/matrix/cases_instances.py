"""Models that are more than their classes: hooks, parametrizations, subclasses, PyG's own stacks."""

import warnings

import numpy as np
import torch
import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import GCN, Case, gin, layer, left, partly
from tests.fullgraph.matrix.compare import in_double
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES
from tests.fullgraph.matrix.models import HIDDEN, Stack, calls
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm


def old_weight_norm(module):
    """The form before parametrizations: a pre-hook, and a weight that is no parameter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        weight_norm(module)


def with_hook(make, attach):
    """A stack whose first layer has a hook."""

    def build():
        model = Stack(make)
        attach(model)
        return model

    return build


def _with_gaps(model):
    """Every other number of a vector is a bias."""
    model.first.bias.data = torch.rand(2 * HIDDEN)[::2]


def _halve(module, args, out):
    return out / 2


_ATTACHED = {
    "a forward hook on a layer": lambda m: m.first.register_forward_hook(_halve),
    "a forward hook on the model": lambda m: m.register_forward_hook(_halve),
    "a forward hook on a linear map": lambda m: m.first.lin.register_forward_hook(_halve),
    "a forward hook on an activation": lambda m: m.between.register_forward_hook(_halve),
    "a forward pre-hook": lambda m: m.second.register_forward_pre_hook(
        lambda mod, args: (args[0] / 2, *args[1:])
    ),
    "a message hook": lambda m: m.first.register_message_forward_hook(lambda mod, args, out: out * 2),
    "a propagate pre-hook": lambda m: m.first.register_propagate_forward_pre_hook(lambda mod, args: None),
    "an aggregate hook": lambda m: m.first.register_aggregate_forward_hook(lambda mod, args, out: out + 1),
    "weight_norm": lambda m: old_weight_norm(m.first.lin),
    "weight_norm as a parametrization": lambda m: parametrizations.weight_norm(m.first.lin),
    "orthogonal": lambda m: parametrizations.orthogonal(m.first.lin),
    "pruned": lambda m: prune.l1_unstructured(m.first.lin, "weight", 0.5),
    "a message of its own": lambda m: setattr(m.first, "message", lambda x_j, edge_weight: -x_j),
    "a forward of its own": lambda m: setattr(m.between, "forward", lambda x: -x),
    "another aggregation": lambda m: setattr(m.first, "aggr_module", pyg.aggr.MaxAggregation()),
    "another linear map": lambda m: setattr(
        m.first, "lin", nn.Sequential(nn.Linear(CHANNELS, HIDDEN), nn.ReLU())
    ),
    "an attribute nobody knows": lambda m: setattr(m.first, "threshold", 0.5),
    "a bias in the linear map": lambda m: setattr(m.first, "lin", nn.Linear(CHANNELS, HIDDEN)),
}


class _Named(pyg.MessagePassing):
    """Layers of one's own, called as PyG's are."""

    def __init__(self, i, o):
        super().__init__(aggr="add")
        self.lin = nn.Linear(i, o)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j):
        return x_j.tanh()


class _Louder(pyg.GCNConv):
    def message(self, x_j, edge_weight):
        return 2 * super().message(x_j, edge_weight)


def _i(value):
    return np.int64(value)


def _f(value):
    return np.float32(value)


_YES, _NO = np.bool_(True), np.bool_(False)


def _numpy_constants(self, x, edge_index):
    first = self.first(x, edge_index)
    x = nn.functional.leaky_relu(_f(0.5) * first - first / _i(4), _f(0.1))
    return self.head(nn.functional.dropout(self.second(x, edge_index), _f(0.0), self.training))


_OF_NUMPY = {
    "GCN": lambda: pyg.GCN(_i(CHANNELS), _i(HIDDEN), _i(2), _i(CLASSES), dropout=_f(0.0), norm="batch"),
    "GraphSAGE": lambda: Stack(layer(pyg.SAGEConv, normalize=_YES, root_weight=_NO), nn.LeakyReLU(_f(0.2))),
    "GAT": lambda: Stack(
        layer(pyg.GATConv, heads=_i(2), concat=_NO, negative_slope=_f(0.1), dropout=_f(0.0)),
        nn.BatchNorm1d(_i(HIDDEN), eps=_f(1e-4), momentum=_f(0.2)),
    ),
    "GIN": lambda: Stack(gin(eps=torch.tensor(0.5)), nn.LayerNorm(_i(HIDDEN), eps=_f(1e-4))),
    "SGC and dropout": lambda: Stack(layer(pyg.SGConv, K=_i(2)), nn.Dropout(_f(0.0))),
    "constants of forward": lambda: calls(_numpy_constants)(GCN),
}


_PARTLY = {
    "weight_norm",
    "weight_norm as a parametrization",
    "orthogonal",
    "another aggregation",
    "another linear map",
    "an attribute nobody knows",
    "a bias in the linear map",
}
"""What leaves alone a part of the model, as it concerns no hook and no method."""
INSTANCES = [
    *(Case("instances", f"numbers of NumPy, {name}", make) for name, make in _OF_NUMPY.items()),
    *(
        (partly if name in _PARTLY else left)("instances", name, with_hook(GCN, attach))
        for name, attach in _ATTACHED.items()
    ),
    Case("instances", "a layer of one's own called GCNConv", lambda: Stack(type("GCNConv", (_Named,), {}))),
    Case("instances", "a layer of one's own called SAGEConv", lambda: Stack(type("SAGEConv", (_Named,), {}))),
    Case("instances", "a subclass of GCNConv", lambda: Stack(_Louder)),
    partly("instances", "a bias with gaps", with_hook(GCN, _with_gaps), "bias is not contiguous"),
    left("instances", "float64", lambda: Stack(GCN).double(), prepare=in_double),
    Case("instances", "PyG's GCN", lambda: pyg.GCN(CHANNELS, HIDDEN, 2, CLASSES)),
    Case("instances", "PyG's GraphSAGE", lambda: pyg.GraphSAGE(CHANNELS, HIDDEN, 3, CLASSES)),
    Case("instances", "PyG's GAT", lambda: pyg.GAT(CHANNELS, HIDDEN, 2, CLASSES, heads=2)),
]
