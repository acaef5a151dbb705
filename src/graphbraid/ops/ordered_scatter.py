"""Sums and extrema of rows by destination, written with PyTorch's scatters and run by ordered kernels.

PyG's aggregations are made of ``scatter_add_`` and ``scatter_reduce_`` along an index of destinations.
PyTorch runs these element by element. Where the index is known to be in order, the rows of each destination
lie one behind the other, and kernels that reduce segments take less time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graphbraid.ops.gather import add_rows
from graphbraid.ops.kernels import backend
from graphbraid.ops.library import once_differentiable, run
from graphbraid.ops.spmm import TIES

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
        """Return whether a scatter adds each edge's row to that of its destination."""
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
        # PyTorch counts what was there before as one of the ties, though its gradient is lost.
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
