"""GINConv, the graph isomorphism layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphbraid.arguments import as_number
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import tracing
from graphbraid.nn.conv import Conv, LayerInput, dense
from graphbraid.nn.pyg_layers import plain, pyg_layer
from graphbraid.ops import Aggregation, aggregate
from graphbraid.signatures import typed

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
