"""spmm_max: the largest message per destination and feature, and which of equal ones its gradient goes to."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import backend, row_contiguous, sum_dtype

Ties = Literal["first", "shared", "shared with zero"]
"""Which of equal largest messages the gradient goes to: the first edge of the row; all of them, each an equal
share; or that, but a maximum of exactly 0 leaves one more share to an initial zero, which loses it."""
TIES: tuple[Ties, ...] = ("first", "shared", "shared with zero")
"""Kernels take the place here. For the first they find the edge that won, counted in the row, -1 in an empty
one; for the others the number of shares, 0 in an empty row and of a maximum that is not a number."""

_CHUNK_ELEMENTS = 1 << 20


def largest(csc: Csc, x: Tensor, weight: Tensor | None) -> Tensor:
    """The maximum of ``weight[e] * x[u]`` over in-edges; equal ones share its gradient. Checked by ``spmm``.

    Weighted rows of 16 bits are compared in float32, before they are rounded.
    """
    wide = x if weight is None else x.to(sum_dtype(x.dtype))
    out: Tensor = _Max.apply(wide, weight, csc)  # type: ignore[no-untyped-call]
    return out.to(x.dtype)


class _Max(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, csc: Csc) -> Tensor:
        out = x.new_empty(csc.num_dst, x.shape[1])
        shares = torch.empty(out.shape, dtype=torch.int32, device=x.device)
        rows = x.detach().contiguous()
        factors = None if weight is None else weight.detach().contiguous()
        backend(x).spmm_max(csc.indptr, csc.indices, rows, factors, TIES.index("shared"), out, shares)
        ctx.csc = csc
        ctx.save_for_backward(rows, factors, out, shares)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        csc: Csc = ctx.csc
        x, weight, out, shares = ctx.saved_tensors
        share = row_contiguous(grad / shares)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            transposed, perm = csc.transpose()
            grad_x = x.new_empty(x.shape)
            ordered = None if weight is None else weight[perm]
            backend(x).spmm_max_shared_backward(
                transposed.indptr, transposed.indices, share, ordered, out, x, grad_x
            )
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_grad(csc, share, x, weight, out)
        return grad_x, grad_weight, None


def _weight_grad(csc: Csc, share: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Of each edge: its row times the shares it won, some edges at a time."""
    grad = torch.zeros_like(weight)
    dst, step = csc.destinations(), max(1, _CHUNK_ELEMENTS // max(1, x.shape[1]))
    for begin in range(0, csc.num_edges, step):
        some = slice(begin, begin + step)
        to, rows = dst[some], x[csc.indices[some].long()]
        won = share[to].masked_fill_(weight[some, None] * rows < out[to], 0)
        torch.linalg.vecdot(won, rows, out=grad[some])
    return grad


__all__ = ["TIES", "Ties", "largest"]
