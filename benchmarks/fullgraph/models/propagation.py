"""Models of propagating and spectral layers, deep residual layers, and layers of points and edges."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    APPNP,
    AGNNConv,
    ARMAConv,
    ChebConv,
    ClusterGCNConv,
    DeepGCNLayer,
    EdgeConv,
    EGConv,
    FAConv,
    GCN2Conv,
    GENConv,
    LEConv,
    LGConv,
    MFConv,
    MixHopConv,
    NNConv,
    PNAConv,
    PointNetConv,
    ResGatedGraphConv,
    SGConv,
    SSGConv,
    TAGConv,
)

from benchmarks.fullgraph.models.listed import CACHED, EMBEDDED, Listed, Sizes


class ExampleSGC(nn.Module):
    """After pytorch_geometric/examples/sgc.py: takes the data, one cached layer."""

    def __init__(self, s: Sizes, *, cached: bool = True) -> None:
        super().__init__()
        self.conv1 = SGConv(s.channels, s.classes, K=2, cached=cached)

    def forward(self, data: Any) -> Tensor:
        x = self.conv1(data.x, data.edge_index)
        return F.log_softmax(x, dim=1)


class ExampleTAG(nn.Module):
    """After pytorch_geometric/examples/tagcn.py."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1, self.conv2 = TAGConv(s.channels, s.hidden), TAGConv(s.hidden, s.classes)
        self.p = s.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, p=self.p, training=self.training)
        return F.log_softmax(self.conv2(x, edge_index), dim=1)


class SpectralNet(nn.Module):
    """After ChebNet on graphs with weights."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1, self.conv2 = ChebConv(s.channels, s.hidden, K=3), ChebConv(s.hidden, s.classes, K=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.conv2(F.relu(self.conv1(x, edge_index, edge_weight)), edge_index, edge_weight)


class ExampleArma(nn.Module):
    """After pytorch_geometric/examples/arma.py."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        options: dict[str, Any] = {"num_stacks": 3, "num_layers": 2, "shared_weights": True}
        self.conv1 = ARMAConv(s.channels, s.hidden, dropout=0.5 * s.dropout, **options)
        self.conv2 = ARMAConv(s.hidden, s.classes, act=lambda x: x, **options)
        self.p = s.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(x, training=self.training, p=self.p)
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, training=self.training, p=self.p)
        return F.log_softmax(self.conv2(x, edge_index), dim=1)


class ExampleDeeper(nn.Module):
    """After pytorch_geometric/examples/ogbn_proteins_deepgcn.py: GENConv in DeepGCNLayer."""

    def __init__(self, s: Sizes, *, edges: bool) -> None:
        super().__init__()
        self.edges = edges
        self.node_encoder = nn.Linear(s.channels, s.hidden)
        self.edge_encoder = nn.Linear(s.edge_channels, s.hidden)
        self.layers = nn.ModuleList()
        for i in range(1, 3):
            conv = GENConv(
                s.hidden, s.hidden, aggr="softmax", t=1.0, learn_t=True, num_layers=2, norm="layer"
            )
            norm, act = nn.LayerNorm(s.hidden, elementwise_affine=True), nn.ReLU(inplace=True)
            self.layers.append(
                DeepGCNLayer(conv, norm, act, block="res+", dropout=0.2 * s.dropout, ckpt_grad=i % 3 == 0)
            )
        self.lin = nn.Linear(s.hidden, s.classes)
        self.p = 0.2 * s.dropout

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        x = self.node_encoder(x)
        edge_attr = self.edge_encoder(edge_attr) if self.edges else None
        x = self.layers[0].conv(x, edge_index, edge_attr)
        for layer in self.layers[1:]:
            x = layer(x, edge_index, edge_attr)
        x = self.layers[0].act(self.layers[0].norm(x))
        x = F.dropout(x, p=self.p, training=self.training)
        return self.lin(x)


class GeneralisedSum(nn.Module):
    """After deep_gcns_torch: GENConv with a power mean, and a plain sum."""

    def __init__(self, s: Sizes, aggr: str) -> None:
        super().__init__()
        self.lin = nn.Linear(s.channels, s.hidden)
        self.conv = GENConv(s.hidden, s.hidden, aggr=aggr)
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.out(F.relu(self.conv(F.relu(self.lin(x)), edge_index)))


class ExampleGCN2(nn.Module):
    """After pytorch_geometric/examples/gcn2_cora.py: x_0 in every layer."""

    def __init__(self, s: Sizes, *, shared: bool = True) -> None:
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(s.channels, s.hidden), nn.Linear(s.hidden, s.classes)])
        self.convs = nn.ModuleList(
            [
                GCN2Conv(s.hidden, 0.1, 0.5, layer + 1, shared_weights=shared, normalize=True)
                for layer in range(4)
            ]
        )
        self.dropout = s.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(x, self.dropout, training=self.training)
        x = x_0 = self.lins[0](x).relu()
        for conv in self.convs:
            x = F.dropout(x, self.dropout, training=self.training)
            x = conv(x, x_0, edge_index)
            x = x.relu()
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.lins[1](x)
        return x.log_softmax(dim=-1)


