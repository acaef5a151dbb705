"""Gradients of GAT's and GATv2's fused attention in Triton; the formulas are in ``attention.py``."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from graphbraid.ops import reference
from graphbraid.ops.triton.attention import (
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
    row_dots,
    store_head_sums,
    without_edges,
)
from graphbraid.ops.triton.edges import row_sums
from graphbraid.ops.triton.epilogue import column_sums, dropout_arguments
from graphbraid.ops.triton.launch import like
from graphbraid.ops.triton.partition import partial_rows, segments_of, store_sums


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


@triton.jit(do_not_specialize=COUNTS)
def gatv2_backward_by_destination_kernel(
    indptr,  # (num_dst + 1,) int64
    indices,  # (num_edges,) int32 or int64, in [0, num_src)
    src,  # (num_src, heads * channels) float32, float16 or bfloat16
    dst,  # (num_dst, heads * channels) of src's dtype
    att,  # (heads, channels) float32
    lse,  # (num_dst, heads) float32
    grad,  # (num_dst, heads * channels) of src's dtype
    d,  # (num_dst, heads) float32: D
    first_keys,  # see mask_keys
    edge_grad,  # (num_edges + num_loops, heads) float32, written: gradient of each logit
    edge_alpha,  # (num_edges + num_loops, heads) float32, written: alpha * mask
    grad_dst,  # (num_dst, heads * channels) of src's dtype
    row_att,  # (num_dst, heads * channels) float32, written: each row's part of att's gradient
    partial,  # (num_segments, heads * channels) float32: written where PARTIAL, else read; None without hubs
    partial_att,  # likewise
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
    """Compute, by destination, GATv2's values per edge, dst's gradient, and each row's part of att's.

    Bound by reading num_edges rows of src.
    """
    item = tl.program_id(0).to(tl.int64)
    h, head, place, inside = head_tile(heads, channels, HEADS, CHANNELS)
    width = heads * channels
    v, begin, end, stop = edges_and_loop(
        item, indptr, num_loops, segment_row, segment_first, LOOPS, SEGMENT, PARTIAL
    )
    scale = tl.load(att + place, mask=inside, other=0.0)
    right = load_own(dst, v, width, place, inside)
    g = load_own(grad, v, width, place, inside)
    row_lse = tl.load(lse + v * heads + h, mask=head, other=0.0)
    row_d = tl.load(d + v * heads + h, mask=head, other=0.0)
    acc = tl.zeros((EDGES, HEADS, CHANNELS), tl.float32)
    acc_att = tl.zeros((EDGES, HEADS, CHANNELS), tl.float32)
    for first in range(begin, stop, EDGES):
        u, number, live = edges_to_nodes(first, end, stop, v, indices, None, num_edges, LOOPS, EDGES)
        rows = load_heads(src, u, width, place, live, inside)
        z = rows + right[None, :, :]
        logit = tl.sum(scale[None, :, :] * leaky(z, slope), axis=2)
        alpha = tl.exp(tl.where(live[:, None], logit - row_lse[None, :], -float("inf")))
        reached = tl.sum(g[None, :, :] * rows, axis=2)
        coefficient = alpha
        if DROPOUT:
            stays = coefficients_kept(number, v, indptr, first_keys, num_edges, h, seed, threshold)
            factor = tl.where(stays, keep_scale, 0.0)
            reached *= factor
            coefficient *= factor
        part = alpha * (reached - row_d[None, :])
        to = number[:, None] * heads + h[None, :]
        tl.store(edge_grad + to, part, mask=live[:, None] & head[None, :])
        tl.store(edge_alpha + to, coefficient, mask=live[:, None] & head[None, :])
        acc += part[:, :, None] * tl.where(z > 0, scale[None, :, :], scale[None, :, :] * slope)
        acc_att += part[:, :, None] * leaky(z, slope)
    store_head_sums(acc, item, v, grad_dst, partial, segment_first, width, place, inside, PARTIAL, EDGES)
    store_head_sums(
        acc_att, item, v, row_att, partial_att, segment_first, width, place, inside, PARTIAL, EDGES
    )


@triton.jit(do_not_specialize=["num_loops", "num_edges"])
def gatv2_backward_by_source_kernel(
    t_indptr,  # (num_src + 1,) int64, of the transpose
    t_indices,  # (num_edges,) int32 or int64: destinations
    perm,  # (num_edges,) int64: edge of the transpose -> edge
    src,  # (num_src, heads * channels) float32, float16 or bfloat16
    dst,  # (num_dst, heads * channels) of src's dtype
    att,  # (heads, channels) float32
    grad,  # (num_dst, heads * channels) of src's dtype
    edge_grad,  # (num_edges + num_loops, heads) float32
    edge_alpha,  # (num_edges + num_loops, heads) float32
    grad_src,  # (num_src, heads * channels) of src's dtype
    partial,  # (num_segments, heads * channels) float32: written where PARTIAL, else read; None without hubs
    slope,
    num_loops,
    num_edges,
    heads,
    channels,
    segment_row,
    segment_first,
    LOOPS: tl.constexpr,
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute, by source, GATv2's gradient of src, through the sum and through the logits.

    Bound by reading num_edges rows of grad and of dst.
    """
    item = tl.program_id(0).to(tl.int64)
    h, head, place, inside = head_tile(heads, channels, HEADS, CHANNELS)
    width = heads * channels
    u, begin, end, stop = edges_and_loop(
        item, t_indptr, num_loops, segment_row, segment_first, LOOPS, SEGMENT, PARTIAL
    )
    scale = tl.load(att + place, mask=inside, other=0.0)
    own = load_own(src, u, width, place, inside)
    acc = tl.zeros((EDGES, HEADS, CHANNELS), tl.float32)
    for first in range(begin, stop, EDGES):
        v, number, live = edges_to_nodes(first, end, stop, u, t_indices, perm, num_edges, LOOPS, EDGES)
        g = load_heads(grad, v, width, place, live, inside)
        z = own[None, :, :] + load_heads(dst, v, width, place, live, inside)
        coefficient = load_numbers(edge_alpha, number, heads, h, live, head, 0.0)
        part = load_numbers(edge_grad, number, heads, h, live, head, 0.0)
        acc += coefficient[:, :, None] * g
        acc += part[:, :, None] * tl.where(z > 0, scale[None, :, :], scale[None, :, :] * slope)
    store_head_sums(acc, item, u, grad_src, partial, segment_first, width, place, inside, PARTIAL, EDGES)


