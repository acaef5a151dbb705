"""Models that gather and scatter in a plain ``forward``, without a message passing layer.

Their own code, after published ones: the originals are named at each class.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.utils import degree, scatter, segment, softmax

from benchmarks.fullgraph.models.listed import Listed, Sizes


class LoopedGCN(nn.Module):
    """After gordicaleksa/pytorch-GNN and PyG's formula of GCN: loops, degrees and ``index_add``."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n = x.size(0)
        loops = torch.arange(n, device=x.device)
        row, col = torch.cat([edge_index[0], loops]), torch.cat([edge_index[1], loops])
        deg = torch.zeros(n, device=x.device).index_add_(0, col, torch.ones(col.size(0), device=x.device))
        norm = deg.rsqrt()[row] * deg.rsqrt()[col]
        x = self.lin(x)
        out = torch.zeros_like(x)
        out.index_add_(0, col, norm.to(x.dtype).unsqueeze(-1) * x[row])
        return out


class ScatteredMean(nn.Module):
    """After williamleif/graphsage-simple, with PyG's ``scatter``."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(2 * in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        mean = scatter(x[src], dst, dim=0, dim_size=x.size(0), reduce="mean")
        return self.lin(torch.cat([x, mean], dim=1))


class DividedSum(nn.Module):
    """After the mean aggregator of many course solutions: a sum divided by the degrees."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        row, col = edge_index[0], edge_index[1]
        summed = torch.zeros_like(x).index_add(0, col, x.index_select(0, row))
        mean = summed / degree(col, x.size(0), dtype=x.dtype).clamp(min=1).unsqueeze(-1)
        return self.own(x) + self.others(mean)