class Predicted(nn.Module):
    """After pytorch_geometric/benchmark/citation/appnp.py: a perceptron, then propagation."""

    def __init__(self, s: Sizes, propagate: nn.Module) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(s.channels, s.hidden), nn.Linear(s.hidden, s.classes)
        self.prop1 = propagate
        self.dropout = s.dropout

    def forward(self, data: Any) -> Tensor:
        x, edge_index = data.x, data.edge_index
        x = F.dropout(x, p=self.dropout, training=self.training)
        x = F.relu(self.lin1(x))
        x = F.dropout(x, p=self.dropout, training=self.training)
        x = self.lin2(x)
        x = self.prop1(x, edge_index)
        return F.log_softmax(x, dim=1)


class LightGCNNet(nn.Module):
    """After LightGCN: an embedding of all nodes, and a weighted sum of what LGConv makes of it."""

    def __init__(self, s: Sizes, *, by_id: bool = False) -> None:
        super().__init__()
        self.by_id = by_id
        self.embedding = nn.Embedding(s.nodes, s.classes)
        self.convs = nn.ModuleList([LGConv() for _ in range(s.layers)])
        self.register_buffer("alpha", torch.full((s.layers + 1,), 1 / (s.layers + 1)))

    def forward(self, edge_index: Tensor, n_id: Tensor) -> Tensor:
        x = self.embedding(n_id) if self.by_id else self.embedding.weight
        out = x * self.alpha[0]
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            out = out + x * self.alpha[i + 1]
        return out


class Pair(nn.Module):
    """Two of a layer that changes widths, as in PyG's test models of its many layers."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = first, second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(F.relu(self.conv1(x, edge_index)), edge_index)


class FrequencyNet(nn.Module):
    """After FAGCN: each layer reads the first rows, too."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.t1, self.t2 = nn.Linear(s.channels, s.hidden), nn.Linear(s.hidden, s.classes)
        self.convs = nn.ModuleList([FAConv(s.hidden, eps=0.2) for _ in range(2)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        raw = h = torch.relu(self.t1(x))
        for conv in self.convs:
            h = conv(h, raw, edge_index)
        return F.log_softmax(self.t2(h), 1)


class MixedHops(nn.Module):
    """After MixHop: powers of the adjacency side by side."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1 = MixHopConv(s.channels, s.hidden, powers=[0, 1, 2])
        self.norm = nn.BatchNorm1d(3 * s.hidden)
        self.conv2 = MixHopConv(3 * s.hidden, s.hidden, powers=[0, 1])
        self.lin = nn.Linear(2 * s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.conv2(F.relu(self.norm(self.conv1(x, edge_index))), edge_index))


class AttentiveProp(nn.Module):
    """After pytorch_geometric/examples/agnn.py."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(s.channels, s.hidden), nn.Linear(s.hidden, s.classes)
        self.prop1, self.prop2 = AGNNConv(requires_grad=False), AGNNConv(requires_grad=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.lin1(x))
        x = self.prop1(x, edge_index)
        x = self.prop2(x, edge_index)
        return F.log_softmax(self.lin2(x), dim=1)


class PrincipalNet(nn.Module):
    """After pytorch_geometric/examples/pna.py: several aggregators and scalers, towers, BatchNorm."""

    def __init__(self, s: Sizes, *, towers: int = 1, edges: bool = False) -> None:
        super().__init__()
        self.edges = edges
        self.node_emb = nn.Linear(s.channels, s.hidden)
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            conv = PNAConv(
                s.hidden,
                s.hidden,
                aggregators=["mean", "min", "max", "std"],
                scalers=["identity", "amplification", "attenuation"],
                deg=torch.tensor([4, 10, 12, 8, 4]),
                edge_dim=s.edge_channels if edges else None,
                towers=towers,
                pre_layers=1,
                post_layers=1,
                divide_input=False,
            )
            self.convs.append(conv)
            self.norms.append(nn.BatchNorm1d(s.hidden))
        self.mlp = nn.Sequential(nn.Linear(s.hidden, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.classes))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        x = self.node_emb(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x, edge_index, edge_attr)))
        return self.mlp(x)