@like(reference.gat_backward)
def gat_backward(a: Any) -> None:
    """Compute like the twin; rows contiguous."""
    without_edges(a.edge_logit, a.grad_edge_logit)
    num_edges, heads, (num_src, width) = a.indices.numel(), a.lse.shape[1], a.src.shape
    if a.grad.shape[1] < width:
        a.grad = a.grad.repeat(1, heads)
    # Zeros, since stored self-loops that implicit ones replace are not written but are summed below.
    edge_grad = a.lse.new_zeros((num_edges + a.num_loops, heads))
    sums, logits = partial_rows(segments_of(a.t_indptr, num_edges), a.lse, width, heads)
    buffers = {"d": row_dots(a.grad, a.out, heads), "edge_grad": edge_grad}
    buffers |= {"partial": sums, "partial_logit": logits, **dropout_arguments(a.p, a.seed)}
    over_heads(gat_backward_kernel, a, a.t_indptr, (num_src, heads, width // heads), **buffers)
    row_sums(a.indptr, edge_grad[:num_edges], a.grad_dst_logit)
    a.grad_dst_logit[: a.num_loops] += edge_grad[num_edges:]
    if a.att is not None:
        both = a.grad_src_logit, a.grad_dst_logit
        reference.attention.add_through_logits(a.src, a.att, both, a.grad_src, a.grad_att)


@like(reference.gatv2_backward)
def gatv2_backward(a: Any) -> None:
    """Compute like the twin; rows contiguous."""
    without_edges(a.edge_features, a.loop_features, a.edge_weight, a.grad_edge_weight)
    num_edges, heads, (num_src, width) = a.indices.numel(), a.lse.shape[1], a.src.shape
    per_head, num_dst = (heads, width // heads), a.out.shape[0]
    edge_grad, edge_alpha = (a.lse.new_empty((num_edges + a.num_loops, heads)) for _ in range(2))
    of_edges = {"edge_grad": edge_grad, "edge_alpha": edge_alpha}
    row_att = a.lse.new_empty((num_dst, width))
    sums, sums_att = partial_rows(segments_of(a.indptr, num_edges), a.lse, width, width)
    buffers = {"d": row_dots(a.grad, a.out, heads), "row_att": row_att, **dropout_arguments(a.p, a.seed)}
    buffers |= {"partial": sums, "partial_att": sums_att, **of_edges}
    over_heads(gatv2_backward_by_destination_kernel, a, a.indptr, (num_dst, *per_head), **buffers)
    column_sums(row_att, a.grad_att.view(-1))
    of_edges["partial"], *_ = partial_rows(segments_of(a.t_indptr, num_edges), a.lse, width)
    over_heads(gatv2_backward_by_source_kernel, a, a.t_indptr, (num_src, *per_head), **of_edges)
