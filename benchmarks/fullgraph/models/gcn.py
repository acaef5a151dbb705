"""Models of GCNConv: PyG's examples, OGB baselines, and published repositories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    GCN,
    BatchNorm,
    GCNConv,
    GraphNorm,
    JumpingKnowledge,
    LayerNorm,
    PairNorm,
    Sequential,
)
from torch_geometric.utils import degree, dropout_edge

from benchmarks.fullgraph.models.listed import CACHED, EMBEDDED, Batched, Listed, Sizes


class CoraNet(nn.Module):
    """After pytorch_geometric/examples/gcn.py."""

    def __init__(self, s: Sizes, *, cached: bool = True) -> None:
        super().__init__()
        self.p = s.dropout
        self.conv1 = GCNConv(s.channels, s.hidden, cached=cached, normalize=True)
        self.conv2 = GCNConv(s.hidden, s.classes, cached=cached, normalize=True)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        x = F.dropout(x, p=self.p, training=self.training)
        x = self.conv1(x, edge_index, edge_weight).relu()
        x = F.dropout(x, p=self.p, training=self.training)
        return self.conv2(x, edge_index, edge_weight)


class CitationNet(nn.Module):
    """After pytorch_geometric/benchmark/citation/gcn.py: takes the data."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.dropout = s.dropout
        self.conv1 = GCNConv(s.channels, s.hidden)
        self.conv2 = GCNConv(s.hidden, s.classes)

    def forward(self, data: Any) -> Tensor:
        x, edge_index = data.x, data.edge_index
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, p=self.dropout, training=self.training)
        x = self.conv2(x, edge_index)
        return F.log_softmax(x, dim=1)


class ArxivGCN(nn.Module):
    """After ogb/examples/nodeproppred/arxiv/gnn.py: a loop over lists, on a sparse matrix."""

    def __init__(self, s: Sizes, *, cached: bool = True) -> None:
        super().__init__()
        self.convs, self.bns = nn.ModuleList(), nn.ModuleList()
        self.convs.append(GCNConv(s.channels, s.hidden, cached=cached))
        self.bns.append(nn.BatchNorm1d(s.hidden))
        for _ in range(s.layers - 2):
            self.convs.append(GCNConv(s.hidden, s.hidden, cached=cached))
            self.bns.append(nn.BatchNorm1d(s.hidden))
        self.convs.append(GCNConv(s.hidden, s.classes, cached=cached))
        self.dropout = s.dropout

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs[:-1]):
            x = conv(x, adj_t)
            x = self.bns[i](x)
            x = F.relu(x)
            x = F.dropout(x, p=self.dropout, training=self.training)
        x = self.convs[-1](x, adj_t)
        return x.log_softmax(dim=-1)


class ProductsGCN(nn.Module):
    """After ogb/examples/nodeproppred/products/gnn.py: weights normalised beforehand."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        widths = [s.channels, *[s.hidden] * (s.layers - 1), s.classes]
        self.convs = nn.ModuleList(
            [GCNConv(i, o, normalize=False) for i, o in zip(widths[:-1], widths[1:], strict=True)]
        )
        self.dropout = s.dropout

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = conv(x, edge_index, edge_weight)
            x = F.relu(x)
            x = F.dropout(x, p=self.dropout, training=self.training)
        x = self.convs[-1](x, edge_index, edge_weight)
        return torch.log_softmax(x, dim=-1)


class TunedGCN(nn.Module):
    """After tunedGNN/medium_graph/model.py: residuals by linear maps, norms, a running sum of the layers."""

    def __init__(
        self, s: Sizes, *, res: bool = False, ln: bool = False, bn: bool = False, jk: bool = False
    ) -> None:
        super().__init__()
        self.dropout, self.res, self.ln, self.bn, self.jk = s.dropout, res, ln, bn, jk
        self.h_lins, self.local_convs = nn.ModuleList(), nn.ModuleList()
        self.lins, self.lns, self.bns = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.lin_in = nn.Linear(s.channels, s.hidden)
        for _ in range(s.layers):
            self.local_convs.append(GCNConv(s.hidden, s.hidden, cached=False, normalize=True))
            self.lins.append(nn.Linear(s.hidden, s.hidden))
            self.lns.append(nn.LayerNorm(s.hidden))
            self.bns.append(nn.BatchNorm1d(s.hidden))
        self.pred_local = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin_in(x)
        x = F.dropout(x, p=self.dropout, training=self.training)
        x_final: Any = 0
        for i, local_conv in enumerate(self.local_convs):
            if self.res:
                x = local_conv(x, edge_index) + self.lins[i](x)
            else:
                x = local_conv(x, edge_index)
            if self.ln:
                x = self.lns[i](x)
            elif self.bn:
                x = self.bns[i](x)
            x = F.relu(x)
            x = F.dropout(x, p=self.dropout, training=self.training)
            x_final = x_final + x if self.jk else x
        return self.pred_local(x_final)


class SkipGCN(nn.Module):
    """After deep residual GCNs: pre-activation blocks with the identity beside them."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.encode = nn.Linear(s.channels, s.hidden)
        self.blocks = nn.ModuleList([GCNConv(s.hidden, s.hidden) for _ in range(2 * s.layers)])
        self.norms = nn.ModuleList([BatchNorm(s.hidden) for _ in range(2 * s.layers)])
        self.drop = nn.Dropout(s.dropout)
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encode(x)
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            identity = x
            x = self.drop(F.relu(norm(x)))
            x = conv(x, edge_index)
            x += identity
        return self.out(x)


