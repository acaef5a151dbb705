"""dot_attention: in-neighbours' rows summed by the softmax of inner products, without a row per edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation, aggregated, backend
from graphbraid.ops.attention.fused import both_ways
from graphbraid.ops.library import once_differentiable, operator
from graphbraid.ops.sddmm import edge_dot
from graphbraid.signatures import typed

_AS_THEY_ARE = (1.0, 0, 0.0, 0)
"""GAT's kernels with a slope of 1, at which the leaky ReLU changes nothing, no loops and no dropout."""


@typed
def dot_attention(csc: Csc, query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Sum in-neighbours' values weighted by dot-product attention, per head.

    ``out[v, h] = sum of softmax(<query[v, h], key[u, h]>) * value[u, h]`` over the edges ``u -> v``, the
    attention of "Attention Is All You Need" on a graph's edges. What scales the products is part of the keys.
    Several relations are one graph whose sources are each relation's own rows, and share the softmax.

    Forward and backward keep a number per edge and head, and no row per edge. The products are those of
    :func:`graphbraid.ops.sddmm`; softmax and sum run in GAT's kernels, with the products as edge logits.

    Args:
        csc: the graph or block, on the CPU.
        query: ``(num_dst, heads * channels)``, float32 or float64, head by head.
        key: ``(num_src, heads * channels)`` of the same dtype.
        value: ``(num_src, heads * channels)`` of the same dtype.
        heads: number of heads.

    Returns:
        ``(num_dst, heads * channels)``; zeros for a node without in-edges.

    Raises:
        ConfigError: ``heads`` is not positive.
        DataError: ``csc`` is no Csc, or shapes, dtypes or devices do not fit.
    """
    heads = as_count(heads, "heads", least=1)
    width = check_tensor(query, "query", ndim=2, floating=True).shape[1]
    num_src = csc.num_src
    for rows, name, count in (
        (query, "query", csc.num_dst),
        (key, "key", num_src),
        (value, "value", num_src),
    ):
        check_tensor(rows, name, ndim=2, floating=True)
        if rows.shape != (count, width) or not width or width % heads:
            raise DataError(
                f"{name} must be ({count}, heads * channels) for {heads} heads, with as many columns as "
                f"query has ({width}); got shape {tuple(rows.shape)}"
            )
        is_known = rows.dtype in (torch.float32, torch.float64) and rows.device.type == "cpu"
        if not is_known or rows.dtype != query.dtype:
            raise DataError(
                "query, key and value must be of one dtype, float32 or float64, on the CPU; "
                f"{name} is {rows.dtype} on {rows.device}"
            )
    out: Tensor = _dot_attention(query, key, value, csc, heads)
    return out


class _DotAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, csc: Csc, heads: int
    ) -> Tensor:
        query, key, value = (t.detach().contiguous() for t in (query, key, value))
        logits = edge_dot(csc, query, key, heads=heads)
        out, lse = torch.empty_like(query), query.new_empty(csc.num_dst, heads)
        nothing = _nothing(csc, heads, query)
        backend(value).gat_forward(
            csc.indptr, csc.indices, value, *nothing, *_AS_THEY_ARE, out, lse, edge_logit=logits
        )
        ctx.csc = csc
        ctx.save_for_backward(query, key, value, out, lse, logits)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse, logits = ctx.saved_tensors
        csc: Csc = ctx.csc
        grad_value, grad_logits = torch.empty_like(value), torch.empty_like(logits)
        nothing = _nothing(csc, logits.shape[1], query)
        # What GAT's forward pass keeps of logits above 0, their rows and shares, tells two slopes apart; with
        # a slope of 1 the kernel multiplies it by 0, so anything finite may stand in its place.
        not_kept = out, torch.zeros_like(lse)
        backend(grad).gat_backward(
            *both_ways(csc), value, *nothing, *_AS_THEY_ARE, out, lse, grad.contiguous(),
            *(grad_value, *(torch.empty_like(t) for t in nothing)), *not_kept,
            edge_logit=logits, grad_edge_logit=grad_logits,
        )  # fmt: skip
        grad_query = torch.empty_like(query) if ctx.needs_input_grad[0] else None
        grad_key = torch.empty_like(key) if ctx.needs_input_grad[1] else None
        channels = query.shape[1] // logits.shape[1]
        for head, weight in enumerate(grad_logits.t().contiguous()):
            own = slice(head * channels, (head + 1) * channels)
            how = Aggregation(csc=csc, weight=weight)
            if grad_query is not None:
                aggregated(how, key[:, own], out=grad_query[:, own])
            if grad_key is not None:
                aggregated(how.transposed(query.dtype), query[:, own], out=grad_key[:, own])
        return grad_query, grad_key, grad_value, None, None


_dot_attention = operator("dot_attention", _DotAttention, lambda a: a.query.new_empty(a.query.shape))


def _nothing(csc: Csc, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits that the ends of an edge have by themselves: zeros."""
    return like.new_zeros(csc.num_src, heads), like.new_zeros(csc.num_dst, heads)


__all__ = ["dot_attention"]
