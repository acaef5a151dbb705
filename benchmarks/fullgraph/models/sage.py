"""Models of SAGEConv and GraphConv: PyG's examples, OGB baselines, and published repositories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import MLP, GraphConv, GraphNorm, GraphSAGE, JumpingKnowledge, SAGEConv, Sequential

from benchmarks.fullgraph.models.listed import Listed, Sizes


class ProductsSAGE(nn.Module):
    """After pytorch_geometric/examples/ogbn_products_sage.py, its call over the whole graph."""

    def __init__(self, s: Sizes, **options: Any) -> None:
        super().__init__()
        self.num_layers, self.p = s.layers, s.dropout
        self.convs = nn.ModuleList()
        self.convs.append(SAGEConv(s.channels, s.hidden, **options))
        for _ in range(self.num_layers - 2):
            self.convs.append(SAGEConv(s.hidden, s.hidden, **options))
        self.convs.append(SAGEConv(s.hidden, s.classes, **options))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i in range(self.num_layers):
            x = self.convs[i](x, edge_index)
            if i != self.num_layers - 1:
                x = F.relu(x)
                x = F.dropout(x, p=self.p, training=self.training)
        return x


class RedditSAGE(nn.Module):
    """After pytorch_geometric/examples/reddit.py: relu_ and a test on the last layer."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.p = s.dropout
        self.convs = nn.ModuleList([SAGEConv(s.channels, s.hidden), SAGEConv(s.hidden, s.classes)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if i < len(self.convs) - 1:
                x = x.relu_()
                x = F.dropout(x, p=self.p, training=self.training)
        return x


class ArxivSAGE(nn.Module):
    """After ogb/examples/nodeproppred/arxiv/gnn.py, on a sparse matrix."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        widths = [s.channels] + [s.hidden] * (s.layers - 1) + [s.classes]
        self.convs = nn.ModuleList([SAGEConv(widths[i], widths[i + 1]) for i in range(s.layers)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(s.hidden) for _ in range(s.layers - 1)])
        self.dropout = s.dropout

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs[:-1]):
            x = conv(x, adj_t)
            x = self.bns[i](x)
            x = F.relu(x)
            x = F.dropout(x, p=self.dropout, training=self.training)
        x = self.convs[-1](x, adj_t)
        return x.log_softmax(dim=-1)


class TunedSAGE(nn.Module):
    """After tunedGNN/large_graph/model.py: linear residuals, BatchNorm, a running sum."""

    def __init__(self, s: Sizes, *, jk: bool = True) -> None:
        super().__init__()
        self.dropout, self.jk = s.dropout, jk
        self.local_convs, self.lins, self.bns = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        channels = s.channels
        for _ in range(s.layers):
            self.local_convs.append(SAGEConv(channels, s.hidden))
            self.lins.append(nn.Linear(channels, s.hidden))
            self.bns.append(nn.BatchNorm1d(s.hidden))
            channels = s.hidden
        self.pred_local = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x_final = 0
        for i, local_conv in enumerate(self.local_convs):
            x = local_conv(x, edge_index) + self.lins[i](x)
            x = self.bns[i](x)
            x = F.relu(x)
            x = F.dropout(x, p=self.dropout, training=self.training)
            if self.jk:
                x_final = x_final + x
            else:
                x_final = x
        return self.pred_local(x_final)


class InceptionSAGE(nn.Module):
    """After GraphSAGE with inception-like residuals (leaderboards of ogbn-products): all layers joined."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(s.channels if i == 0 else s.hidden, s.hidden) for i in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(s.hidden) for _ in range(3)])
        self.res = nn.ModuleList([nn.Linear(s.channels, s.hidden), nn.Identity(), nn.Identity()])
        self.mlp = MLP([s.channels + 3 * s.hidden, 2 * s.hidden, s.classes], dropout=s.dropout)
        self.p = s.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        collect = [F.dropout(x, p=0.2 * self.p, training=self.training)]
        for conv, norm, res in zip(self.convs, self.norms, self.res, strict=True):
            h = norm(conv(x, edge_index))
            h = F.leaky_relu(h)
            h = F.dropout(h, p=self.p, training=self.training)
            x = h + 0.2 * res(x)
            collect.append(x)
        return self.mlp(torch.cat(collect, -1))


class LinkEncoder(nn.Module):
    """After ogb/examples/linkproppred/citation2/gnn.py: an encoder without a head."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(s.nodes, s.hidden)
        self.convs = nn.ModuleList([SAGEConv(s.channels + s.hidden, s.hidden), SAGEConv(s.hidden, s.classes)])
        self.dropout = s.dropout

    def forward(self, x: Tensor, edge_index: Tensor, n_id: Tensor) -> Tensor:
        x = torch.cat([x, self.emb(n_id)], dim=-1)
        for conv in self.convs[:-1]:
            x = conv(x, edge_index)
            x = F.relu(x)
            x = F.dropout(x, p=self.dropout, training=self.training)
        return self.convs[-1](x, edge_index)


class UnsupervisedSAGE(nn.Module):
    """After pytorch_geometric/examples/graph_sage_unsup.py: rows of length 1."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.model = GraphSAGE(s.channels, hidden_channels=s.hidden, num_layers=2)
        self.lin = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.model(x, edge_index)
        z = z / z.norm(dim=1, keepdim=True).clamp(min=1e-8)
        return self.lin(z)


class BlockSAGE(nn.Module):
    """After residual towers: blocks as modules of their own, each with norm, layer and feed-forward part."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(s.channels, s.hidden), nn.GELU())
        self.blocks = nn.ModuleList([self.Block(s.hidden, s.dropout) for _ in range(s.layers)])
        self.final = nn.Sequential(nn.LayerNorm(s.hidden), nn.Linear(s.hidden, s.classes))

    class Block(nn.Module):
        """After heterophilous-graphs/modules.py (yandex-research)."""

        def __init__(self, width: int, dropout: float) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.conv = SAGEConv(width, width)
            self.ffn = nn.Sequential(
                nn.Linear(width, 2 * width),
                nn.Dropout(dropout),
                nn.GELU(),
                nn.Linear(2 * width, width),
                nn.Dropout(dropout),
            )

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = x + self.conv(self.norm1(x), edge_index)
            return x + self.ffn(self.norm2(x))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, edge_index)
        return self.final(x)


class DataSAGE(nn.Module):
    """After course notebooks: takes the data, unpacks them, asks for sizes."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1 = SAGEConv(s.channels, s.hidden, aggr="max")
        self.conv2 = SAGEConv(s.hidden, s.hidden, aggr="mean", normalize=True)
        self.lin1, self.lin2 = nn.Linear(s.hidden, s.hidden // 2), nn.Linear(s.hidden // 2, s.classes)

    def forward(self, data: Any) -> Tensor:
        x, edge_index, _ = data.x, data.edge_index, data.num_nodes
        x = self.conv1(x, edge_index)
        x = F.relu(x)
        x = self.conv2(x, edge_index)
        x = F.relu(x)
        x = x.view(x.size(0), -1)
        x = torch.tanh(self.lin1(x))
        return self.lin2(x)


class WeightedJump(nn.Module):
    """After adaptive jumping: a softmax over learned numbers weighs the layers."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [SAGEConv(s.channels if i == 0 else s.hidden, s.hidden) for i in range(s.layers)]
        )
        self.weights = nn.Parameter(torch.zeros(s.layers))
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hs = []
        for conv in self.convs:
            x = F.silu(conv(x, edge_index))
            hs.append(x)
        share = torch.softmax(self.weights, dim=0)
        return self.out(sum(w * h for w, h in zip(share, hs, strict=True)))


class StackedJump(nn.Module):
    """After mean and maximum over a stack of the layers."""

    def __init__(self, s: Sizes, how: str) -> None:
        super().__init__()
        self.how = how
        self.convs = nn.ModuleList(
            [SAGEConv(s.channels if i == 0 else s.hidden, s.hidden) for i in range(s.layers)]
        )
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        xs = []
        for conv in self.convs:
            x = conv(x, edge_index).relu()
            xs.append(x)
        if self.how == "mean":
            return self.out(torch.stack(xs, dim=0).mean(dim=0))
        return self.out(torch.stack(xs, dim=-1).max(dim=-1)[0])


class ConcatEachSAGE(nn.Module):
    """After dense connections: each layer reads all before it."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        widths = [s.channels + i * s.hidden for i in range(s.layers + 1)]
        self.convs = nn.ModuleList([SAGEConv(width, s.hidden, aggr="sum") for width in widths[:-1]])
        self.bns = nn.ModuleList([nn.BatchNorm1d(s.hidden) for _ in range(s.layers)])
        self.lin = nn.Linear(widths[-1], s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, bn in zip(self.convs, self.bns, strict=True):
            x = torch.cat([x, F.relu(bn(conv(x, edge_index)))], dim=1)
        return self.lin(x)


class SpectralSAGE(nn.Module):
    """After discriminators of graph GANs: spectral norm of the head."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv = SAGEConv(s.channels, s.hidden)
        self.norm = GraphNorm(s.hidden)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(s.hidden, s.classes))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(F.leaky_relu(self.norm(self.conv(x, edge_index)), 0.2))


class Temperature(nn.Module):
    """After calibration (GATS, CaGCN): logits divided by a learned temperature."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.body = ProductsSAGE(s)
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.body(x, edge_index) / self.temperature


class HalvesSAGE(nn.Module):
    """After gated linear units: one half of the columns gates the other."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(s.channels, 2 * s.hidden), SAGEConv(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        a, b = self.conv1(x, edge_index).chunk(2, dim=-1)
        return self.conv2(a * torch.sigmoid(b), edge_index)


class WeightedGraphConv(nn.Module):
    """After pytorch_geometric/examples/graph_saint.py: three layers joined, edge weights."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1 = GraphConv(s.channels, s.hidden)
        self.conv2 = GraphConv(s.hidden, s.hidden)
        self.conv3 = GraphConv(s.hidden, s.hidden)
        self.lin = torch.nn.Linear(3 * s.hidden, s.classes)
        self.p = 0.4 * s.dropout

    def set_aggr(self, aggr: str) -> None:
        self.conv1.aggr = self.conv2.aggr = self.conv3.aggr = aggr

    def forward(self, x0: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        x1 = F.relu(self.conv1(x0, edge_index, edge_weight))
        x1 = F.dropout(x1, p=self.p, training=self.training)
        x2 = F.relu(self.conv2(x1, edge_index, edge_weight))
        x2 = F.dropout(x2, p=self.p, training=self.training)
        x3 = F.relu(self.conv3(x2, edge_index, edge_weight))
        x3 = F.dropout(x3, p=self.p, training=self.training)
        x = torch.cat([x1, x2, x3], dim=-1)
        return self.lin(x).log_softmax(dim=-1)


class HigherOrder(nn.Module):
    """After k-GNN's node encoders: GraphConv with mean, ELU and jumping knowledge."""

    def __init__(self, s: Sizes, aggr: str = "mean") -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [GraphConv(s.channels if i == 0 else s.hidden, s.hidden, aggr=aggr) for i in range(3)]
        )
        self.jk = JumpingKnowledge("max")
        self.fc1, self.fc2 = nn.Linear(s.hidden, s.hidden), nn.Linear(s.hidden, s.classes)
        self.p = s.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        xs = []
        for conv in self.convs:
            x = F.elu(conv(x, edge_index))
            xs.append(x)
        x = F.elu(self.fc1(self.jk(xs)))
        x = F.dropout(x, training=self.training, p=self.p)
        return F.log_softmax(self.fc2(x), dim=1)


def recommender(s: Sizes) -> nn.Module:
    """After encoders written with torch_geometric.nn.Sequential and GraphConv."""
    return Sequential(
        "x, edge_index, edge_weight",
        [
            (GraphConv(s.channels, s.hidden), "x, edge_index, edge_weight -> x"),
            nn.BatchNorm1d(s.hidden),
            nn.ReLU(),
            (GraphConv(s.hidden, s.classes), "x, edge_index, edge_weight -> x"),
        ],
    )


def _ready(**options: Any) -> Callable[[Sizes], nn.Module]:
    return lambda s: GraphSAGE(s.channels, s.hidden, s.layers, s.classes, dropout=s.dropout, **options)


def _sage(name: str, make: Callable[[Sizes], nn.Module], data: str = "nodes") -> Listed:
    return Listed("SAGE", name, make, data)


MODELS = [
    _sage("ogbn-products", ProductsSAGE),
    _sage("ogbn-products, max", lambda s: ProductsSAGE(s, aggr="max")),
    _sage("example reddit.py", RedditSAGE),
    _sage("ogbn-arxiv", ArxivSAGE, "simple"),
    _sage("tunedGNN, running sum", TunedSAGE),
    _sage("tunedGNN, last layer", lambda s: TunedSAGE(s, jk=False)),
    _sage("inception", InceptionSAGE),
    _sage("ogbl-citation2, embedding by id", LinkEncoder),
    _sage("example graph_sage_unsup.py", UnsupervisedSAGE),
    _sage("heterophilous-graphs, blocks", BlockSAGE),
    _sage("forward(data), max and mean", DataSAGE),
    _sage("weighted jumping", WeightedJump),
    _sage("mean of a stack", lambda s: StackedJump(s, "mean")),
    _sage("max of a stack along the last dimension", lambda s: StackedJump(s, "max")),
    _sage("dense connections", ConcatEachSAGE),
    _sage("GraphNorm and weight norm", SpectralSAGE),
    _sage("temperature", Temperature),
    _sage("gated linear unit", HalvesSAGE),
    _sage("ready, jk=max and project", _ready(jk="max", project=True)),
    _sage("ready, PReLU and BatchNorm", _ready(act="PReLU", norm="batch_norm")),
    Listed("GraphConv", "example graph_saint.py", WeightedGraphConv),
    Listed("GraphConv", "example graph_saint.py, edge weights", WeightedGraphConv, "weights"),
    Listed("GraphConv", "k-GNN, mean", HigherOrder),
    Listed("GraphConv", "k-GNN, max", lambda s: HigherOrder(s, "max")),
    Listed("GraphConv", "Sequential with edge weights", recommender, "weights"),
]
