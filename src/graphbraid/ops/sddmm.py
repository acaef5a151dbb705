"""sddmm: inner products of the rows at the two ends of every edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation, aggregated
from graphbraid.ops.kernels import backend, check_row_dtype, row_contiguous, sum_dtype
from graphbraid.ops.library import once_differentiable, operator
from graphbraid.signatures import typed


@typed
def sddmm(csc: Csc, dst_rows: Tensor, src_rows: Tensor) -> Tensor:
    """Compute inner products along edges: ``out[e] = <dst_rows[v], src_rows[u]>`` for ``e = u -> v``.

    Args:
        csc: the graph or block.
        dst_rows: ``(num_dst, width)``.
        src_rows: ``(num_src, width)`` of the same dtype.

    Returns:
        ``(num_edges,)`` in float32, or float64 for float64 rows.

    Raises:
        DataError: the rows do not fit the graph or each other.
    """
    for rows, name in ((dst_rows, "dst_rows"), (src_rows, "src_rows")):
        check_tensor(rows, name, ndim=2)
        check_row_dtype(rows, name)
    wanted = (csc.num_dst, src_rows.shape[-1])
    if dst_rows.shape != wanted or src_rows.shape != (csc.num_src, wanted[1]):
        raise DataError(
            f"dst_rows and src_rows must be ({csc.num_dst}, width) and ({csc.num_src}, width); "
            f"got {tuple(dst_rows.shape)} and {tuple(src_rows.shape)}"
        )
    if dst_rows.dtype != src_rows.dtype:
        raise DataError(
            f"dst_rows and src_rows must have one dtype; got {dst_rows.dtype} and {src_rows.dtype}"
        )
    return _sddmm(dst_rows, src_rows, csc)


def edge_dot(
    csc: Csc,
    dst_rows: Tensor,
    src_rows: Tensor,
    *,
    dst_scale: Tensor | None = None,
    src_scale: Tensor | None = None,
) -> Tensor:
    """Compute ``(num_edges, 1)`` scaled inner products, without checks and autograd."""
    dtype = sum_dtype(dst_rows.dtype)
    out = torch.empty((csc.num_edges, 1), dtype=dtype, device=dst_rows.device)
    dst_rows, src_rows = row_contiguous(dst_rows.detach()), row_contiguous(src_rows.detach())
    backend(dst_rows).sddmm(csc.indptr, csc.indices, dst_rows, src_rows, dst_scale, src_scale, out)
    return out


class _Sddmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dst_rows: Tensor, src_rows: Tensor, csc: Csc) -> Tensor:
        ctx.csc = csc
        ctx.save_for_backward(dst_rows, src_rows)
        return edge_dot(csc, dst_rows, src_rows).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # d out[e] / d dst_rows[v] = src_rows[u]: a weighted sum over edges, with the incoming gradient as
        # weight.
        dst_rows, src_rows = ctx.saved_tensors
        how = Aggregation(csc=ctx.csc, weight=grad)
        grad_dst = aggregated(how, src_rows) if ctx.needs_input_grad[0] else None
        grad_src = how.backward(dst_rows) if ctx.needs_input_grad[1] else None
        return grad_dst, grad_src, None


_sddmm = operator(
    "sddmm", _Sddmm, lambda a: a.src_rows.new_empty(a.csc.num_edges, dtype=sum_dtype(a.src_rows.dtype))
)
