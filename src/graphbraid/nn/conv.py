"""Base class of all layers: how they are called, and how their last steps are fused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from graphbraid.arguments import check_tensor
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.interop.convert import features_from_torch_sparse
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn import module_traits
from graphbraid.nn.adjacency import as_csc

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
