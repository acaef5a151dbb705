"""The base class of all layers, and the layers of one sum, mean or maximum: GraphSAGE and GIN.

The base says how layers are called, and how their last steps are fused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.arguments import as_number, check_tensor
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.interop.convert import features_from_torch_sparse
from graphbraid.graph.scans import tracing
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn import module_traits
from graphbraid.nn.adjacency import as_csc
from graphbraid.nn.linear import Linear
from graphbraid.nn.pyg_layers import plain, pyg_layer
from graphbraid.ops import Aggregation, aggregate, aggregate_linear, dense_linear, spmm
from graphbraid.signatures import typed

LayerInput = Tensor | SparseFeatures


def as_rows(x: LayerInput) -> LayerInput:
    """Return a floating-point matrix or sparse features; a sparse matrix of torch becomes sparse features.

    Raises:
        DataError: ``x`` is none of these, or is sparse and requires gradients.
    """
    if isinstance(x, SparseFeatures | torch.fx.Proxy):
        return x
    if isinstance(x, Tensor) and x.layout != torch.strided and not x.requires_grad:
        return features_from_torch_sparse(x)
    return check_tensor(x, "x", ndim=2, floating=True)


def check_takes_weights(kind: type[nn.Module], edge_weight: Tensor | None) -> None:
    """Raise ConfigError if edge weights are given to a layer or model that does not use them."""
    if edge_weight is not None and not module_traits.takes_weights(kind):
        raise ConfigError(
            f"{kind.__name__} takes no edge weights, which would change nothing; call it without edge_weight "
            "(GCNConv and GCN take them)"
        )


class Conv(nn.Module, ABC):
    """Base class of the layers; ``conv(x, edge_index)`` maps ``num_src`` rows to ``num_dst`` rows.

    A block's destinations are a prefix of its sources, so a layer computes only the rows that the next one
    reads. Subclasses implement :meth:`combine`; the bias is added after it, so that a model can fuse bias,
    activation and dropout.
    """

    keeps_result: ClassVar[bool] = True
    """Whether :meth:`combine`'s backward may read its result, which must then not be overwritten."""
    takes_weights: ClassVar[bool] = False
    """Whether the layer uses edge weights, so that it can be called with them."""
    bias: nn.Parameter | None
    in_channels: int
    out_channels: int

    def forward(self, x: LayerInput, edge_index: Csc | Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Apply the layer.

        Args:
            x: ``(num_src, in_channels)`` dense rows, or sparse features.
            edge_index: the whole graph or the layer's block, or PyG's ``(2, num_edges)`` integer tensor over
                the rows of ``x``.
            edge_weight: ``(num_edges,)`` constants for an ``edge_index`` tensor; a ``Csc`` holds its own.

        Raises:
            ConfigError: edge weights are given, and the layer takes none.
            DataError: ``x`` does not fit the graph or the layer, or the edges or weights are invalid.
        """
        x = as_rows(x)
        check_takes_weights(type(self), edge_weight)
        out = self.combine(x, as_csc(edge_index, x.shape[0], edge_weight))
        return out if self.bias is None else out + self.bias

    @abstractmethod
    def combine(self, x: LayerInput, csc: Csc) -> Tensor:
        """Compute the layer without its final bias."""

    def to_pyg(self) -> nn.Module:
        """Return PyG's layer of the same name with a copy of the weights.

        Raises:
            ConfigError: PyG has no such layer.
        """
        raise ConfigError(f"PyG has no layer that {type(self).__name__} stands for")

    def check(self, x: LayerInput, csc: Csc) -> None:
        """Raise DataError unless ``x`` is ``(num_src, in_channels)``."""
        if tuple(x.shape) != (csc.num_src, self.in_channels):
            raise DataError(
                f"{type(self).__name__} needs x of shape ({csc.num_src}, {self.in_channels}): a row "
                f"per source node, a column per input channel (in_channels={self.in_channels}); got "
                f"{tuple(x.shape)}"
            )

    def extra_repr(self) -> str:
        """Return the channels, as shown by ``print``."""
        return f"{self.in_channels}, {self.out_channels}"


def zero_bias(channels: int, *, bias: bool) -> nn.Parameter | None:
    """Return a bias of zeros, or None if ``bias`` is False."""
    return nn.Parameter(torch.zeros(channels)) if bias else None


def dense(x: LayerInput) -> Tensor:
    """Return ``x`` itself, or sparse features made dense for a layer that needs dense rows."""
    return x.to_dense() if isinstance(x, SparseFeatures) else x


REDUCTIONS = {"mean": "mean", "max": "max", "sum": "sum", "add": "sum"}


@typed
class SAGEConv(Conv):
    r"""GraphSAGE layer of "Inductive Representation Learning on Large Graphs".

    .. math:: x'_v = W_1 \cdot \mathrm{reduce}_{u \in N(v)} x_u + b + W_2 x_v

    Equal to PyTorch Geometric's layer of the same name, with the same parameters (``lin_l``, ``lin_r``,
    ``lin``), except for one gradient: where a maximum is exactly 0, PyG gives a share of its gradient to an
    initial zero.

    Args:
        in_channels: width of the input.
        out_channels: width of the output.
        aggr: ``"mean"``, ``"max"`` or ``"sum"`` over the in-neighbours.
        normalize: scale each output row to unit Euclidean norm.
        root_weight: whether to add the node's own transformed row.
        project: pass neighbours through a linear layer and ReLU before they are aggregated.
        bias: whether to learn an additive bias.

    Raises:
        ConfigError: ``aggr`` is unknown.
    """

    keeps_result = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
    ):
        super().__init__()
        if aggr not in REDUCTIONS:
            raise ConfigError(f"aggr must be one of {', '.join(map(repr, REDUCTIONS))}; got {aggr!r}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.aggr, self.normalize, self.root_weight = REDUCTIONS[aggr], normalize, root_weight
        self.lin = Linear(in_channels, in_channels) if project else None
        self.lin_l = Linear(in_channels, out_channels, bias=bias)
        self.lin_r = Linear(in_channels, out_channels, bias=False) if root_weight else None

    @property
    def bias(self) -> nn.Parameter | None:  # type: ignore[override]
        """Bias of ``lin_l``, which is added last; None if rows are normalised after it."""
        return None if self.normalize else cast("nn.Parameter | None", self.lin_l.bias)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for part in (self.lin, self.lin_l, self.lin_r):
            if part is not None:
                part.reset_parameters()

    def to_pyg(self) -> nn.Module:
        """Return PyG's layer of the same name with a copy of the weights."""
        return pyg_layer(
            self,
            in_channels=self.in_channels,
            out_channels=self.out_channels,
            aggr=self.aggr,
            normalize=self.normalize,
            root_weight=self.root_weight,
            project=self.lin is not None,
            bias=self.lin_l.bias is not None,
        )

    def combine(self, x: LayerInput, csc: Csc) -> Tensor:
        """Compute the layer without its bias; with ``normalize``, the whole layer."""
        self.check(x, csc)
        root = None if self.lin_r is None else self.lin_r.weight
        if self.aggr == "max" or self.lin is not None:
            out = self._stepwise(x, csc, root)
        else:
            how = Aggregation(csc=csc, mean=self.aggr == "mean")
            out = aggregate_linear(how, x, self.lin_l.weight, root)
        if not self.normalize:
            return out
        return F.normalize(out if self.lin_l.bias is None else out + self.lin_l.bias, p=2.0, dim=-1)

    def _stepwise(self, x: LayerInput, csc: Csc, root: Tensor | None) -> Tensor:
        rows = dense(x)
        neighbours = rows if self.lin is None else self.lin(rows).relu()
        if self.aggr == "max":
            out = dense_linear(spmm(csc, neighbours, "max").to(self.lin_l.weight.dtype), self.lin_l.weight)
        else:
            out = aggregate_linear(
                Aggregation(csc=csc, mean=self.aggr == "mean"), neighbours, self.lin_l.weight
            )
        return out if root is None else out + dense_linear(rows[: csc.num_dst].to(root.dtype), root)


