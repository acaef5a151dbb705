"""GATConv and GATv2Conv, the graph attention layers."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from graphbraid.arguments import MOST_WIDTH, as_count, as_number
from graphbraid.errors import ConfigError
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn.conv import Conv, LayerInput, zero_bias
from graphbraid.nn.linear import Linear, as_widths, glorot
from graphbraid.nn.pyg_layers import pyg_layer
from graphbraid.ops import bias_act_dropout, gatv2_attention, sparse_linear
from graphbraid.ops.attention import scored_attention
from graphbraid.signatures import typed


class AttentionConv(Conv):
    """Base class of the attention layers, with their heads, residual and bias.

    Args:
        in_channels: width of the input.
        out_channels: width of each head.
        heads: number of heads.
        concat: concatenate the heads instead of taking their mean.
        negative_slope: slope of the leaky ReLU below zero.
        dropout: probability of dropping an attention coefficient while training.
        add_self_loops: give each node one self-loop, in place of stored ones.
        bias: whether to learn an additive bias.
        residual: whether to add a learned linear map of the destination's own row.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
        residual: bool = False,
    ):
        super().__init__()
        heads = as_count(heads, "heads", least=1, most=MOST_WIDTH)
        in_channels, _ = as_widths(in_channels, out_channels)
        as_widths(in_channels, out_channels * heads)
        negative_slope = as_number(negative_slope, "negative_slope")
        dropout = as_number(dropout, "dropout", least=0, below=1)
        self.in_channels, self.out_channels, self.heads, self.concat = (
            in_channels,
            out_channels,
            heads,
            concat,
        )
        self.negative_slope, self.dropout, self.add_self_loops = negative_slope, dropout, add_self_loops
        total = out_channels * (heads if concat else 1)
        self.res = Linear(in_channels, total, bias=False, init="glorot") if residual else None
        self.bias = zero_bias(total, bias=bias)

    def combine(self, x: LayerInput, csc: Csc) -> Tensor:
        """Compute the layer without its final bias."""
        self.check(x, csc)
        out = self.attend(x, csc)
        if not self.concat:
            out = out.view(-1, self.heads, self.out_channels).mean(dim=1)
        if self.res is not None:
            out = out + transform(self.res, x)[: csc.num_dst]
        return out

    def to_pyg(self) -> nn.Module:
        """Return PyG's layer of the same name with a copy of the weights.

        Raises:
            ConfigError: ``row_dropout``, which PyG's layer does not have.
        """
        if getattr(self, "row_dropout", 0):
            raise ConfigError("to_pyg of GATConv: PyG's layer has no row_dropout; set it to 0 before")
        same = [
            "in_channels",
            "out_channels",
            "heads",
            "concat",
            "negative_slope",
            "dropout",
            "add_self_loops",
        ]
        same += ["share_weights"] if isinstance(self, GATv2Conv) else []
        return pyg_layer(self, *same, bias=self.bias is not None, residual=self.res is not None)

    @abstractmethod
    def attend(self, x: LayerInput, csc: Csc) -> Tensor:
        """Return ``(num_dst, heads * out_channels)``: each head's weighted sum."""

    def extra_repr(self) -> str:
        """Return the channels and heads, as shown by ``print``."""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


