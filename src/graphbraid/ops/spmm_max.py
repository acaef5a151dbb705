"""spmm_max: the largest message per destination and feature, with its gradient shared among equal ones."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import backend, row_contiguous, sum_dtype
from graphbraid.ops.library import once_differentiable, operator

Ties = Literal["first", "shared", "shared with zero"]
"""Which of several equal largest messages get the gradient: ``"first"``, that of the row's first such edge;
``"shared"``, all in equal shares; ``"shared with zero"``, the same, but if the maximum is exactly 0, one more
share goes to an initial zero and is lost."""
TIES: tuple[Ties, ...] = ("first", "shared", "shared with zero")
"""The rules, at the index that kernels take. For ``"first"``, kernels return the winning edge's position in
its row, -1 for an empty row; for the others the number of shares, 0 for an empty row or a NaN maximum."""

_CHUNK_ELEMENTS = 1 << 20


def largest(csc: Csc, x: Tensor, weight: Tensor | None) -> Tensor:
    """Return the maximum of ``weight[e] * x[u]`` over in-edges, whose gradient equal messages share.

    ``spmm`` has checked the arguments. Weighted 16-bit rows are compared in float32, before rounding.
    """
    wide = x if weight is None else x.to(sum_dtype(x.dtype))
    out: Tensor = _max(wide, weight, csc)
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


_max = operator("spmm_max", _Max, lambda a: a.x.new_empty(a.csc.num_dst, a.x.shape[1]))


def _weight_grad(csc: Csc, share: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Return each edge's inner product of its row with the shares it won, computed in chunks of edges."""
    grad = torch.zeros_like(weight)
    dst, step = csc.destinations(), max(1, _CHUNK_ELEMENTS // max(1, x.shape[1]))
    for begin in range(0, csc.num_edges, step):
        some = slice(begin, begin + step)
        to, rows = dst[some], x[csc.indices[some].long()]
        won = share[to].masked_fill_(weight[some, None] * rows < out[to], 0)
        torch.linalg.vecdot(won, rows, out=grad[some])
    return grad


__all__ = ["TIES", "Ties", "largest"]