_MOST = torch.finfo(torch.float32).max


@typed
class GINConv(Conv):
    r"""Graph isomorphism layer of "How Powerful are Graph Neural Networks?" (Xu et al.).

    .. math:: x'_v = h\left((1 + \epsilon) x_v + \sum_{u \in N(v)} x_u\right)

    Equal to PyTorch Geometric's layer of the same name, with the same parameters (``nn``, ``eps``).

    Args:
        module: the network h, from ``(rows, in_channels)`` to ``(rows, out_channels)``; stored as ``nn``.
        eps: initial value of ε.
        train_eps: whether ε is learned.
    """

    eps: Tensor

    def __init__(self, module: nn.Module, *, eps: float = 0.0, train_eps: bool = False):
        super().__init__()
        self.nn = module
        self.bias = None
        self.initial_eps = as_number(eps, "eps", least=-_MOST, most=_MOST)
        value = torch.full((1,), self.initial_eps)
        if train_eps:
            self.eps = nn.Parameter(value)
        else:
            self.register_buffer("eps", value)

    def reset_parameters(self) -> None:
        """Draw the network's parameters anew; set ε to its initial value."""
        for child in self.nn.modules():
            if callable(reset := getattr(child, "reset_parameters", None)):
                reset()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def to_pyg(self) -> nn.Module:
        """Return PyG's layer of the same name with a copy of the weights."""
        return pyg_layer(self, nn=plain(self.nn), train_eps=isinstance(self.eps, nn.Parameter))

    def combine(self, x: LayerInput, csc: Csc) -> Tensor:
        """Compute the whole layer, which has no bias of its own."""
        if x.shape[0] != csc.num_src:
            raise DataError(f"GINConv needs x with {csc.num_src} rows, one per source node; got {x.shape[0]}")
        rows = dense(x)
        if self.eps.requires_grad or tracing():  # while torch traces, its value is not known
            total = aggregate(Aggregation(csc=csc), rows, wide=True) + (1 + self.eps) * rows[: csc.num_dst]
        else:
            total = aggregate(Aggregation(csc=csc, loop_scale=1.0 + float(self.eps)), rows, wide=True)
        out: Tensor = self.nn(total)
        return out

    def extra_repr(self) -> str:
        """Return nothing, since the network shows the channels."""
        return ""
