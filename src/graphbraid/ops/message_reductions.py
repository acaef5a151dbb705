"""Several reductions of the same messages side by side, such as PNA's, and reductions by PyTorch's scatters.

PyG's aggregations are made of ``scatter_add_`` and ``scatter_reduce_`` along an index of destinations.
PyTorch runs these element by element. Where the index is known to be in order, the rows of each destination
lie one behind the other, and kernels that reduce segments take less time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graphbraid.graph.csc import Csc
from graphbraid.ops.gather import add_rows
from graphbraid.ops.kernels import backend
from graphbraid.ops.library import inverse_degrees, once_differentiable, run
from graphbraid.ops.spmm import TIES, Ties

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
REDUCTIONS_OF_SEVERAL = tuple(_OF)
"""Reductions that may stand side by side; those of compiled segments have these places as numbers."""
SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")
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
    """An object with ``avg_deg_lin`` and ``avg_deg_log``, tensors of one number, if scalers read them."""

    @property
    def sums(self) -> tuple[str, ...]:
        """Reductions of one walk over the edges: some of ``sum``, ``squares``, ``max`` and ``min``."""
        needed = {one for name in self.names for one in _OF[name]}
        return tuple(one for one in ("sum", "squares", "max", "min") if one in needed)

    def numbers(self) -> tuple[list[int], list[int], int, Any]:
        """Return what a compiled segment takes: reductions and scalers as numbers, heads and the averages."""
        names = [REDUCTIONS_OF_SEVERAL.index(name) for name in self.names]
        return names, [SCALERS.index(one) for one in self.scalers], math.prod(self.shape[:-1]), self.averages

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


_EXTREMA = ("amax", "amin")


class OrderedScatters(TorchFunctionMode):
    """While it is entered, scatters along one index of destinations run by kernels.

    They give the values and gradients that PyTorch gives, in its order of additions. A scatter along any
    other index runs as PyTorch has it. So does one of vectors, of other dtypes, or with other options.

    Args:
        index: ``(num_edges,)`` int64, in rising order. After it is written to, PyTorch runs the scatters.
        indptr: ``(num_rows + 1,)``: the edges of each row are ``indptr[row]`` to ``indptr[row + 1]``.
    """

    def __init__(self, index: Tensor, indptr: Tensor) -> None:
        super().__init__()
        self._index, self._indptr, self._version = index, indptr, index._version

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of PyTorch, or a kernel in its place."""
        options = kwargs or {}
        if func is Tensor.scatter_add_ and not options and len(args) == 4 and self._is_ordered(*args):
            into, _, _, rows = args
            return into.add_(run(_OrderedSum, rows, self._index, len(into)))
        if (
            func is Tensor.scatter_reduce_
            and options.keys() == {"reduce", "include_self"}
            and options["reduce"] in _EXTREMA
            and options["include_self"] is False
            and len(args) == 4
            and not args[0].requires_grad
            and self._is_ordered(*args)
        ):
            into, _, _, rows = args
            if options["reduce"] == "amin":
                return into.copy_(-run(_Maximum, -rows, -into, self._index, self._indptr))
            return into.copy_(run(_Maximum, rows, into.clone(), self._index, self._indptr))
        return func(*args, **options)

    def _is_ordered(self, into: Any, dim: Any, index: Any, rows: Any) -> bool:
        """Return whether a scatter adds each edge's row to that of its destination.

        PyG expands the index over the columns, so its strides there are 0.
        """
        return (
            all(isinstance(one, Tensor) for one in (into, index, rows))
            and rows.ndim > 1
            and rows.numel() > 0
            and dim in (0, -rows.ndim)
            and rows.dtype in (torch.float32, torch.float64)
            and rows.device.type == "cpu"
            and into.dtype == rows.dtype
            and into.shape == (len(self._indptr) - 1, *rows.shape[1:])
            and index.shape == rows.shape
            and index.data_ptr() == self._index.data_ptr()
            and index.dtype == self._index.dtype
            and self._index._version == self._version
            and len(index) == len(self._index)
            and index.stride() == (1, *[0] * (rows.ndim - 1))
        )


class _OrderedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, num_rows: int) -> Tensor:
        ctx.save_for_backward(index)
        out = rows.new_zeros(num_rows, *rows.shape[1:])
        add_rows(_flat(rows), index, out.view(num_rows, -1))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


class _Maximum(torch.autograd.Function):
    """Maxima by row; rows without edges keep their earlier values."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, before: Tensor, index: Tensor, indptr: Tensor) -> Tensor:
        flat = _flat(rows)
        out = flat.new_empty(len(before), flat.shape[1])
        count = torch.empty(out.shape, dtype=torch.int32)
        each = torch.arange(len(index), dtype=torch.int32)
        backend(flat).spmm_max(indptr, each, flat, None, TIES.index("shared"), out, count)
        out = out.view_as(before)
        has_none = indptr.diff() == 0
        out[has_none] = before[has_none]
        # PyTorch counts the earlier value as one of the ties, though its gradient is lost.
        count = count.view_as(before).add_(out == before)
        ctx.save_for_backward(rows, out, count, index)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, out, count, index = ctx.saved_tensors
        each = (grad / count).index_select(0, index)
        each *= rows == out.index_select(0, index)
        return each, None, None, None


def _flat(rows: Tensor) -> Tensor:
    return rows.detach().reshape(len(rows), -1).contiguous()
