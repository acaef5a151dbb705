"""Models of GINConv and GINEConv: PyG's examples, OGB baselines, and published repositories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GIN, MLP, BatchNorm, GINConv, GINEConv, GraphSizeNorm, JumpingKnowledge

from benchmarks.fullgraph.models.listed import Listed, Sizes


class ExampleGIN(nn.Module):
    """After pytorch_geometric/examples/mutag_gin.py, for nodes."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        channels = s.channels
        for _ in range(s.layers):
            mlp = MLP([channels, s.hidden, s.hidden])
            self.convs.append(GINConv(nn=mlp, train_eps=False))
            channels = s.hidden
        self.mlp = MLP([s.hidden, s.hidden, s.classes], norm=None, dropout=s.dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.mlp(x)


class BenchmarkGIN(nn.Module):
    """After pytorch_geometric/benchmark/kernel/gin.py: Sequential with BatchNorm inside, jumping."""

    def __init__(self, s: Sizes, mode: str = "cat", *, train_eps: bool = True) -> None:
        super().__init__()
        self.conv1 = GINConv(self.mlp(s.channels, s.hidden), train_eps=train_eps)
        self.convs = nn.ModuleList(
            [GINConv(self.mlp(s.hidden, s.hidden), train_eps=train_eps) for _ in range(s.layers - 1)]
        )
        self.jump = JumpingKnowledge(mode)
        self.lin1 = nn.Linear(s.layers * s.hidden if mode == "cat" else s.hidden, s.hidden)
        self.lin2 = nn.Linear(s.hidden, s.classes)
        self.p = s.dropout

    @staticmethod
    def mlp(i: int, o: int) -> nn.Module:
        return nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o), nn.ReLU(), nn.BatchNorm1d(o))

    def forward(self, data: Any) -> Tensor:
        x, edge_index = data.x, data.edge_index
        x = self.conv1(x, edge_index)
        xs = [x]
        for conv in self.convs:
            x = conv(x, edge_index)
            xs += [x]
        x = self.jump(xs)
        x = F.relu(self.lin1(x))
        x = F.dropout(x, p=self.p, training=self.training)
        x = self.lin2(x)
        return F.log_softmax(x, dim=-1)


class ScoredGIN(nn.Module):
    """After powerful-gnns: a linear head for each layer, whose scores add up."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.ginlayers, self.batch_norms = nn.ModuleList(), nn.ModuleList()
        self.linears_prediction = nn.ModuleList()
        for layer in range(s.layers):
            width = s.channels if layer == 0 else s.hidden
            mlp = nn.Sequential(nn.Linear(width, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.hidden))
            self.ginlayers.append(GINConv(mlp))
            self.batch_norms.append(nn.BatchNorm1d(s.hidden))
            self.linears_prediction.append(nn.Linear(width, s.classes))
        self.linears_prediction.append(nn.Linear(s.hidden, s.classes))
        self.drop = nn.Dropout(s.dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden_rep = [x]
        h = x
        for i, layer in enumerate(self.ginlayers):
            h = layer(h, edge_index)
            h = self.batch_norms[i](h)
            h = F.relu(h)
            hidden_rep.append(h)
        score = 0
        for i, h in enumerate(hidden_rep):
            score += self.drop(self.linears_prediction[i](h))
        return score


class ResidualGIN(nn.Module):
    """After ogb/examples/graphproppred/mol/conv.py: BatchNorm, dropout, residual, a sum of layers."""

    def __init__(self, s: Sizes, JK: str = "last", *, residual: bool = True) -> None:
        super().__init__()
        self.num_layer, self.JK, self.residual, self.drop_ratio = s.layers, JK, residual, s.dropout
        self.encoder = nn.Linear(s.channels, s.hidden)
        self.convs, self.batch_norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(s.layers):
            mlp = nn.Sequential(
                nn.Linear(s.hidden, 2 * s.hidden),
                nn.BatchNorm1d(2 * s.hidden),
                nn.ReLU(),
                nn.Linear(2 * s.hidden, s.hidden),
            )
            self.convs.append(GINConv(mlp, train_eps=True))
            self.batch_norms.append(nn.BatchNorm1d(s.hidden))
        self.head = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h_list = [self.encoder(x)]
        for layer in range(self.num_layer):
            h = self.convs[layer](h_list[layer], edge_index)
            h = self.batch_norms[layer](h)
            if layer == self.num_layer - 1:
                h = F.dropout(h, self.drop_ratio, training=self.training)
            else:
                h = F.dropout(F.relu(h), self.drop_ratio, training=self.training)
            if self.residual:
                h += h_list[layer]
            h_list.append(h)
        if self.JK == "last":
            node_representation = h_list[-1]
        else:
            node_representation = 0
            for layer in range(self.num_layer + 1):
                node_representation += h_list[layer]
        return self.head(node_representation)


class ApplyNodeFunc(nn.Module):
    """After benchmarking-gnns: the network inside GIN is a class of the user's."""

    def __init__(self, mlp: nn.Module, width: int) -> None:
        super().__init__()
        self.mlp, self.bn = mlp, nn.BatchNorm1d(width)

    def forward(self, h: Tensor) -> Tensor:
        h = self.mlp(h)
        h = self.bn(h)
        return F.relu(h)


