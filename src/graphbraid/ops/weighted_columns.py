"""weighted_columns: several weighted sums over in-neighbours, which stand side by side in one matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation, aggregated, check_rows, row_contiguous, sum_dtype
from graphbraid.ops.library import once_differentiable, operator
from graphbraid.ops.sddmm import edge_dot
from graphbraid.signatures import typed


@typed
def weighted_columns(csc: Csc, x: Tensor, weight: Tensor, *, own: bool = False) -> Tensor:
    """Sum in-neighbours by several weights: ``out[v, k] = sum of weight[e, k] * x[u]`` over ``e = u -> v``.

    What :func:`graphbraid.ops.spmm` gives for each column of weights, without a copy to join them, and
    without a row per edge, forward or backward.

    Args:
        csc: the graph or block; its own ``weight`` is not used.
        x: ``(num_src, width)`` float32, float64, float16 or bfloat16.
        weight: ``(num_edges, count)`` weights, which may require a gradient.
        own: whether the last columns are the destinations' own rows, the first of ``x``.

    Returns:
        ``(num_dst, (count + own) * width)`` of ``x``'s dtype; sums run in float32 (float64 for float64).

    Raises:
        DataError: ``x`` or ``weight`` does not fit the graph.
    """
    check_rows(x, "x", csc.num_src, "source node")
    if check_tensor(weight, "weight", ndim=2, floating=True).shape[0] != csc.num_edges:
        raise DataError(
            f"weight must have one row per edge ({csc.num_edges}); got shape {tuple(weight.shape)}"
        )
    if own and csc.num_src < csc.num_dst:
        raise DataError(f"own rows of {csc.num_dst} destinations need as many sources; got {csc.num_src}")
    out: Tensor = _weighted_columns(csc, x, weight.to(sum_dtype(x.dtype)), own)
    return out


class _WeightedColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, csc: Csc, x: Tensor, weight: Tensor, own: bool) -> Tensor:
        ctx.csc, ctx.own = csc, own
        ctx.save_for_backward(x, weight)
        width, count = x.shape[1], weight.shape[1]
        out = x.new_empty(csc.num_dst, (count + own) * width)
        for column, how in enumerate(_hows(csc, weight)):
            aggregated(how, x, out=_part(out, column, width))
        if own:
            _part(out, count, width).copy_(x[: csc.num_dst])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        csc, grad, width = ctx.csc, row_contiguous(given), x.shape[1]
        grad_x, grad_weight = None, None
        if ctx.needs_input_grad[1]:
            grad_x = torch.zeros_like(x, memory_format=torch.contiguous_format)
            if ctx.own:
                grad_x[: csc.num_dst] = _part(grad, weight.shape[1], width)
            reverse, perm = csc.transpose()
            for column, how in enumerate(_hows(reverse, weight[perm])):
                aggregated(how, _part(grad, column, width), addend=grad_x, out=grad_x)
        if ctx.needs_input_grad[2]:
            grad_weight = torch.empty_like(weight)
            for column in range(weight.shape[1]):
                dots = edge_dot(csc, _part(grad, column, width), x.to(grad.dtype))
                grad_weight[:, column] = dots.squeeze(1)
        return None, grad_x, grad_weight, None


_weighted_columns = operator(
    "weighted_columns",
    _WeightedColumns,
    lambda a: a.x.new_empty(a.csc.num_dst, (a.weight.shape[1] + a.own) * a.x.shape[1]),
)


def _hows(csc: Csc, weight: Tensor) -> list[Aggregation]:
    """Return the sum by each column of weights."""
    return [Aggregation(csc=csc, weight=column) for column in weight.detach().t().contiguous()]


def _part(matrix: Tensor, column: int, width: int) -> Tensor:
    return matrix[:, column * width : (column + 1) * width]
