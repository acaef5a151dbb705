"""gine: the sum over in-neighbours of rectified sums of node and edge rows, as in the GINE layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_number, check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.kernels import backend, check_row_dtype, check_rows, new_rows, row_contiguous
from graphbraid.ops.library import once_differentiable, operator
from graphbraid.signatures import typed


@typed
def gine(csc: Csc, x: Tensor, edges: Tensor, *, loop_scale: float = 0.0) -> Tensor:
    """Sum rectified messages: ``out[v]`` sums ``relu(x[u] + edges[e])`` over the edges ``e = u -> v``.

    From Hu et al., "Strategies for Pre-training Graph Neural Networks", where ``loop_scale`` is ``1 + eps``.
    Sums run in float32 (float64 for float64), edge by edge in order, so results do not depend on the number
    of threads.

    Args:
        csc: the graph or block.
        x: ``(num_src, width)`` float32, float64, float16 or bfloat16.
        edges: ``(num_edges, width)`` of the same dtype, in the order of ``csc``.
        loop_scale: factor with which each of the first ``min(num_src, num_dst)`` nodes adds its own row.

    Returns:
        ``(num_dst, width)`` of ``x``'s dtype.

    Raises:
        ConfigError: ``loop_scale`` is not finite.
        DataError: ``x`` or ``edges`` does not fit the graph or each other.
    """
    check_rows(x, "x", csc.num_src, "source node")
    check_row_dtype(check_tensor(edges, "edges"), "edges")
    if edges.shape != (csc.num_edges, x.shape[1]) or edges.dtype != x.dtype:
        raise DataError(
            f"edges must be {x.dtype} of shape ({csc.num_edges}, {x.shape[1]}), a row as wide as x's for "
            f"each edge; got {edges.dtype} of {tuple(edges.shape)}"
        )
    loop_scale = as_number(loop_scale, "loop_scale")
    return _gine(x, edges, csc, loop_scale)


class _Gine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edges: Tensor, csc: Csc, loop_scale: float) -> Tensor:
        rows, of_edges = (row_contiguous(t.detach()) for t in (x, edges))
        num_loops = min(csc.num_src, csc.num_dst) if loop_scale != 0 else 0
        out = new_rows(x, csc.num_dst, x.shape[1])
        backend(x).gine(csc.indptr, csc.indices, rows, of_edges, loop_scale, num_loops, out)
        ctx.csc, ctx.how = csc, (loop_scale, num_loops)
        ctx.save_for_backward(rows, of_edges)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, edges = ctx.saved_tensors
        csc: Csc = ctx.csc
        grad, grad_x, grad_edges = row_contiguous(grad), None, None
        kernels = backend(grad)
        if ctx.needs_input_grad[1]:
            grad_edges = new_rows(edges, *edges.shape)
            kernels.gine_edge_backward(csc.indptr, csc.indices, x, edges, grad, grad_edges)
        if ctx.needs_input_grad[0]:
            reverse, perm = csc.transpose()
            grad_x = new_rows(x, *x.shape)
            rows = (x, edges) if grad_edges is None else (None, grad_edges)
            kernels.gine_backward(reverse.indptr, reverse.indices, perm, grad, *rows, *ctx.how, grad_x)
        return grad_x, grad_edges, None, None


_gine = operator("gine", _Gine, lambda a: a.x.new_empty(a.csc.num_dst, a.x.shape[1]))