@typed
class GATConv(AttentionConv):
    r"""Graph attention layer of "Graph Attention Networks" (Veličković et al.).

    .. math::
        x'_v = \sum_{u} \alpha_{vu} W x_u, \qquad
        \alpha_{v\cdot} = \mathrm{softmax}(\mathrm{LeakyReLU}(a_s^\top W x_u + a_d^\top W x_v))

    Equal to PyTorch Geometric's layer of the same name on one type of nodes and without edge features, with
    the same parameters (``lin.weight``, ``att_src``, ``att_dst``, ``res.weight``, ``bias``). Self-loops are
    added inside the kernel. Takes the arguments of :class:`AttentionConv` and the following.

    Args:
        row_dropout: probability of dropping an element of the transformed rows ``W x`` that are summed, but
            not of those that give the coefficients. The paper's own code does this in addition to dropping
            coefficients; PyG does not.

    Raises:
        ConfigError: ``row_dropout`` is not a probability below 1.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
        residual: bool = False,
        row_dropout: float = 0.0,
    ):
        super().__init__(
            in_channels,
            out_channels,
            heads=heads,
            concat=concat,
            negative_slope=negative_slope,
            dropout=dropout,
            add_self_loops=add_self_loops,
            bias=bias,
            residual=residual,
        )
        if not 0.0 <= row_dropout < 1.0:
            raise ConfigError(f"row_dropout must lie in [0, 1); got {row_dropout!r}")
        self.row_dropout = row_dropout
        self.lin = Linear(in_channels, heads * out_channels, bias=False, init="glorot")
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew; set the bias to 0."""
        self.lin.reset_parameters()
        if self.res is not None:
            self.res.reset_parameters()
        glorot(self.att_src)
        glorot(self.att_dst)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def attend(self, x: LayerInput, csc: Csc) -> Tensor:
        """Return ``(num_dst, heads * out_channels)``: each head's weighted sum."""
        rows = transform(self.lin, x)
        drops = self.training and self.row_dropout > 0
        return scored_attention(
            csc,
            bias_act_dropout(rows, act="none", p=self.row_dropout) if drops else rows,
            rows,
            (self.att_src, self.att_dst),
            negative_slope=self.negative_slope,
            self_loops=self.add_self_loops,
            dropout=self.dropout if self.training else 0.0,
        )


@typed
class GATv2Conv(AttentionConv):
    r"""Graph attention layer of "How Attentive are Graph Attention Networks?" (Brody et al.).

    .. math::
        x'_v = \sum_{u} \alpha_{vu} W_l x_u, \qquad
        \alpha_{v\cdot} = \mathrm{softmax}(a^\top \mathrm{LeakyReLU}(W_l x_u + W_r x_v))

    Equal to PyTorch Geometric's layer of the same name on one type of nodes and without edge features, with
    the same parameters (``lin_l``, ``lin_r``, ``att``, ``res.weight``, ``bias``). Takes the arguments of
    :class:`AttentionConv` and the following.

    Args:
        share_weights: whether to use ``lin_l`` for destinations too.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
    ):
        super().__init__(
            in_channels,
            out_channels,
            heads=heads,
            concat=concat,
            negative_slope=negative_slope,
            dropout=dropout,
            add_self_loops=add_self_loops,
            bias=bias,
            residual=residual,
        )
        self.share_weights = share_weights
        self.lin_l = Linear(in_channels, heads * out_channels, bias=bias, init="glorot")
        self.lin_r = (
            self.lin_l
            if share_weights
            else Linear(in_channels, heads * out_channels, bias=bias, init="glorot")
        )
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew; set the bias to 0."""
        self.lin_l.reset_parameters()
        self.lin_r.reset_parameters()
        if self.res is not None:
            self.res.reset_parameters()
        glorot(self.att)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def attend(self, x: LayerInput, csc: Csc) -> Tensor:
        """Return ``(num_dst, heads * out_channels)``: each head's weighted sum."""
        rows = transform(self.lin_l, x)
        if self.share_weights:
            own = rows[: csc.num_dst]
        elif isinstance(x, SparseFeatures):
            own = transform(self.lin_r, x)[: csc.num_dst]
        else:
            own = transform(self.lin_r, x[: csc.num_dst])
        return gatv2_attention(
            csc,
            rows,
            own,
            self.att[0],
            negative_slope=self.negative_slope,
            self_loops=self.add_self_loops,
            dropout=self.dropout if self.training else 0.0,
        )


def transform(linear: Linear, x: LayerInput) -> Tensor:
    """Apply ``linear`` to dense rows of any precision or to sparse features."""
    if not isinstance(x, SparseFeatures):
        out: Tensor = linear(x.to(linear.weight.dtype))
        return out
    out = sparse_linear(x, linear.weight)
    return out if linear.bias is None else out + linear.bias.to(out.dtype)
