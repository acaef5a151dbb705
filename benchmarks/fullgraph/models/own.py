"""Models with message classes of their own, as in published repositories, and models over relations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    FastRGCNConv,
    GATConv,
    HeteroConv,
    HGTConv,
    MessagePassing,
    RGCNConv,
    SAGEConv,
    to_hetero,
)
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, degree, softmax

from benchmarks.fullgraph.models.listed import EMBEDDED, Listed, Sizes

EDGE_TYPES = [
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("paper", "rev_writes", "author"),
]
"""The relations of the data that models over types are called with; outputs are for papers."""
METADATA = (["paper", "author"], EDGE_TYPES)


# ---- layers with a message of their own


class DocumentedGCN(MessagePassing):
    """After PyG's tutorial on creating message passing networks."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        x = self.lin(x)
        row, col = edge_index
        deg = degree(col, x.size(0), dtype=x.dtype)
        deg_inv_sqrt = deg.pow(-0.5)
        deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
        norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
        return self.propagate(edge_index, x=x, norm=norm) + self.bias

    def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
        return norm.view(-1, 1) * x_j


class PlainSum(MessagePassing):
    """The neighbours' rows as they are: the commonest message."""

    def __init__(self, in_channels: int, out_channels: int, aggr: str = "mean") -> None:
        super().__init__(aggr=aggr)
        self.lin_l, self.lin_r = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.propagate(edge_index, x=(x, x), size=None)
        return F.normalize(self.lin_l(x) + self.lin_r(out), p=2, dim=-1)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j


class DifferenceConv(MessagePassing):
    """After EdgeConv in PyG's tutorial: an MLP of both ends and their difference."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="max")
        self.mlp = nn.Sequential(
            nn.Linear(2 * in_channels, out_channels), nn.ReLU(), nn.Linear(out_channels, out_channels)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.mlp(torch.cat([x_i, x_j - x_i], dim=1))


class GateConv(MessagePassing):
    """After gated graph networks: a sigmoid of both ends times a tanh of the neighbour."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="add")
        self.key, self.query = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)
        self.value, self.skip = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.propagate(edge_index, k=self.key(x), q=self.query(x), v=self.value(x))
        return out + self.skip(x)

    def message(self, k_i: Tensor, q_j: Tensor, v_j: Tensor) -> Tensor:
        return torch.sigmoid(k_i + q_j) * torch.tanh(v_j)


class EdgeSum(MessagePassing):
    """After ogb/examples/graphproppred/mol/conv.py: relu(x_j + edge embedding)."""

    def __init__(self, width: int, edge_channels: int) -> None:
        super().__init__(aggr="add")
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
        self.eps = nn.Parameter(torch.Tensor([0]))
        self.bond_encoder = nn.Linear(edge_channels, width)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edge_embedding = self.bond_encoder(edge_attr)
        return self.mlp((1 + self.eps) * x + self.propagate(edge_index, x=x, edge_attr=edge_embedding))

    def message(self, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        return F.relu(x_j + edge_attr)

    def update(self, aggr_out: Tensor) -> Tensor:
        return aggr_out


class WrittenAttention(MessagePassing):
    """After course solutions of GAT: the softmax inside the message."""

    def __init__(self, in_channels: int, out_channels: int, heads: int = 2) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.heads, self.out_channels = heads, out_channels
        self.lin = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.att_l = nn.Parameter(torch.randn(1, heads, out_channels))
        self.att_r = nn.Parameter(torch.randn(1, heads, out_channels))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x).view(-1, self.heads, self.out_channels)
        alpha_l, alpha_r = (x * self.att_l).sum(dim=-1), (x * self.att_r).sum(dim=-1)
        out = self.propagate(edge_index, x=x, alpha=(alpha_l, alpha_r))
        return out.view(-1, self.heads * self.out_channels)

    def message(
        self, x_j: Tensor, alpha_j: Tensor, alpha_i: Tensor, index: Tensor, size_i: int | None
    ) -> Tensor:
        alpha = F.leaky_relu(alpha_j + alpha_i, 0.2)
        alpha = softmax(alpha, index, num_nodes=size_i)
        return x_j * alpha.unsqueeze(-1)


