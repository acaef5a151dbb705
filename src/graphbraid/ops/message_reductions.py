"""Several reductions of the same messages side by side, such as PNA's, scaled by functions of degrees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.ops.derived import inverse_degrees
from graphbraid.ops.spmm import Ties

_LEAST_VARIANCE = 1e-5
"""Variances up to this one have a standard deviation of 0, and no gradient, as in PyG."""
_OF: dict[str, tuple[str, ...]] = {
    "sum": ("sum",),
    "mean": ("sum",),
    "max": ("max",),
    "min": ("min",),
    "var": ("sum", "squares"),
    "std": ("sum", "squares"),
}
REDUCTIONS_OF_SEVERAL = frozenset(_OF)
"""Reductions that may stand side by side."""
SCALERS = frozenset({"identity", "amplification", "attenuation", "linear", "inverse_linear"})
"""Functions of a node's degree, as PyG's ``DegreeScalerAggregation`` names them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SeveralReductions:
    """Reductions side by side: for each scaler all of them, in the last dimension of a node's row."""

    names: tuple[str, ...]
    """Of :data:`REDUCTIONS_OF_SEVERAL`."""
    shape: tuple[int, ...]
    """Shape of an edge's message."""
    ties: Ties
    """Which of several equal messages receive the gradient of a maximum or minimum."""
    scalers: tuple[str, ...] = ("identity",)
    averages: Any = None
    """What has ``avg_deg_lin`` and ``avg_deg_log``, tensors of one number, for scalers that read them."""

    @property
    def sums(self) -> tuple[str, ...]:
        """Reductions of one walk over the edges: some of ``sum``, ``squares``, ``max`` and ``min``."""
        needed = {one for name in self.names for one in _OF[name]}
        return tuple(one for one in ("sum", "squares", "max", "min") if one in needed)

    def finish(self, csc: Csc, sums: Sequence[Tensor], out: Tensor) -> None:
        """Write all reductions from :attr:`sums`, each ``(num_dst, width)``."""
        to = self._by_part(out)
        for at, part in enumerate(self._parts(csc, sums)):
            for number, scaler in enumerate(self.scalers):
                factor = self._factor(csc, scaler, out.dtype)
                by_node = part.view(len(part), *self.shape)
                if factor is None:
                    to[..., number, at, :] = by_node
                else:
                    torch.mul(by_node, factor.view(-1, *[1] * len(self.shape)), out=to[..., number, at, :])

    def gradients(self, csc: Csc, sums: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
        """Return the gradients of :attr:`sums` from that of the result."""
        of, given = self._by_part(grad), list[Tensor]()
        for at in range(len(self.names)):
            total = torch.zeros(len(grad), *self.shape, dtype=grad.dtype, device=grad.device)
            for number, scaler in enumerate(self.scalers):
                factor = self._factor(csc, scaler, grad.dtype)
                one = 1.0 if factor is None else factor.view(-1, *[1] * len(self.shape))
                total.addcmul_(of[..., number, at, :], torch.as_tensor(one, dtype=grad.dtype))
            given.append(total.view(len(grad), -1))
        leaves = [one.detach().requires_grad_() for one in sums]
        with torch.enable_grad():
            parts = self._parts(csc, leaves)
            found = torch.autograd.grad(parts, leaves, given)
        return list(found)

    def _by_part(self, rows: Tensor) -> Tensor:
        """Return rows of the result by scaler, then by reduction, then by column."""
        *heads, columns = self.shape
        return rows.view(len(rows), *heads, len(self.scalers), len(self.names), columns)

    def _parts(self, csc: Csc, sums: Sequence[Tensor]) -> list[Tensor]:
        """Return each reduction without scalers."""
        of = dict(zip(self.sums, sums, strict=True))
        share, made = inverse_degrees(csc, sums[0].dtype)[:, None], list[Tensor]()
        for name in self.names:
            if name in ("sum", "max", "min"):
                made.append(of[name])
                continue
            mean = of["sum"] * share
            if name == "mean":
                made.append(mean)
                continue
            variance = of["squares"] * share - mean * mean
            if name == "std":
                root = variance.clamp(min=_LEAST_VARIANCE).sqrt()
                made.append(root.masked_fill(root <= math.sqrt(_LEAST_VARIANCE), 0.0))
            else:
                made.append(variance)
        return made

    def _factor(self, csc: Csc, scaler: str, dtype: torch.dtype) -> Tensor | None:
        """Return the factor of each node; None for 1."""
        if scaler == "identity":
            return None
        degrees = csc.indptr.diff().to(dtype)
        linear: Tensor = self.averages.avg_deg_lin.to(dtype)
        log: Tensor = self.averages.avg_deg_log.to(dtype)
        if scaler == "amplification":
            return (degrees + 1).log() / log
        if scaler == "attenuation":
            return log / (degrees.clamp(min=1) + 1).log()
        return degrees / linear if scaler == "linear" else linear / degrees.clamp(min=1)
