"""Gradients of GAT's fused attention in Triton; the formulas are in ``forward.py``."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops.triton.attend.edge_softmax import row_sums
from graphbraid.ops.triton.attend.forward import without_edges
from graphbraid.ops.triton.attend.heads import (
    COUNTS,
    coefficients_kept,
    edges_and_loop,
    edges_to_nodes,
    head_tile,
    leaky,
    load_heads,
    load_numbers,
    load_own,
    over_heads,
    store_head_sums,
)
from graphbraid.ops.triton.attend.row_dots import row_dots
from graphbraid.ops.triton.dropout import dropout_arguments
from graphbraid.ops.triton.partition import partial_rows, segments_of
from graphbraid.ops.triton.tiles import store_sums


@triton.jit(do_not_specialize=COUNTS)
def gat_backward_kernel(
    t_indptr,  # (num_src + 1,) int64, of the transpose
    t_indices,  # (num_edges,) int32 or int64: destinations
    perm,  # (num_edges,) int64: edge of the transpose -> edge
    src,  # (num_src, heads * channels) float32, float16 or bfloat16
    src_logit,  # (num_src, heads) float32
    dst_logit,  # (num_dst, heads) float32
    lse,  # (num_dst, heads) float32
    grad,  # (num_dst, heads * channels) of src's dtype
    d,  # (num_dst, heads) float32: D
    indptr,  # (num_dst + 1,) int64, by destination
    first_keys,  # see mask_keys
    edge_grad,  # (num_edges + num_loops, heads) float32, written: gradient of src_logit[u] + dst_logit[v]
    grad_src,  # (num_src, heads * channels) of src's dtype
    grad_src_logit,  # (num_src, heads) float32
    partial,  # (num_segments, heads * channels) float32: written where PARTIAL, else read; None without hubs
    partial_logit,  # (num_segments, heads) float32, likewise
    slope,
    num_loops,
    num_edges,
    seed,
    threshold,
    keep_scale,
    heads,
    channels,
    segment_row,
    segment_first,
    LOOPS: tl.constexpr,
    DROPOUT: tl.constexpr,
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute GAT's gradients by source: of rows and logits, and each edge's part of destinations' logits.

    Bound by reading num_edges rows of grad.
    """
    item = tl.program_id(0).to(tl.int64)
    h, head, place, inside = head_tile(heads, channels, HEADS, CHANNELS)
    width = heads * channels
    u, begin, end, stop = edges_and_loop(
        item, t_indptr, num_loops, segment_row, segment_first, LOOPS, SEGMENT, PARTIAL
    )
    own = load_own(src, u, width, place, inside)
    own_logit = tl.load(src_logit + u * heads + h, mask=head, other=0.0)
    acc = tl.zeros((EDGES, HEADS, CHANNELS), tl.float32)
    acc_logit = tl.zeros((EDGES, HEADS), tl.float32)
    for first in range(begin, stop, EDGES):
        v, number, live = edges_to_nodes(first, end, stop, u, t_indices, perm, num_edges, LOOPS, EDGES)
        g = load_heads(grad, v, width, place, live, inside)
        z = own_logit[None, :] + load_numbers(dst_logit, v, heads, h, live, head, 0.0)
        # exp(-inf) = 0: an edge that does not count has no coefficient.
        alpha = tl.exp(leaky(z, slope) - load_numbers(lse, v, heads, h, live, head, float("inf")))
        reached = tl.sum(g * own[None, :, :], axis=2)
        coefficient = alpha
        if DROPOUT:
            row = tl.where(live, v, 0)
            stays = coefficients_kept(number, row, indptr, first_keys, num_edges, h, seed, threshold)
            factor = tl.where(stays, keep_scale, 0.0)
            reached *= factor
            coefficient *= factor
        part = alpha * (reached - load_numbers(d, v, heads, h, live, head, 0.0))
        part = tl.where(z > 0, part, part * slope)
        tl.store(edge_grad + number[:, None] * heads + h[None, :], part, mask=live[:, None] & head[None, :])
        acc_logit += part
        acc += coefficient[:, :, None] * g
    store_sums(
        acc_logit, item, u, grad_src_logit, partial_logit, segment_first, h, head, heads, PARTIAL, EDGES
    )
    store_head_sums(acc, item, u, grad_src, partial, segment_first, width, place, inside, PARTIAL, EDGES)


def gat_backward(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    perm: Tensor,
    src: Tensor,
    src_logit: Tensor,
    dst_logit: Tensor,
    slope: float,
    num_loops: int,
    p: float,
    seed: int | Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    grad_src: Tensor,
    grad_src_logit: Tensor,
    grad_dst_logit: Tensor,
    above: Tensor | None = None,
    share: Tensor | None = None,
    first_keys: Tensor | None = None,
    edge_logit: Tensor | None = None,
    grad_edge_logit: Tensor | None = None,
) -> None:
    """Compute like the twin in ``ops/reference/attention.py``; rows contiguous.

    Raises:
        NotImplementedError: edges have logits; see :func:`gat_forward`.
    """
    del above, share
    without_edges(edge_logit, grad_edge_logit)
    num_edges, heads = indices.numel(), lse.shape[1]
    if grad.shape[1] < src.shape[1]:
        grad = grad.repeat(1, heads)
    d = row_dots(grad, out, heads)
    # Zeros, since stored self-loops that implicit ones replace are not written but are summed below.
    edge_grad = lse.new_zeros((num_edges + num_loops, heads))
    segments = segments_of(t_indptr, num_edges)
    arguments = (
        t_indptr,
        t_indices,
        perm,
        src,
        src_logit,
        dst_logit,
        lse,
        grad,
        d,
        indptr,
        first_keys,
        edge_grad,
        grad_src,
        grad_src_logit,
        *partial_rows(segments, lse, src.shape[1], heads),
        float(slope),
        num_loops,
        num_edges,
    )
    shape = (src.shape[0], heads, src.shape[1] // heads)
    constants = {"LOOPS": num_loops > 0, **dropout_arguments(p, seed)}
    over_heads(gat_backward_kernel, segments, shape, arguments, constants)
    row_sums(indptr, num_edges, edge_grad, None, grad_dst_logit)
    grad_dst_logit[:num_loops] += edge_grad[num_edges:]