class MoleculeNet(nn.Module):
    """After pytorch_geometric/examples/qm9_nn_conv.py, for nodes: NNConv and a GRU."""

    def __init__(self, s: Sizes, steps: int = 2, aggr: str = "mean") -> None:
        super().__init__()
        self.steps = steps
        self.lin0 = torch.nn.Linear(s.channels, s.hidden)
        network = nn.Sequential(nn.Linear(s.edge_channels, 8), nn.ReLU(), nn.Linear(8, s.hidden * s.hidden))
        self.conv = NNConv(s.hidden, s.hidden, network, aggr=aggr)
        self.gru = nn.GRU(s.hidden, s.hidden)
        self.lin = nn.Linear(s.hidden, s.classes)

    def forward(self, data: Any) -> Tensor:
        out = F.relu(self.lin0(data.x))
        h = out.unsqueeze(0)
        for _ in range(self.steps):
            m = F.relu(self.conv(out, data.edge_index, data.edge_attr))
            out, h = self.gru(m.unsqueeze(0), h)
            out = out.squeeze(0)
        return self.lin(out)


class PlainNNConv(nn.Module):
    """After edge-conditioned convolutions on superpixels (examples/mnist_nn_conv.py)."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        nn1 = nn.Sequential(nn.Linear(s.edge_channels, 8), nn.ReLU(), nn.Linear(8, s.channels * s.hidden))
        self.conv1 = NNConv(s.channels, s.hidden, nn1, aggr="add")
        self.fc = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.fc(F.elu(self.conv1(x, edge_index, edge_attr)))


class EdgeNet(nn.Module):
    """After pytorch_geometric/examples/dgcnn_segmentation.py, on given edges."""

    def __init__(self, s: Sizes, aggr: str = "max") -> None:
        super().__init__()

        def mlp(i: int, o: int) -> nn.Module:
            return nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o))

        self.conv1 = EdgeConv(mlp(2 * s.channels, s.hidden), aggr)
        self.conv2 = EdgeConv(mlp(2 * s.hidden, s.hidden), aggr)
        self.lin = nn.Linear(2 * s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x1 = self.conv1(x, edge_index)
        x2 = self.conv2(x1, edge_index)
        return self.lin(torch.cat([x1, x2], dim=1))


class PointsNet(nn.Module):
    """After pytorch_geometric/examples/pointnet2_classification.py, on given edges."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        local = nn.Sequential(nn.Linear(s.channels + 3, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.hidden))
        self.conv = PointNetConv(local, add_self_loops=False)
        self.lin = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.conv(x, pos, edge_index).relu())


def _pair(kind: Any, **options: Any) -> Any:
    return lambda s: Pair(kind(s.channels, s.hidden, **options), kind(s.hidden, s.classes, **options))


MODELS = [
    Listed("spectral", "example sgc.py", ExampleSGC, batched=CACHED),
    Listed("spectral", "example tagcn.py", ExampleTAG),
    Listed("spectral", "ChebNet, edge weights", SpectralNet, "weights"),
    Listed("spectral", "example arma.py", ExampleArma),
    Listed("GEN", "deep GENConv, softmax", lambda s: ExampleDeeper(s, edges=False)),
    Listed("GEN", "example ogbn_proteins_deepgcn.py", lambda s: ExampleDeeper(s, edges=True), "edges"),
    Listed("GEN", "GENConv, sum", lambda s: GeneralisedSum(s, "add")),
    Listed("propagation", "example gcn2_cora.py", ExampleGCN2),
    Listed("propagation", "example gcn2, two weights", lambda s: ExampleGCN2(s, shared=False)),
    Listed("propagation", "benchmark/citation/appnp.py", lambda s: Predicted(s, APPNP(10, 0.1))),
    Listed("propagation", "SSGC", _pair(SSGConv, alpha=0.1, K=2)),
    Listed("propagation", "LightGCN", LightGCNNet, batched=EMBEDDED),
    Listed("propagation", "FAGCN", FrequencyNet),
    Listed("propagation", "MixHop", MixedHops),
    Listed("propagation", "example agnn.py", AttentiveProp),
    Listed("propagation", "ClusterGCNConv", _pair(ClusterGCNConv)),
    Listed("propagation", "LEConv", _pair(LEConv)),
    Listed("propagation", "MFConv", _pair(MFConv, max_degree=4)),
    Listed("propagation", "ResGatedGraphConv", _pair(ResGatedGraphConv)),
    Listed("propagation", "EGConv", lambda s: Pair(EGConv(s.channels, 8), EGConv(8, 8 * s.classes))),
    Listed("PNA", "example pna.py", PrincipalNet, tolerance=10.0),
    Listed("PNA", "towers", lambda s: PrincipalNet(s, towers=2), tolerance=10.0),
    Listed("PNA", "edge features", lambda s: PrincipalNet(s, edges=True), "edges", tolerance=10.0),
    Listed("NNConv", "example qm9_nn_conv.py, GRU", MoleculeNet, "edges"),
    Listed("NNConv", "edge-conditioned, sum", PlainNNConv, "edges"),
    Listed("EdgeConv", "example dgcnn, max", EdgeNet),
    Listed("EdgeConv", "sum", lambda s: EdgeNet(s, "add")),
    Listed("EdgeConv", "PointNet++", PointsNet, "points"),
]
