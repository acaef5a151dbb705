"""Models of GATConv, GATv2Conv and TransformerConv: PyG's examples and published repositories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GAT, BatchNorm, GATConv, GATv2Conv, TransformerConv

from benchmarks.fullgraph.models.listed import Listed, Sizes


class ExampleGAT(nn.Module):
    """After pytorch_geometric/examples/gat.py."""

    def __init__(self, s: Sizes, kind: Any = GATConv, heads: int = 4) -> None:
        super().__init__()
        self.p = s.dropout
        self.conv1 = kind(s.channels, s.hidden, heads, dropout=s.dropout)
        self.conv2 = kind(s.hidden * heads, s.classes, heads=1, concat=False, dropout=s.dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(x, p=self.p, training=self.training)
        x = F.elu(self.conv1(x, edge_index))
        x = F.dropout(x, p=self.p, training=self.training)
        return self.conv2(x, edge_index)


class SkipGAT(nn.Module):
    """After pytorch_geometric/examples/ppi.py and ogbn_products_gat.py: linear maps beside the layers."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1 = GATConv(s.channels, s.hidden, heads=4)
        self.lin1 = torch.nn.Linear(s.channels, 4 * s.hidden)
        self.conv2 = GATConv(4 * s.hidden, s.hidden, heads=4)
        self.lin2 = torch.nn.Linear(4 * s.hidden, 4 * s.hidden)
        self.conv3 = GATConv(4 * s.hidden, s.classes, heads=6, concat=False)
        self.lin3 = torch.nn.Linear(4 * s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.conv1(x, edge_index) + self.lin1(x))
        x = F.elu(self.conv2(x, edge_index) + self.lin2(x))
        return self.conv3(x, edge_index) + self.lin3(x)


class ListedGAT(nn.Module):
    """After ogbn_products_gat.py: lists of layers and of skips."""

    def __init__(self, s: Sizes, heads: int = 2) -> None:
        super().__init__()
        self.num_layers, self.p = s.layers, s.dropout
        self.convs, self.skips = nn.ModuleList(), nn.ModuleList()
        widths = [s.channels] + [s.hidden * heads] * (s.layers - 1)
        for i, width in enumerate(widths):
            last = i == s.layers - 1
            self.convs.append(GATConv(width, s.classes if last else s.hidden, heads, concat=not last))
            self.skips.append(nn.Linear(width, s.classes if last else s.hidden * heads))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, (conv, skip) in enumerate(zip(self.convs, self.skips, strict=True)):
            x = conv(x, edge_index) + skip(x)
            if i != self.num_layers - 1:
                x = F.elu(x)
                x = F.dropout(x, p=self.p, training=self.training)
        return x


class TunedGAT(nn.Module):
    """After tunedGNN: no self-loops, no bias, a running sum, layers joined by norm and residual."""

    def __init__(self, s: Sizes, heads: int = 2, *, pre_ln: bool = False) -> None:
        super().__init__()
        self.dropout, self.pre_ln = s.dropout, pre_ln
        width = s.hidden * heads
        self.lin_in = nn.Linear(s.channels, width)
        self.local_convs = nn.ModuleList(
            [
                GATConv(width, s.hidden, heads=heads, concat=True, add_self_loops=False, bias=False)
                for _ in range(s.layers)
            ]
        )
        self.lins = nn.ModuleList([nn.Linear(width, width) for _ in range(s.layers)])
        self.lns = nn.ModuleList([nn.LayerNorm(width) for _ in range(s.layers)])
        self.pred_local = nn.Linear(width, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(self.lin_in(x), p=self.dropout, training=self.training)
        x_final: Any = 0
        for i, local_conv in enumerate(self.local_convs):
            if self.pre_ln:
                x = self.lns[i](x)
            x = local_conv(x, edge_index) + self.lins[i](x)
            if not self.pre_ln:
                x = self.lns[i](x)
            x = F.relu(x)
            x = F.dropout(x, p=self.dropout, training=self.training)
            x_final = x_final + x
        return self.pred_local(x_final)


class EdgeGAT(nn.Module):
    """After GAT with edge features (examples of knowledge and road graphs)."""

    def __init__(self, s: Sizes, kind: Any = GATConv) -> None:
        super().__init__()
        self.conv1 = kind(s.channels, s.hidden, heads=2, edge_dim=s.edge_channels)
        self.norm = BatchNorm(2 * s.hidden)
        self.conv2 = kind(2 * s.hidden, s.classes, edge_dim=s.edge_channels, concat=False)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = F.elu(self.norm(self.conv1(x, edge_index, edge_attr)))
        return self.conv2(x, edge_index, edge_attr=edge_attr)


class EncodedEdgeGAT(nn.Module):
    """After edge features that an embedding layer maps before attention reads them."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.edge_encoder = nn.Linear(s.edge_channels, s.hidden)
        self.conv = GATv2Conv(s.channels, s.hidden, heads=2, edge_dim=s.hidden)
        self.out = nn.Linear(2 * s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        e = F.relu(self.edge_encoder(edge_attr))
        return self.out(self.conv(x, edge_index, e).relu())


class SeparatedGAT(nn.Module):
    """After GAT-sep (yandex-research/heterophilous-graphs): the node's row beside its neighbours'."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.input_linear = nn.Linear(s.channels, s.hidden)
        self.norms = nn.ModuleList([nn.LayerNorm(s.hidden) for _ in range(2)])
        self.convs = nn.ModuleList(
            [GATConv(s.hidden, s.hidden // 2, heads=2, add_self_loops=False) for _ in range(2)]
        )
        self.ffns = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(2 * s.hidden, s.hidden), nn.GELU(), nn.Linear(s.hidden, s.hidden))
                for _ in range(2)
            ]
        )
        self.output_norm, self.output_linear = nn.LayerNorm(s.hidden), nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.gelu(self.input_linear(x))
        for norm, conv, ffn in zip(self.norms, self.convs, self.ffns, strict=True):
            x_res = norm(x)
            message = conv(x_res, edge_index)
            x = x + ffn(torch.cat([x_res, message], dim=1))
        return self.output_linear(self.output_norm(x)).squeeze(1)


