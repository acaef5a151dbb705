"""Models that take their edges as a sparse matrix ``adj_t``, and layers of their own that multiply by it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    GENConv,
    GraphConv,
    LEConv,
    MessagePassing,
    SAGEConv,
    TransformerConv,
)
from torch_geometric.utils import spmm

from benchmarks.fullgraph.models.listed import Listed, Sizes


class Net(nn.Module):
    """After ogb/examples/nodeproppred/arxiv/gnn.py: layers, batch normalisation and dropout on a matrix."""

    def __init__(self, make: Callable[[int, int], nn.Module], s: Sizes) -> None:
        super().__init__()
        self.convs = nn.ModuleList([make(s.channels, s.hidden), make(s.hidden, s.hidden)])
        self.bns = nn.ModuleList(nn.BatchNorm1d(s.hidden) for _ in self.convs)
        self.head, self.dropout = nn.Linear(s.hidden, s.classes), s.dropout

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        for conv, bn in zip(self.convs, self.bns, strict=True):
            x = F.dropout(F.relu(bn(conv(x, adj_t))), self.dropout, self.training)
        return self.head(x)


class MeanLayer(MessagePassing):
    """After PyG's page on memory-efficient aggregations: a layer with a product in the place of messages."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="mean")
        self.lin_l, self.lin_r = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        return self.lin_l(self.propagate(adj_t, x=x)) + self.lin_r(x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j

    def message_and_aggregate(self, adj_t: Tensor, x: Tensor) -> Tensor:
        return spmm(adj_t, x, reduce=self.aggr)


class GraphConvolution(nn.Module):
    """After tkipf/pygcn's layers.py: a product of the normalised matrix, ``torch.spmm(adj, support)``."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_channels, out_channels) / in_channels**0.5)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        support = x @ self.weight
        return torch.spmm(adj, support) + self.bias


class PersonalisedPages(nn.Module):
    """After ppnp's PPRPowerIteration: an MLP, then products with the matrix and a share of the start."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.fcs = nn.Sequential(nn.Linear(s.channels, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.classes))
        self.dropout = s.dropout

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        local = self.fcs(F.dropout(x, self.dropout, self.training))
        out = local
        for _ in range(4):
            out = 0.9 * (adj_t @ out) + 0.1 * local
        return out


class GatedLayer(MessagePassing):
    """Messages of their own, which get the values of the matrix as edge weights."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="add")
        self.key, self.value = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        return self.propagate(adj_t, key=self.key(x), value=self.value(x), edge_weight=None)

    def message(self, key_i: Tensor, key_j: Tensor, value_j: Tensor, edge_weight: Tensor) -> Tensor:
        return edge_weight.view(-1, 1) * torch.sigmoid(key_i + key_j) * value_j


_F = "sparse matrix"
MODELS = [
    Listed(_F, "ogbn-arxiv SAGE", lambda s: Net(SAGEConv, s), "matrix"),
    Listed(_F, "own layer with spmm", lambda s: Net(MeanLayer, s), "matrix"),
    Listed(_F, "GraphConv with weights", lambda s: Net(GraphConv, s), "weighted matrix"),
    Listed(_F, "DeeperGCN", lambda s: Net(GENConv, s), "matrix"),
    Listed(_F, "UniMP", lambda s: Net(lambda i, o: TransformerConv(i, o // 2, heads=2), s), "matrix"),
    Listed(_F, "LEConv", lambda s: Net(LEConv, s), "weighted matrix"),
    Listed(_F, "pygcn, torch.spmm", lambda s: Net(GraphConvolution, s), "weighted matrix"),
    Listed(_F, "ppnp, powers of a matrix", PersonalisedPages, "weighted matrix"),
    Listed(_F, "own messages with weights", lambda s: Net(GatedLayer, s), "weighted matrix"),
]
