"""Products of a tall matrix with a small one: a layer's linear map, and its weight's gradient.

float32 on the CPU runs in graphbraid's own kernels, whose results do not depend on the number of threads, bit
for bit; every other dtype and device runs in PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.scans import tracing
from graphbraid.ops import reference
from graphbraid.ops.aggregation import backend, check_row_dtype, follow_up, row_contiguous
from graphbraid.ops.library import once_differentiable, run
from graphbraid.ops.row_epilogue import RowEpilogue


def tall_product(
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor | None = None,
    add: bool = False,
    ids: Tensor | None = None,
    after: RowEpilogue | None = None,
) -> Tensor:
    """Compute ``a @ b`` or ``a[ids] @ b`` for a tall ``a`` and a weight ``b``, without autograd.

    Args:
        a: ``(num_rows, depth)``.
        b: ``(depth, width)`` of the same dtype; any strides, so that ``weight.t()`` is not copied.
        out: ``(num_rows, width)``, written; its rows may be strided. If None, a new matrix.
        add: whether to add to the values in ``out``.
        ids: ``(num_rows,)`` int64 rows of ``a`` to use, in any order. If None, all rows.
        after: epilogue, applied to the rows while the cache holds them.
    """
    if out is None:
        out = a.new_empty(a.shape[0] if ids is None else ids.numel(), b.shape[1])
    kernels, rows = kernels_for(a, b, out), row_contiguous(a.detach())
    if kernels is reference:
        reference.tall_product(rows, b.detach(), out.detach(), add, ids)
        follow_up(out.detach(), after)
    else:
        kernels.tall_product(rows, b.detach(), out.detach(), add, ids, after)
    return out


def tall_gram(a: Tensor, b: Tensor, *, out: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
    """Compute ``a.t() @ b`` or ``a.t() @ b[ids]``, ``(height, width)`` sums over rows, without autograd.

    Args:
        a: ``(num_rows, height)``.
        b: ``(num_rows, width)`` of the same dtype.
        out: ``(height, width)``, written. If None, a new matrix.
        ids: ``(num_rows,)`` int64 rows of ``b`` to use, in any order. If None, all rows.
    """
    if out is None:
        out = a.new_empty(a.shape[1], b.shape[1])
    kernels_for(a, b, out).tall_gram(row_contiguous(a.detach()), row_contiguous(b.detach()), out, ids)
    return out


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.t() + bias`` like ``torch.nn.functional.linear``, with these kernels if possible.

    Args:
        x: ``(num_rows, in_channels)``.
        weight: ``(out_channels, in_channels)``.
        bias: ``(out_channels,)`` or None.

    Raises:
        DataError: shapes or dtypes do not fit.
    """
    check_row_dtype(check_tensor(x, "x"), "x")
    check_tensor(weight, "weight", ndim=2)
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise DataError(
            f"weight must have a column per column of x; got {tuple(weight.shape)} for x of {tuple(x.shape)}"
        )
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise DataError(
            f"x and weight must have one dtype; got {x.dtype} and {weight.dtype}. Convert x with "
            "x.to(weight.dtype), or the model with model.to(x.dtype)"
        )
    if bias is not None:
        check_row_dtype(check_tensor(bias, "bias"), "bias")
        if bias.shape != weight.shape[:1]:
            raise DataError(
                f"bias must have shape ({weight.shape[0]},) for this weight; got {tuple(bias.shape)}"
            )
    if tracing() or kernels_for(x, weight) is reference or torch.is_autocast_enabled(x.device.type):
        return F.linear(x, weight, bias)
    out: Tensor = run(_Linear, x, weight)
    return out if bias is None else out + bias


def kernels_for(*matrices: Tensor) -> Any:
    """Return the compiled kernels if they can run on these matrices, else their twins."""
    fits = all(m.dtype == torch.float32 and m.device.type == "cpu" and m.dim() == 2 for m in matrices)
    return backend(matrices[0]) if fits else reference


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return tall_product(x, weight.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return (
            tall_product(grad, weight) if ctx.needs_input_grad[0] else None,
            tall_gram(grad, x) if ctx.needs_input_grad[1] else None,
        )
