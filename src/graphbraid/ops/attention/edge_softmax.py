"""edge_softmax: the softmax of edge values over each destination's in-edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import backend, check_row_dtype, sum_dtype
from graphbraid.ops.library import once_differentiable, operator
from graphbraid.signatures import typed


@typed
def edge_softmax(csc: Csc, logits: Tensor) -> Tensor:
    """Compute the softmax over the in-edges of each destination, per head.

    Args:
        csc: the graph or block.
        logits: ``(num_edges,)`` or ``(num_edges, heads)``; 16-bit types are computed in float32.

    Returns:
        Coefficients of the same shape and dtype; those of a destination sum to 1.

    Raises:
        DataError: ``logits`` does not have one row per edge.
    """
    check_row_dtype(check_tensor(logits, "logits"), "logits")
    if logits.ndim not in (1, 2) or logits.shape[0] != csc.num_edges:
        raise DataError(
            f"logits must have one row per edge ({csc.num_edges}); got shape {tuple(logits.shape)}"
        )
    matrix = (logits if logits.ndim == 2 else logits.unsqueeze(1)).to(sum_dtype(logits.dtype))
    out: Tensor = _edge_softmax(matrix, csc)
    return out.reshape(logits.shape).to(logits.dtype)


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, csc: Csc) -> Tensor:
        logits = logits.detach().contiguous()
        alpha = torch.empty_like(logits)
        backend(logits).edge_softmax(csc.indptr, logits, alpha)
        ctx.csc = csc
        ctx.save_for_backward(alpha)
        return alpha

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (alpha,) = ctx.saved_tensors
        out = torch.empty_like(alpha)
        backend(grad).edge_softmax_backward(ctx.csc.indptr, alpha.detach(), grad.contiguous(), out)
        return out, None


_edge_softmax = operator("edge_softmax", _EdgeSoftmax, lambda a: a.logits.new_empty(a.logits.shape))