class OwnInsideGIN(nn.Module):
    """After benchmarking-gnns/nets/gin_net.py."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embedding_h = nn.Linear(s.channels, s.hidden)
        self.layers = nn.ModuleList(
            [
                GINConv(ApplyNodeFunc(nn.Sequential(nn.Linear(s.hidden, s.hidden), nn.ReLU()), s.hidden))
                for _ in range(s.layers)
            ]
        )
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.embedding_h(x)
        for conv in self.layers:
            h_in = h
            h = conv(h, edge_index)
            h = h_in + h
        return self.out(h)


class VirtualNodeGIN(nn.Module):
    """After ogb's virtual node, of one graph: a row for the whole graph, which each layer moves."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.encoder = nn.Linear(s.channels, s.hidden)
        self.virtual = nn.Parameter(torch.zeros(1, s.hidden))
        self.convs = nn.ModuleList(
            [GINConv(nn.Sequential(nn.Linear(s.hidden, s.hidden), nn.ReLU())) for _ in range(2)]
        )
        self.mlp = nn.Sequential(nn.Linear(s.hidden, s.hidden), nn.ReLU())
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, virtual = self.encoder(x), self.virtual
        for conv in self.convs:
            x = x + virtual
            x = F.relu(conv(x, edge_index))
            virtual = virtual + self.mlp(x.mean(dim=0, keepdim=True))
        return self.out(x)


class SizeNormGIN(nn.Module):
    """After GraphSizeNorm and BatchNorm as in benchmarking-gnns (graph_norm)."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1 = GINConv(nn.Linear(s.channels, s.hidden))
        self.conv2 = GINConv(nn.Linear(s.hidden, s.hidden))
        self.size_norm, self.bn = GraphSizeNorm(), BatchNorm(s.hidden)
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.bn(self.size_norm(self.conv1(x, edge_index))))
        return self.out(F.relu(self.conv2(x, edge_index)))


class ActivatedGIN(nn.Module):
    """After factories of activations: chosen by name from torch.nn, layers in a ModuleDict."""

    def __init__(self, s: Sizes, act: str = "Mish") -> None:
        super().__init__()
        self.act = getattr(nn, act)()
        self.layers = nn.ModuleDict()
        for i in range(2):
            width = s.channels if i == 0 else s.hidden
            self.layers[f"gin{i}"] = GINConv(nn.Sequential(nn.Linear(width, s.hidden), self.act))
        self.layers["out"] = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for name, layer in self.layers.items():
            x = layer(x, edge_index) if name.startswith("gin") else layer(x)
        return x


class EdgeGIN(nn.Module):
    """After GraphGPS's GINE layers: edge features mapped by each layer."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.lin = nn.Linear(s.channels, s.hidden)
        self.convs = nn.ModuleList(
            [
                GINEConv(
                    nn.Sequential(nn.Linear(s.hidden, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.hidden)),
                    edge_dim=s.edge_channels,
                )
                for _ in range(2)
            ]
        )
        self.out = nn.Linear(s.hidden, s.classes)
        self.p = s.dropout

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = self.lin(x)
        for conv in self.convs:
            h = F.dropout(F.relu(conv(x, edge_index, edge_attr)), self.p, self.training)
            x = x + h
        return self.out(x)


class EncodedEdges(nn.Module):
    """After pytorch_geometric/examples/graph_gps.py and OGB's BondEncoder: edge features encoded once."""

    def __init__(self, s: Sizes, *, once: bool) -> None:
        super().__init__()
        self.once = once
        self.node_encoder = nn.Linear(s.channels, s.hidden)
        count = 1 if once else 2
        self.edge_encoders = nn.ModuleList([nn.Linear(s.edge_channels, s.hidden) for _ in range(count)])
        self.convs = nn.ModuleList(
            [
                GINEConv(nn.Sequential(nn.Linear(s.hidden, s.hidden), nn.ReLU()), train_eps=True)
                for _ in range(2)
            ]
        )
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = self.node_encoder(x)
        for i, conv in enumerate(self.convs):
            encoded = self.edge_encoders[0 if self.once else i](edge_attr)
            x = conv(x, edge_index, encoded).relu()
        return self.out(x)


class EdgeMLP(nn.Module):
    """After encoders of edge features by an MLP."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.edge_mlp = nn.Sequential(
            nn.Linear(s.edge_channels, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.channels)
        )
        self.conv = GINEConv(nn.Linear(s.channels, s.hidden))
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, data: Any) -> Tensor:
        edge_attr = self.edge_mlp(data.edge_attr)
        return self.out(self.conv(data.x, data.edge_index, edge_attr).relu())


def _gin(name: str, make: Callable[[Sizes], nn.Module], data: str = "nodes") -> Listed:
    return Listed("GIN", name, make, data)


def _ready(**options: Any) -> Callable[[Sizes], nn.Module]:
    return lambda s: GIN(s.channels, s.hidden, s.layers, s.classes, dropout=s.dropout, **options)


MODELS = [
    _gin("example mutag_gin.py", ExampleGIN),
    _gin("benchmark/kernel, cat", BenchmarkGIN),
    _gin("benchmark/kernel, max", lambda s: BenchmarkGIN(s, "max", train_eps=False)),
    _gin("powerful-gnns, scores of all layers", ScoredGIN),
    _gin("ogb mol, residual", ResidualGIN),
    _gin("ogb mol, JK=sum", lambda s: ResidualGIN(s, "sum", residual=False)),
    _gin("benchmarking-gnns, own class inside", OwnInsideGIN),
    _gin("virtual node", VirtualNodeGIN),
    _gin("GraphSizeNorm", SizeNormGIN),
    _gin("ModuleDict and Mish", ActivatedGIN),
    _gin("ready, train_eps and BatchNorm", _ready(train_eps=True, norm="batch_norm")),
    _gin("ready, GraphNorm", _ready(norm="graph_norm")),
    Listed("GINE", "GraphGPS, edge_dim", EdgeGIN, "edges"),
    Listed("GINE", "edges encoded once", lambda s: EncodedEdges(s, once=True), "edges"),
    Listed("GINE", "edges encoded by layer", lambda s: EncodedEdges(s, once=False), "edges"),
    Listed("GINE", "edges encoded by an MLP", EdgeMLP, "edges"),
]