class WeightsToo(nn.Module):
    """After notebooks that look at attention: asks a layer for its coefficients, and drops them."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv1 = GATConv(s.channels, s.hidden, heads=2)
        self.conv2 = GATConv(2 * s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, _ = self.conv1(x, edge_index, return_attention_weights=True)
        return self.conv2(F.elu(x), edge_index)


class GatedHeads(nn.Module):
    """After attention with a gate on each node's result (GaAN-like)."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv = GATv2Conv(s.channels, s.hidden, heads=2, concat=False)
        self.gate = nn.Sequential(nn.Linear(s.channels, 1), nn.Sigmoid())
        self.skip, self.out = nn.Linear(s.channels, s.hidden), nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        g = self.gate(x)
        x = g * self.conv(x, edge_index) + (1 - g) * self.skip(x)
        return self.out(F.relu(x))


class ViewedHeads(nn.Module):
    """After models that take the heads apart: view, mean over heads."""

    def __init__(self, s: Sizes, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.width = heads, s.hidden
        self.conv = GATConv(s.channels, s.hidden, heads=heads)
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv(x, edge_index).view(-1, self.heads, self.width).mean(dim=1)
        return self.out(F.elu(x))


class UnimpNet(nn.Module):
    """After pytorch_geometric/examples/unimp_arxiv.py: TransformerConv with beta."""

    def __init__(self, s: Sizes, heads: int = 2) -> None:
        super().__init__()
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        width = s.channels
        for i in range(1, s.layers + 1):
            last = i == s.layers
            out = s.classes if last else s.hidden // heads
            self.convs.append(TransformerConv(width, out, heads, concat=not last, beta=True, dropout=0.0))
            if not last:
                self.norms.append(nn.LayerNorm(s.hidden))
            width = s.hidden

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = norm(conv(x, edge_index)).relu()
        return self.convs[-1](x, edge_index)


class TransformerNet(nn.Module):
    """After transformer layers with edge features, and without."""

    def __init__(self, s: Sizes, edge_dim: int | None = None, *, residual: bool = False) -> None:
        super().__init__()
        self.residual = residual
        self.lin = nn.Linear(s.channels, s.hidden)
        self.convs = nn.ModuleList(
            [TransformerConv(s.hidden, s.hidden // 2, heads=2, edge_dim=edge_dim) for _ in range(2)]
        )
        self.out = nn.Linear(s.hidden, s.classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        x = self.lin(x)
        for conv in self.convs:
            h = F.gelu(conv(x, edge_index, edge_attr))
            x = x + h if self.residual else h
        return self.out(x)


def _ready(**options: Any) -> Callable[[Sizes], nn.Module]:
    return lambda s: GAT(s.channels, s.hidden, s.layers, s.classes, dropout=s.dropout, **options)


def _gat(name: str, make: Callable[[Sizes], nn.Module], data: str = "nodes") -> Listed:
    return Listed("GAT", name, make, data)


MODELS = [
    _gat("example gat.py", ExampleGAT),
    _gat("example gat.py, GATv2", lambda s: ExampleGAT(s, GATv2Conv)),
    _gat("example ppi.py", SkipGAT),
    _gat("ogbn-products, skips", ListedGAT),
    _gat("tunedGNN", TunedGAT),
    _gat("tunedGNN, norm first", lambda s: TunedGAT(s, pre_ln=True)),
    _gat("edge features", EdgeGAT, "edges"),
    _gat("edge features, GATv2", lambda s: EdgeGAT(s, GATv2Conv), "edges"),
    _gat("encoded edge features, GATv2", EncodedEdgeGAT, "edges"),
    _gat("GAT-sep", SeparatedGAT),
    _gat("coefficients asked for", WeightsToo),
    _gat("gated, a number for each node", GatedHeads),
    _gat("heads by view", ViewedHeads),
    _gat("ready, v2 and heads", _ready(v2=True, heads=2, norm="layer_norm")),
    Listed("Transformer", "example unimp_arxiv.py", UnimpNet),
    Listed("Transformer", "plain", TransformerNet),
    Listed("Transformer", "residual", lambda s: TransformerNet(s, residual=True)),
    Listed("Transformer", "edge features", lambda s: TransformerNet(s, s.edge_channels), "edges"),
]
