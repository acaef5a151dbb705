"""SAGEConv, the GraphSAGE layer."""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.errors import ConfigError
from graphbraid.graph.csc import Csc
from graphbraid.nn.conv import Conv, LayerInput, dense
from graphbraid.nn.linear import Linear
from graphbraid.nn.pyg_layers import pyg_layer
from graphbraid.ops import Aggregation, aggregate_linear, dense_linear, spmm
from graphbraid.signatures import typed

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