class JumpGCN(nn.Module):
    """After jumping-knowledge networks: all layers' outputs are joined before the last map."""

    def __init__(self, s: Sizes, mode: str) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [GCNConv(s.channels if i == 0 else s.hidden, s.hidden) for i in range(s.layers)]
        )
        self.jump = JumpingKnowledge(mode, s.hidden, s.layers)
        self.lin = nn.Linear(s.hidden * (s.layers if mode == "cat" else 1), s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        xs = []
        for conv in self.convs:
            x = F.relu(conv(x, edge_index))
            xs += [x]
        return self.lin(self.jump(xs))


class SummedGCN(nn.Module):
    """After LightGCN-like heads: the mean of the layers' outputs, by Python's sum."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.lin = nn.Linear(s.channels, s.hidden)
        self.convs = nn.ModuleList([GCNConv(s.hidden, s.hidden) for _ in range(s.layers)])
        self.head = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x)
        outs = [x]
        for conv in self.convs:
            outs.append(conv(outs[-1], edge_index).tanh())
        return self.head(sum(outs) / len(outs))


class EmbeddedGCN(nn.Module):
    """After ogb/examples/linkproppred/ddi/gnn.py: a learned row of each node in place of features."""

    def __init__(self, s: Sizes, *, by_id: bool = False) -> None:
        super().__init__()
        self.by_id = by_id
        self.emb = nn.Embedding(s.nodes, s.hidden)
        self.convs = nn.ModuleList([GCNConv(s.hidden, s.hidden), GCNConv(s.hidden, s.classes)])
        self.dropout = s.dropout

    def forward(self, edge_index: Tensor, n_id: Tensor) -> Tensor:
        x = self.emb(n_id) if self.by_id else self.emb.weight
        for conv in self.convs[:-1]:
            x = F.dropout(F.relu(conv(x, edge_index)), p=self.dropout, training=self.training)
        return self.convs[-1](x, edge_index)


class FeaturesAndEmbedding(nn.Module):
    """After ogb/examples/linkproppred/collab (use_node_embedding): features beside a learned row."""

    def __init__(self, s: Sizes, *, by_id: bool = False) -> None:
        super().__init__()
        self.by_id = by_id
        self.node_emb = nn.Parameter(torch.randn(s.nodes, s.hidden))
        self.conv1 = GCNConv(s.channels + s.hidden, s.hidden)
        self.conv2 = GCNConv(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor, n_id: Tensor) -> Tensor:
        x = torch.cat([x, self.node_emb[n_id] if self.by_id else self.node_emb], dim=-1)
        x = self.conv1(x, edge_index).relu()
        return self.conv2(x, edge_index)


class VariationalEncoder(nn.Module):
    """After pytorch_geometric/examples/autoencoder.py: two results."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1 = GCNConv(s.channels, 2 * s.hidden)
        self.conv_mu = GCNConv(2 * s.hidden, s.classes)
        self.conv_logstd = GCNConv(2 * s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv1(x, edge_index).relu()
        return self.conv_mu(x, edge_index), self.conv_logstd(x, edge_index)


class NamedOutputs(nn.Module):
    """After multi-task heads: a dict of the embedding and of the classes."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(s.channels, s.hidden), GCNConv(s.hidden, s.hidden)
        self.head = nn.Sequential(nn.Linear(s.hidden, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.classes))

    def forward(self, x: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        h = F.elu(self.conv1(x, edge_index))
        h = self.conv2(h, edge_index)
        return {"embedding": h, "logits": self.head(h)}


def sequential(s: Sizes) -> nn.Module:
    """After the documentation of torch_geometric.nn.Sequential."""
    return Sequential(
        "x, edge_index",
        [
            (nn.Dropout(p=s.dropout), "x -> x"),
            (GCNConv(s.channels, s.hidden), "x, edge_index -> x1"),
            nn.ReLU(inplace=True),
            (GCNConv(s.hidden, s.hidden), "x1, edge_index -> x2"),
            nn.ReLU(inplace=True),
            (lambda x1, x2: [x1, x2], "x1, x2 -> xs"),
            (JumpingKnowledge("cat", s.hidden, num_layers=2), "xs -> x"),
            nn.Linear(2 * s.hidden, s.classes),
        ],
    )


class GraceEncoder(nn.Module):
    """After GRACE/model.py: the activation is an argument; a projection head as methods."""

    def __init__(self, s: Sizes, activation: Callable[[Tensor], Tensor] = F.relu, k: int = 2) -> None:
        super().__init__()
        self.k, self.activation = k, activation
        self.conv = [GCNConv(s.channels, 2 * s.hidden)]
        for _ in range(1, k - 1):
            self.conv.append(GCNConv(2 * s.hidden, 2 * s.hidden))
        self.conv.append(GCNConv(2 * s.hidden, s.hidden))
        self.conv = nn.ModuleList(self.conv)
        self.fc1, self.fc2 = nn.Linear(s.hidden, s.hidden), nn.Linear(s.hidden, s.classes)

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i in range(self.k):
            x = self.activation(self.conv[i](x, edge_index))
        return x

    def projection(self, z: Tensor) -> Tensor:
        return self.fc2(F.elu(self.fc1(z)))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.projection(self.encode(x, edge_index))


class InfomaxEncoder(nn.Module):
    """After pytorch_geometric/examples/infomax_transductive.py, with its summary beside the nodes' rows."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv = GCNConv(s.channels, s.hidden)
        self.prelu = nn.PReLU(s.hidden)
        self.lin = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.prelu(self.conv(x, edge_index))
        summary = torch.sigmoid(z.mean(dim=0))
        return self.lin(z * summary)


class LearnedResidual(nn.Module):
    """After residual weights that are learned: a number for each layer."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.lin = nn.Linear(s.channels, s.hidden)
        self.convs = nn.ModuleList([GCNConv(s.hidden, s.hidden, bias=False) for _ in range(s.layers)])
        self.alpha = nn.Parameter(torch.full((s.layers,), 0.3))
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = x0 = F.relu(self.lin(x))
        for i, conv in enumerate(self.convs):
            x = F.relu((1 - self.alpha[i]) * conv(x, edge_index) + self.alpha[i] * x0)
        return self.out(x)


class LayerScale(nn.Module):
    """After CaiT's LayerScale in deep GNNs: a learned factor for each column of a branch."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.lin = nn.Linear(s.channels, s.hidden)
        self.convs = nn.ModuleList([GCNConv(s.hidden, s.hidden) for _ in range(s.layers)])
        self.gammas = nn.ParameterList([nn.Parameter(0.1 * torch.ones(s.hidden)) for _ in range(s.layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(s.hidden) for _ in range(s.layers)])
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x)
        for conv, norm, gamma in zip(self.convs, self.norms, self.gammas, strict=True):
            x = x + gamma * F.gelu(conv(norm(x), edge_index))
        return self.out(x)


class GatedGCN(nn.Module):
    """After highway GCNs: a gate chooses between a layer's result and its input."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.lin_in = nn.Linear(s.channels, s.hidden)
        self.convs = nn.ModuleList([GCNConv(s.hidden, s.hidden) for _ in range(2)])
        self.gates = nn.ModuleList([nn.Linear(2 * s.hidden, s.hidden) for _ in range(2)])
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin_in(x).relu()
        for conv, gate in zip(self.convs, self.gates, strict=True):
            h = conv(x, edge_index).relu()
            z = torch.sigmoid(gate(torch.cat((h, x), dim=1)))
            x = z * h + (1 - z) * x
        return self.out(x)


class NormedGCN(nn.Module):
    """After comparisons of normalisations: any module between the layers."""

    def __init__(self, s: Sizes, make: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(s.channels, s.hidden), GCNConv(s.hidden, s.hidden)])
        self.norms = nn.ModuleList([make(s.hidden), make(s.hidden)])
        self.out = nn.Linear(s.hidden, s.classes)
        self.dropout = s.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.dropout(norm(conv(x, edge_index)).relu(), self.dropout, self.training)
        return self.out(x)


class CenteredGCN(nn.Module):
    """After PairNorm's own code (LingxiaoZhao/PairNorm): centred, and scaled by the mean length."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(s.channels, s.hidden), GCNConv(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index)
        x = x - x.mean(0)
        rownorm_mean = (1e-6 + x.pow(2).sum(dim=1).mean()).sqrt()
        x = F.relu(x / rownorm_mean)
        return self.conv2(x, edge_index)


class DropEdgeGCN(nn.Module):
    """After DropEdge, as in PyG's examples with dropout_edge."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(s.channels, s.hidden), GCNConv(s.hidden, s.classes)
        self.p = 0.4 * s.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = dropout_edge(edge_index, p=self.p, training=self.training)
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class TwoDirections(nn.Module):
    """After Dir-GNN (emalgorithm/directed-graph-neural-network): edges and turned edges."""

    def __init__(self, s: Sizes, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = alpha
        self.there = nn.ModuleList([GCNConv(s.channels, s.hidden), GCNConv(s.hidden, s.classes)])
        self.back = nn.ModuleList([GCNConv(s.channels, s.hidden), GCNConv(s.hidden, s.classes)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, (there, back) in enumerate(zip(self.there, self.back, strict=True)):
            x = self.alpha * there(x, edge_index) + (1 - self.alpha) * back(x, edge_index.flip(0))
            if i == 0:
                x = F.normalize(F.relu(x), p=2, dim=1)
        return x


class DegreeGCN(nn.Module):
    """After models that add degrees to the features."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(s.channels + 1, s.hidden), GCNConv(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        deg = degree(edge_index[1], x.size(0), dtype=x.dtype)
        x = torch.cat([x, torch.log(deg + 1).unsqueeze(-1)], dim=-1)
        return self.conv2(F.relu(self.conv1(x, edge_index)), edge_index)


class UnitGCN(nn.Module):
    """After contrastive encoders: rows of length 1 at the end, and a part of the columns as classes."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.num_classes = s.classes
        self.conv1, self.conv2 = GCNConv(s.channels, s.hidden), GCNConv(s.hidden, s.classes + 4)
        self.act = lambda x: F.leaky_relu(x, 0.2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.act(self.conv1(x, edge_index))
        x = F.normalize(self.conv2(x, edge_index), dim=-1)
        return x[:, : self.num_classes]


class AttentionBranch(nn.Module):
    """After SGFormer/medium/ours.py: a GCN beside attention among all nodes in linear time."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.lin = nn.Linear(s.channels, s.hidden)
        self.q, self.k, self.v = (nn.Linear(s.hidden, s.hidden) for _ in range(3))
        self.ln = nn.LayerNorm(s.hidden)
        self.convs = nn.ModuleList([GCNConv(s.channels, s.hidden), GCNConv(s.hidden, s.hidden)])
        self.fc = nn.Linear(s.hidden, s.classes)
        self.graph_weight = 0.8

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k = q / torch.norm(q, p=2), k / torch.norm(k, p=2)
        n = q.shape[0]
        numerator = q @ (k.t() @ v) + n * v
        denominator = (q @ k.sum(dim=0).unsqueeze(-1)) + n
        return self.ln((numerator / denominator + x) / 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x1, x2 = self.attend(F.relu(self.lin(x))), x
        for conv in self.convs:
            x2 = conv(x2, edge_index).relu()
        return self.fc(self.graph_weight * x2 + (1 - self.graph_weight) * x1)


class MLPBesideGCN(nn.Module):
    """After LINKX and H2GCN: the nodes' own rows apart from those of their neighbours."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.own = nn.Sequential(nn.utils.weight_norm(nn.Linear(s.channels, s.hidden)), nn.ReLU())
        self.conv1 = GCNConv(s.channels, s.hidden, add_self_loops=False)
        self.conv2 = GCNConv(s.hidden, s.hidden, add_self_loops=False)
        self.out = nn.Linear(3 * s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        own = self.own(x)
        one = self.conv1(x, edge_index)
        two = self.conv2(one, edge_index)
        return self.out(torch.cat([own, one, two], dim=1)).squeeze()


def ready(**options: Any) -> Callable[[Sizes], nn.Module]:
    """PyG's own ready model."""
    return lambda s: GCN(s.channels, s.hidden, s.layers, s.classes, dropout=s.dropout, **options)


def _listed(
    name: str, make: Callable[[Sizes], nn.Module], data: str = "nodes", batched: Batched | None = None
) -> Listed:
    return Listed("GCN", name, make, data, batched=batched)


MODELS = [
    _listed("example gcn.py", CoraNet, batched=CACHED),
    _listed("example gcn.py, edge weights", CoraNet, "weights", batched=CACHED),
    _listed("benchmark/citation", CitationNet),
    _listed("ogbn-arxiv", ArxivGCN, "simple", batched=CACHED),
    _listed("ogbn-products, normalised before", ProductsGCN, "normalised"),
    _listed("tunedGNN, residuals and LayerNorm", lambda s: TunedGCN(s, res=True, ln=True)),
    _listed("tunedGNN, BatchNorm and running sum", lambda s: TunedGCN(s, bn=True, jk=True)),
    _listed("pre-activation residual blocks", SkipGCN),
    _listed("jumping knowledge, cat", lambda s: JumpGCN(s, "cat")),
    _listed("jumping knowledge, max", lambda s: JumpGCN(s, "max")),
    _listed("jumping knowledge, lstm", lambda s: JumpGCN(s, "lstm")),
    _listed("mean of the layers by sum()", SummedGCN),
    _listed("ogbl-ddi, embedding", EmbeddedGCN, batched=EMBEDDED),
    _listed("ogbl-collab, features and embedding", FeaturesAndEmbedding, batched=EMBEDDED),
    _listed("example autoencoder.py, variational", VariationalEncoder),
    _listed("dict of outputs", NamedOutputs),
    _listed("Sequential of PyG", sequential),
    _listed("GRACE", GraceEncoder),
    _listed("infomax with summary", InfomaxEncoder),
    _listed("learned residual weights", LearnedResidual),
    _listed("LayerScale", LayerScale),
    _listed("highway gates", GatedGCN),
    _listed("GraphNorm", lambda s: NormedGCN(s, GraphNorm)),
    _listed("PairNorm", lambda s: NormedGCN(s, lambda _: PairNorm())),
    _listed("LayerNorm over the graph", lambda s: NormedGCN(s, LayerNorm)),
    _listed("RMSNorm", lambda s: NormedGCN(s, nn.RMSNorm)),
    _listed("PairNorm's own code", CenteredGCN),
    _listed("DropEdge", DropEdgeGCN),
    _listed("Dir-GNN", TwoDirections),
    _listed("degrees as features", DegreeGCN),
    _listed("unit rows and a slice", UnitGCN),
    _listed("SGFormer", AttentionBranch),
    _listed("own rows apart, weight_norm", MLPBesideGCN),
    _listed("ready, jk=cat and gelu", ready(jk="cat", act="gelu", norm="layer_norm")),
]
