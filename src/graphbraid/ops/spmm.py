"""spmm: aggregate the rows of in-neighbours by sum, mean or maximum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from graphbraid.arguments import check_choice
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation, aggregated, summed_back
from graphbraid.ops.kernels import (
    backend,
    check_addend,
    check_edge_weight,
    check_rows,
    new_rows,
    row_contiguous,
    sum_dtype,
)
from graphbraid.ops.library import once_differentiable, operator
from graphbraid.ops.sddmm import edge_dot
from graphbraid.signatures import typed

Ties = Literal["first", "shared", "shared with zero"]
"""Which of several equal largest messages get the gradient: ``"first"``, that of the row's first such edge;
``"shared"``, all in equal shares; ``"shared with zero"``, the same, but if the maximum is exactly 0, one more
share goes to an initial zero and is lost."""
TIES: tuple[Ties, ...] = ("first", "shared", "shared with zero")
"""The rules, at the index that kernels take. For ``"first"``, kernels return the winning edge's position in
its row, -1 for an empty row; for the others the number of shares, 0 for an empty row or a NaN maximum."""

_CHUNK_ELEMENTS = 1 << 20


def largest(csc: Csc, x: Tensor, weight: Tensor | None, ties: Ties = "shared") -> Tensor:
    """Return the maximum of ``weight[e] * x[u]`` over in-edges; ``ties`` says who has the gradient of equals.

    ``spmm`` has checked the arguments. Weighted 16-bit rows are compared in float32, before rounding.
    """
    wide = x if weight is None else x.to(sum_dtype(x.dtype))
    return _max(wide, weight, csc, TIES.index(ties)).to(x.dtype)


class _Max(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, csc: Csc, ties: int) -> Tensor:
        out = new_rows(x, csc.num_dst, x.shape[1])
        found = new_rows(x, csc.num_dst, x.shape[1], torch.int32)
        rows = x.detach().contiguous()
        factors = None if weight is None else weight.detach().contiguous()
        backend(x).spmm_max(csc.indptr, csc.indices, rows, factors, ties, out, found)
        ctx.csc, ctx.ties = csc, ties
        ctx.save_for_backward(rows, factors, out, found)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        csc: Csc = ctx.csc
        x, weight, out, found = ctx.saved_tensors
        if TIES[ctx.ties] == "first":
            assert weight is None, "only unweighted messages are read with this rule"
            transposed, perm = csc.transpose()
            edges = transposed.indptr, transposed.indices, perm, csc.indptr
            to_first = new_rows(x, *x.shape)
            backend(x).spmm_max_backward(*edges, row_contiguous(grad), None, found, to_first)
            return to_first, None, None, None
        share = row_contiguous(grad / found)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            transposed, perm = csc.transpose()
            grad_x = new_rows(x, *x.shape)
            ordered = None if weight is None else weight[perm]
            backend(x).spmm_max_shared_backward(
                transposed.indptr, transposed.indices, share, ordered, out, x, grad_x
            )
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_grad(csc, share, x, weight, out)
        return grad_x, grad_weight, None, None


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


Reduce = Literal["sum", "mean", "max"]


@typed
def spmm(csc: Csc, x: Tensor, reduce: Reduce = "sum", *, weight: Tensor | None = None) -> Tensor:
    """Aggregate in-neighbours: ``out[v]`` reduces ``weight[e] * x[u]`` over the edges ``e = u -> v``.

    Sums run in float32 (float64 for float64), edge by edge in order, so results do not depend on the number
    of threads. A node without in-edges gets zeros. Equal largest messages share the gradient of ``max``.

    Args:
        csc: the graph or block. Its own ``weight`` is not used unless passed here.
        x: ``(num_src, width)`` float32, float64, float16 or bfloat16.
        reduce: ``"sum"``, ``"mean"`` (over the number of edges, whatever their weights) or ``"max"``.
        weight: ``(num_edges,)`` edge weights, which may require a gradient. If None, ones.

    Returns:
        ``(num_dst, width)`` of ``x``'s dtype.

    Raises:
        ConfigError: ``reduce`` is none of the three.
        DataError: ``x`` or ``weight`` does not fit the graph.
    """
    check_rows(x, "x", csc.num_src, "source node")
    if weight is not None:
        check_edge_weight(weight, csc.num_edges)
        weight = weight.to(sum_dtype(x.dtype))
    check_choice(reduce, "reduce", ("sum", "mean", "max"))
    if reduce == "max":
        return largest(csc, x, weight)
    return _spmm(x, weight, None, Aggregation(csc=csc, mean=reduce == "mean"), False)


@typed
def aggregate(
    how: Aggregation,
    x: Tensor,
    *,
    weight: Tensor | None = None,
    addend: Tensor | None = None,
    wide: bool = False,
) -> Tensor:
    """Run an :class:`Aggregation` under autograd.

    Args:
        how: the map; its own coefficients are constants.
        x: ``(num_src, width)``.
        weight: ``(num_edges,)`` in the dtype of the sums, in place of ``how.weight``; may require a gradient.
        addend: ``(at most num_dst, width)`` of the result's dtype, added to the first rows.
        wide: whether to return the result in the dtype of the sums instead of ``x``'s.

    Raises:
        DataError: ``x``, ``weight`` or ``addend`` does not fit the graph or each other.
    """
    check_rows(x, "x", how.csc.num_src, "source node")
    if weight is not None:
        check_edge_weight(weight, how.csc.num_edges)
    if addend is not None:
        check_addend(addend, sum_dtype(x.dtype) if wide else x.dtype, (how.csc.num_dst, x.shape[1]))
    return _spmm(x, weight, addend, how, wide)


class _Spmm(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, x: Tensor, weight: Tensor | None, addend: Tensor | None, how: Aggregation, wide: bool
    ) -> Tensor:
        if weight is not None:
            how = replace(how, weight=weight.detach())
        ctx.how, ctx.dtype = how, x.dtype
        ctx.num_addend = 0 if addend is None else addend.shape[0]
        of_x, of_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if weight is not None and of_weight else None, weight if of_x else None)
        out = new_rows(x, how.csc.num_dst, x.shape[1], sum_dtype(x.dtype) if wide else x.dtype)
        return aggregated(how, x, addend=addend, out=out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        how: Aggregation = ctx.how
        x, _ = ctx.saved_tensors  # raises an error if the weights in ``how`` have been written over
        grad = row_contiguous(grad)
        grad_x = summed_back(how, grad).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = None
        if ctx.needs_input_grad[1]:
            src_scale, dst_scale = how.scales(sum_dtype(grad.dtype))
            grad_weight = edge_dot(
                how.csc, grad, x.to(grad.dtype), dst_scale=dst_scale, src_scale=src_scale
            ).squeeze(1)
            if how.skip_loops:
                grad_weight[how.csc.indices == how.csc.destinations()] = 0
        grad_addend = grad[: ctx.num_addend] if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_addend, None, None


_spmm = operator(
    "spmm",
    _Spmm,
    lambda a: a.x.new_empty(
        (a.how.csc.num_dst, a.x.shape[1]), dtype=sum_dtype(a.x.dtype) if a.wide else a.x.dtype
    ),
)

SpmmFunction = _Spmm
"""For callers that run it beside others as one autograd function."""