class SummedGIN(nn.Module):
    """After weihua916/powerful-gnns: a sum, the node's own row times ``1 + eps``, and an MLP."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(
            nn.Linear(in_channels, out_channels),
            nn.BatchNorm1d(out_channels),
            nn.ReLU(),
            nn.Linear(out_channels, out_channels),
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        index = dst.view(-1, 1).expand(-1, x.size(1))
        out = x.new_zeros(x.size(0), x.size(1)).scatter_add(0, index, x[src])
        return self.mlp((1 + self.eps) * x + out)


class EdgeGAT(nn.Module):
    """After gordicaleksa/pytorch-GAT, its third version, with PyG's ``softmax``."""

    def __init__(self, in_channels: int, out_channels: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.channels = heads, out_channels // heads
        self.lin = nn.Linear(in_channels, heads * self.channels, bias=False)
        self.source, self.target = nn.Linear(in_channels, heads), nn.Linear(in_channels, heads)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        n = x.shape[0]
        scores = F.leaky_relu(self.source(x)[src] + self.target(x)[dst], 0.2)
        attention = softmax(scores, dst, num_nodes=n)
        h = self.lin(x).view(-1, self.heads, self.channels)
        out = scatter(h[src] * attention.unsqueeze(-1), dst, dim=0, dim_size=n, reduce="sum")
        return out.view(-1, self.heads * self.channels)


class WrittenSoftmax(nn.Module):
    """After Diego999/pyGAT's sparse layer: a softmax by hand, with the maximum of each node."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin, self.source = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, 1)
        self.target = nn.Linear(in_channels, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        n, h = x.size(0), self.lin(x)
        e = F.leaky_relu(self.source(x)[src] + self.target(x)[dst])
        most = scatter(e.detach(), dst, dim=0, dim_size=n, reduce="max")
        e = torch.exp(e - most[dst])
        total = torch.zeros(n, 1, dtype=x.dtype).index_add_(0, dst, e)
        return torch.zeros_like(h).index_add_(0, dst, e / (total[dst] + 1e-16) * h[src])


class SafeSoftmax(nn.Module):
    """After softmaxes by hand that subtract each node's largest score, which begins at minus infinity."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin, self.score = nn.Linear(in_channels, out_channels), nn.Linear(2 * out_channels, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        (src, dst), x = edge_index, self.lin(x)
        scores = F.leaky_relu(self.score(torch.cat([x[src], x[dst]], dim=1)), 0.2).squeeze(-1)
        top = torch.full((x.size(0),), float("-inf"), dtype=x.dtype, device=x.device)
        top = top.scatter_reduce(0, dst, scores.detach(), "amax", include_self=False)
        e = torch.exp(scores - top[dst])
        total = torch.zeros(x.size(0), dtype=x.dtype, device=x.device).index_add_(0, dst, e)
        return torch.zeros_like(x).index_add_(0, dst, (e / total[dst]).unsqueeze(-1) * x[src])


class Segments(nn.Module):
    """After users of torch-scatter's ``segment_csr``: edges are sorted first, here for PyG's ``segment``."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        dst, order = edge_index[1].sort(stable=True)
        counts = torch.bincount(dst, minlength=x.size(0))
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return self.own(x) + self.others(segment(x[edge_index[0][order]], starts, reduce="mean"))


class GatedGCN(nn.Module):
    """After graphdeeplearning/benchmarking-gnns: gates of both ends and the edge, normalised by their sum."""

    def __init__(self, in_channels: int, out_channels: int, edge_channels: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)
        self.d, self.e = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)
        self.c = nn.Linear(edge_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        src, dst = edge_index
        gates = torch.sigmoid(self.d(x)[src] + self.e(x)[dst] + self.c(edge_attr))
        own = self.a(x)
        summed = scatter(gates * self.b(x)[src], dst, dim=0, dim_size=x.size(0), reduce="sum")
        total = scatter(gates, dst, dim=0, dim_size=x.size(0), reduce="sum")
        return F.relu(own + summed / (total + 1e-6))


class MeshBlock(nn.Module):
    """After deepmind/deepmind-research's meshgraphnets: MLPs of edges and of nodes, with layer norms."""

    def __init__(self, width: int, edge_channels: int) -> None:
        super().__init__()
        self.edges = nn.Sequential(
            nn.Linear(2 * width + edge_channels, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
        )
        self.nodes = nn.Sequential(
            nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width)
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        senders, receivers = edge_index
        edges = self.edges(torch.cat([x[senders], x[receivers], edge_attr], dim=-1))
        summed = torch.zeros_like(x).index_add_(0, receivers, edges)
        return x + self.nodes(torch.cat([x, summed], dim=-1))


def segment_sum(data: Tensor, ids: Tensor, count: int) -> Tensor:
    """Sum rows by their ids, as vgsatorras/egnn does."""
    out = data.new_full((count, data.size(1)), 0)
    out.scatter_add_(0, ids.unsqueeze(-1).expand(-1, data.size(1)), data)
    return out


class DistanceLayer(nn.Module):
    """After vgsatorras/egnn, without moving coordinates: messages of both ends and their distance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edges = nn.Sequential(
            nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.nodes = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: Tensor, edge_index: Tensor, place: Tensor) -> Tensor:
        col, row = edge_index
        distance = (place[row] - place[col]).pow(2).sum(dim=1, keepdim=True)
        messages = self.edges(torch.cat([x[row], x[col], distance], dim=1))
        summed = segment_sum(messages, row, x.size(0))
        return x + self.nodes(torch.cat([x, summed], dim=1))


class DynamicMax(nn.Module):
    """After WangYueFt/dgcnn: the maximum of an MLP of the node and the differences to its neighbours."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(2 * in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        messages = F.leaky_relu(self.lin(torch.cat([x[dst], x[src] - x[dst]], dim=1)), 0.2)
        zeros = x.new_zeros(x.size(0), messages.size(1))
        index = dst.unsqueeze(-1).expand_as(messages)
        return zeros.scatter_reduce(0, index, messages, reduce="amax", include_self=False)


class LightGCN(nn.Module):
    """After gusye1234/LightGCN-PyTorch: the mean of the rows of all layers."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.encode, self.layers = nn.Linear(s.channels, s.classes), s.layers

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        deg = degree(dst, x.size(0), dtype=x.dtype)
        scale = deg.clamp(min=1).pow(-0.5)
        weight = (scale[src] * scale[dst]).view(-1, 1)
        x = self.encode(x)
        total = x
        for _ in range(self.layers):
            x = torch.zeros_like(x).index_add(0, dst, x[src] * weight)
            total = total + x
        return total / (self.layers + 1)


class WeightedSum(nn.Module):
    """After gnn tutorials with weights: each neighbour times the weight of its edge."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        x = self.lin(x)
        src, dst = edge_index
        return scatter(x[src] * edge_weight[:, None], dst, dim=0, dim_size=x.size(0), reduce="sum")


class Net(nn.Module):
    """Layers with ReLU and dropout between them.

    Args:
        make: makes a layer of two widths.
        s: the sizes.
    """

    def __init__(self, make: Callable[[int, int], nn.Module], s: Sizes) -> None:
        super().__init__()
        widths = [s.channels] + [s.hidden] * (s.layers - 1)
        self.layers = nn.ModuleList(make(*pair) for pair in pairwise([*widths, s.hidden]))
        self.head, self.dropout = nn.Linear(s.hidden, s.classes), s.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x, edge_index)), self.dropout, self.training)
        return self.head(x)