class WeightedMessage(MessagePassing):
    """After diffusion layers of traffic models: the edge's weight times the row, and the row itself."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="add", flow="source_to_target")
        self.lin = nn.Linear(2 * in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        out = self.propagate(edge_index, x=x, edge_weight=edge_weight)
        return self.lin(torch.cat([x, out], dim=-1))

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return edge_weight.view(-1, 1) * x_j


class SeveralConv(MessagePassing):
    """After simplified PNA: several aggregations side by side."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr=["mean", "max", "std"])
        self.pre, self.post = nn.Linear(in_channels, out_channels), nn.Linear(4 * out_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.pre(x)
        return self.post(torch.cat([x, self.propagate(edge_index, x=x)], dim=-1))

    def message(self, x_j: Tensor) -> Tensor:
        return F.relu(x_j)


# ---- models of these layers


class OwnNet(nn.Module):
    """Two layers of one's own with dropout and a head."""

    def __init__(self, s: Sizes, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.lin = nn.Linear(s.channels, s.hidden)
        self.conv1, self.conv2 = make(s.hidden, s.hidden), make(s.hidden, s.hidden)
        self.out = nn.Linear(s.hidden * (2 if isinstance(self.conv2, WrittenAttention) else 1), s.classes)
        if isinstance(self.conv1, WrittenAttention):
            self.conv2 = make(2 * s.hidden, s.hidden)
        self.dropout = s.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.conv1(F.relu(self.lin(x)), edge_index))
        x = F.dropout(x, p=self.dropout, training=self.training)
        return self.out(F.relu(self.conv2(x, edge_index)))


class OwnEdges(nn.Module):
    """Layers of one's own that read edge features or weights."""

    def __init__(self, s: Sizes, *, weights: bool) -> None:
        super().__init__()
        self.lin, self.out = nn.Linear(s.channels, s.hidden), nn.Linear(s.hidden, s.classes)
        self.convs = nn.ModuleList(
            [
                WeightedMessage(s.hidden, s.hidden) if weights else EdgeSum(s.hidden, s.edge_channels)
                for _ in range(2)
            ]
        )


class OwnEdgeFeatures(OwnEdges):
    """Of edge features."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = self.lin(x)
        for conv in self.convs:
            x = F.relu(conv(x, edge_index, edge_attr)) + x
        return self.out(x)


class OwnEdgeWeights(OwnEdges):
    """Of edge weights."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        x = self.lin(x)
        for conv in self.convs:
            x = F.relu(conv(x, edge_index, edge_weight))
        return self.out(x)


class GPRProp(MessagePassing):
    """After GPRGNN: powers of the adjacency with a learned number each."""

    def __init__(self, K: int, alpha: float) -> None:
        super().__init__(aggr="add")
        self.K = K
        gamma = alpha * (1 - alpha) ** torch.arange(K + 1, dtype=torch.float)
        gamma[-1] = (1 - alpha) ** K
        self.temp = nn.Parameter(gamma)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        edge_index, norm = gcn_norm(edge_index, edge_weight, num_nodes=x.size(0), dtype=x.dtype)
        hidden = x * self.temp[0]
        for k in range(self.K):
            x = self.propagate(edge_index, x=x, norm=norm)
            hidden = hidden + self.temp[k + 1] * x
        return hidden

    def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
        return norm.view(-1, 1) * x_j


class GPRGNN(nn.Module):
    """After jianhao2016/GPRGNN."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(s.channels, s.hidden), nn.Linear(s.hidden, s.classes)
        self.prop1 = GPRProp(4, 0.1)
        self.dropout = s.dropout

    def forward(self, data: Any) -> Tensor:
        x, edge_index = data.x, data.edge_index
        x = F.dropout(x, p=self.dropout, training=self.training)
        x = F.relu(self.lin1(x))
        x = F.dropout(x, p=self.dropout, training=self.training)
        x = self.prop1(self.lin2(x), edge_index)
        return F.log_softmax(x, dim=1)


class DAGNNProp(MessagePassing):
    """After DAGNN (divelab/DeeperGNN): a score of each step for each node."""

    def __init__(self, num_classes: int, K: int) -> None:
        super().__init__(aggr="add")
        self.K, self.proj = K, nn.Linear(num_classes, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, norm = gcn_norm(edge_index, None, x.size(0), dtype=x.dtype)
        preds = [x]
        for _ in range(self.K):
            x = self.propagate(edge_index, x=x, norm=norm)
            preds.append(x)
        pps = torch.stack(preds, dim=1)
        retain_score = torch.sigmoid(self.proj(pps).squeeze())
        return torch.matmul(retain_score.unsqueeze(1), pps).squeeze()

    def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
        return norm.view(-1, 1) * x_j


class DAGNN(nn.Module):
    """After divelab/DeeperGNN."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(s.channels, s.hidden), nn.Linear(s.hidden, s.classes)
        self.prop = DAGNNProp(s.classes, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.prop(self.lin2(F.relu(self.lin1(x))), edge_index).log_softmax(dim=1)


# ---- relations


class ExampleRGCN(nn.Module):
    """After pytorch_geometric/examples/rgcn.py, with features or an embedding."""

    def __init__(self, s: Sizes, kind: Any = RGCNConv, **options: Any) -> None:
        super().__init__()
        self.conv1 = kind(s.channels, s.hidden, s.relations, **options)
        self.conv2 = kind(s.hidden, s.classes, s.relations, **options)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = F.relu(self.conv1(x, edge_index, edge_type))
        x = self.conv2(x, edge_index, edge_type)
        return F.log_softmax(x, dim=1)


class EmbeddedRGCN(nn.Module):
    """After pytorch_geometric/examples/rgcn_link_pred.py: an encoder of a learned row for each node."""

    def __init__(self, s: Sizes, *, by_id: bool = False) -> None:
        super().__init__()
        self.by_id = by_id
        self.node_emb = nn.Parameter(torch.randn(s.nodes, s.hidden))
        self.conv1 = RGCNConv(s.hidden, s.hidden, s.relations, num_blocks=2)
        self.conv2 = RGCNConv(s.hidden, s.classes, s.relations, num_bases=2)
        self.p = 0.4 * s.dropout

    def forward(self, edge_index: Tensor, edge_type: Tensor, n_id: Tensor) -> Tensor:
        x = self.node_emb[n_id] if self.by_id else self.node_emb
        x = self.conv1(x, edge_index, edge_type).relu_()
        x = F.dropout(x, p=self.p, training=self.training)
        return self.conv2(x, edge_index, edge_type)


class HeteroNet(nn.Module):
    """After pytorch_geometric/examples/hetero/hetero_conv_dblp.py."""

    def __init__(self, s: Sizes, make: Callable[[Any], nn.Module], aggr: str = "sum") -> None:
        super().__init__()
        self.lins = nn.ModuleDict({one: nn.Linear(s.channels, s.hidden) for one in ("paper", "author")})
        self.convs = nn.ModuleList(
            [HeteroConv({one: make(s.hidden) for one in EDGE_TYPES}, aggr=aggr) for _ in range(2)]
        )
        self.lin = nn.Linear(s.hidden, s.classes)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        x_dict = {key: self.lins[key](x).relu() for key, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
            x_dict = {key: F.leaky_relu(x) for key, x in x_dict.items()}
        return self.lin(x_dict["paper"])


class HGTNet(nn.Module):
    """After pytorch_geometric/examples/hetero/hgt_dblp.py."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.lin_dict = nn.ModuleDict({one: nn.Linear(s.channels, s.hidden) for one in METADATA[0]})
        self.conv = HGTConv(s.hidden, s.hidden, METADATA, 2)
        self.lin = nn.Linear(s.hidden, s.classes)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        x_dict = {key: self.lin_dict[key](x).relu_() for key, x in x_dict.items()}
        x_dict = self.conv(x_dict, edge_index_dict)
        return self.lin(x_dict["paper"])


class OneType(nn.Module):
    """After pytorch_geometric/examples/hetero/to_hetero_mag.py, before it is transformed."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1 = SAGEConv((s.channels, s.channels), s.hidden)
        self.conv2 = SAGEConv((s.hidden, s.hidden), s.hidden)
        self.lin = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        x = self.conv2(x, edge_index).relu()
        return self.lin(x)


def _own(name: str, make: Callable[[Sizes], nn.Module], data: str = "nodes") -> Listed:
    return Listed("own messages", name, make, data)


def _sage(width: int) -> nn.Module:
    return SAGEConv((width, width), width)


def _gat(width: int) -> nn.Module:
    return GATConv((width, width), width, add_self_loops=False)


MODELS = [
    _own("tutorial's GCN", lambda s: OwnNet(s, DocumentedGCN)),
    _own("x_j, mean", lambda s: OwnNet(s, PlainSum)),
    _own("x_j, max", lambda s: OwnNet(s, lambda i, o: PlainSum(i, o, "max"))),
    _own("MLP of both ends and their difference", lambda s: OwnNet(s, DifferenceConv)),
    _own("sigmoid times tanh", lambda s: OwnNet(s, GateConv)),
    _own("softmax inside", lambda s: OwnNet(s, WrittenAttention)),
    _own("several aggregations", lambda s: OwnNet(s, SeveralConv)),
    _own("ogb mol, edge embedding", lambda s: OwnEdgeFeatures(s, weights=False), "edges"),
    _own("edge weights", lambda s: OwnEdgeWeights(s, weights=True), "weights"),
    _own("GPRGNN", GPRGNN),
    _own("DAGNN", DAGNN),
    Listed("RGCN", "example rgcn.py", ExampleRGCN, "relations"),
    Listed("RGCN", "bases", lambda s: ExampleRGCN(s, num_bases=2), "relations"),
    Listed("RGCN", "FastRGCNConv", lambda s: ExampleRGCN(s, FastRGCNConv, num_bases=2), "relations"),
    Listed("RGCN", "example rgcn_link_pred.py, blocks", EmbeddedRGCN, "relations", batched=EMBEDDED),
    Listed("types", "HeteroConv of SAGEConv", lambda s: HeteroNet(s, _sage), "types"),
    Listed("types", "HeteroConv of SAGEConv, mean", lambda s: HeteroNet(s, _sage, "mean"), "types"),
    Listed("types", "HeteroConv of GATConv", lambda s: HeteroNet(s, _gat), "types"),
    Listed("types", "to_hetero of SAGEConv", lambda s: to_hetero(OneType(s), METADATA), "types"),
    Listed("types", "example hgt_dblp.py", HGTNet, "types"),
]