class EdgeNet(Net):
    """The same with features of edges."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(layer(x, edge_index, edge_attr), self.dropout, self.training)
        return self.head(x)


class WeightNet(Net):
    """The same with weights of edges."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x, edge_index, edge_weight))
        return self.head(x)


class Encoded(nn.Module):
    """A linear map, layers of one width, and a linear map."""

    def __init__(self, make: Callable[[int], nn.Module], s: Sizes) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(s.channels, s.hidden), nn.Linear(s.hidden, s.classes)
        self.place = nn.Linear(s.channels, 3)
        self.layers = nn.ModuleList(make(s.hidden) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        place, x = self.place(x), self.encode(x)
        for layer in self.layers:
            x = layer(x, edge_index, place)
        return self.decode(x)


class Mesh(Encoded):
    """The same with features of edges."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = self.encode(x)
        for layer in self.layers:
            x = layer(x, edge_index, edge_attr)
        return self.decode(x)


def _gated(s: Sizes) -> nn.Module:
    return EdgeNet(lambda i, o: GatedGCN(i, o, s.edge_channels), s)


_F = "plain forward"
MODELS = [
    Listed(_F, "GCN of gathers and index_add", lambda s: Net(LoopedGCN, s)),
    Listed(_F, "mean by PyG's scatter", lambda s: Net(ScatteredMean, s)),
    Listed(_F, "sum divided by degrees", lambda s: Net(DividedSum, s)),
    Listed(_F, "powerful-gnns, scatter_add", lambda s: Net(SummedGIN, s)),
    Listed(_F, "pytorch-GAT, softmax of PyG", lambda s: Net(EdgeGAT, s)),
    Listed(_F, "pyGAT, softmax by hand", lambda s: Net(WrittenSoftmax, s)),
    Listed(_F, "softmax by hand, maximum from -inf", lambda s: Net(SafeSoftmax, s)),
    Listed(_F, "segments of sorted edges", lambda s: Net(Segments, s)),
    Listed(_F, "benchmarking-gnns GatedGCN", _gated, "edges"),
    Listed(_F, "meshgraphnets", lambda s: Mesh(lambda w: MeshBlock(w, s.edge_channels), s), "edges"),
    Listed(_F, "egnn, distances", lambda s: Encoded(DistanceLayer, s)),
    Listed(_F, "dgcnn, scatter_reduce amax", lambda s: Net(DynamicMax, s)),
    Listed(_F, "LightGCN-PyTorch", LightGCN),
    Listed(_F, "edge weights", lambda s: WeightNet(WeightedSum, s), "weights"),
]
