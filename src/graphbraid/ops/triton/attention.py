"""Fused attention over in-neighbours in Triton, GAT and GATv2, by ``csrc/attention/attention.inl``.

With e = u -> v, per head h:

    GAT    logit[e, h] = leaky(src_logit[u, h] + dst_logit[v, h])
    GATv2  logit[e, h] = sum over c of att[h, c] * leaky(src[u, h, c] + dst[v, h, c])
    out[v, h, :] = sum of mask[e, h] * softmax over v's edges(logit)[e, h] * src[u, h, :]

The forward pass reads each row once, with running maxima, and keeps the log-sum-exp of each row and head,
from which the backward pass recomputes the coefficients. With D[v, h] = <grad[v, h, :], out[v, h, :]> the
gradient of a logit is

    g[e, h] = alpha * (mask * <grad[v, h, :], src[u, h, :]> - D[v, h])

The largest temporary is (num_edges, heads). An implicit self-loop is one more edge at the end of its row,
with id num_edges + v; stored self-loops are then ignored. A tile is (EDGES, HEADS, CHANNELS): it holds as
many heads as fit, with all channels of each, so that each row of src is read once for all of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops import reference
from graphbraid.ops.triton.epilogue import dropout_arguments, dropout_key, kept, seed_of
from graphbraid.ops.triton.launch import launch, like, on_device_of
from graphbraid.ops.triton.partition import (
    edges_of,
    heads_tile,
    load_rows,
    over_rows,
    partial_rows,
    segments_of,
)

COUNTS = ["num_loops", "num_edges", "seed", "threshold"]  # not specialised on, as they differ between batches


@triton.jit
def head_tile(heads, channels, HEADS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return a program's heads and their mask, and the positions of their columns and those columns' mask."""
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    c = tl.arange(0, CHANNELS)
    head = h < heads
    inside = head[:, None] & (c < channels)[None, :]
    place = h[:, None] * channels + c[None, :]
    return h, head, place, inside


@triton.jit
def edges_and_loop(
    item,  # a segment where PARTIAL, else a row
    indptr,
    num_loops,
    segment_row,
    segment_first,
    LOOPS: tl.constexpr,
    SEGMENT: tl.constexpr,
    PARTIAL: tl.constexpr,
):
    """Return a work item's row, its stored edges [begin, end), and their end with an implicit self-loop."""
    v, begin, end = edges_of(item, indptr, segment_row, segment_first, SEGMENT, PARTIAL)
    stop = end
    if LOOPS and not PARTIAL:
        stop = tl.where(v < num_loops, end + 1, end)
    return v, begin, end, stop


@triton.jit
def edges_to_nodes(
    first,  # first edge of the tile
    end,  # end of the row's stored edges
    stop,  # end + 1 if the row has an implicit self-loop, else end
    row,
    ids,  # (num_edges,) int32 or int64: the other end of each edge
    perm,  # (num_edges,) int64 edge numbers, or None if they are the positions
    num_edges,
    LOOPS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Return the node at the other end of EDGES edges, the edges' numbers, and whether they count."""
    e = first + tl.arange(0, EDGES)
    stored = e < end
    live = e < stop
    node = tl.load(ids + e, mask=stored, other=0).to(tl.int64)
    number = e
    if perm is not None:
        number = tl.load(perm + e, mask=stored, other=0)
    if LOOPS:
        live = live & ((e >= end) | (node != row))
        node = tl.where(stored, node, row)
        number = tl.where(stored, number, num_edges + row)
    return node, number, live


@triton.jit
def load_own(rows, v, width, place, inside):
    """Load the heads' columns of row ``v`` as (HEADS, CHANNELS) float32."""
    return tl.load(rows + v * width + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def load_heads(rows, i, width, place, live, inside):
    """Load the heads' columns of the rows ``i`` as (EDGES, HEADS, CHANNELS) float32; 0 where not live."""
    at = i[:, None, None] * width + place[None, :, :]
    return tl.load(rows + at, mask=live[:, None, None] & inside[None, :, :], other=0.0).to(tl.float32)


@triton.jit
def load_numbers(numbers, i, heads, h, live, head, other):
    """Load the heads' values of the rows ``i`` of (num_rows, heads) as (EDGES, HEADS); else ``other``."""
    at = i[:, None] * heads + h[None, :]
    return tl.load(numbers + at, mask=live[:, None] & head[None, :], other=other)


@triton.jit
def add_head_segments(acc, partial, segment_first, v, width, place, inside, EDGES: tl.constexpr):
    """Add to the tile ``acc`` the segments of row v in ``partial`` (num_segments, width) if v is a hub."""
    if segment_first is not None:
        last = tl.load(segment_first + v + 1)
        for first in range(tl.load(segment_first + v), last, EDGES):
            s = first + tl.arange(0, EDGES)
            acc += load_heads(partial, s, width, place, s < last, inside)
    return acc


@triton.jit
def store_head_sums(
    acc,  # (EDGES, HEADS, CHANNELS) float32
    item,  # a segment where PARTIAL, else the row v
    v,
    out,  # (num_rows, width)
    partial,  # (num_segments, width) float32: written where PARTIAL, else read; None without hubs
    segment_first,
    width,
    place,
    inside,
    PARTIAL: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Write a segment's sums, or a row's sums together with those of its segments."""
    if PARTIAL:
        tl.store(partial + item * width + place, tl.sum(acc, axis=0), mask=inside)
    else:
        acc = add_head_segments(acc, partial, segment_first, v, width, place, inside, EDGES)
        tl.store(out + v * width + place, tl.sum(acc, axis=0), mask=inside)


@triton.jit
def mask_keys(
    number,  # number of each edge; num_edges + v for an implicit self-loop
    v,  # destination of each edge, or of all
    indptr,  # (num_dst + 1,) int64
    first_keys,  # (num_dst,) int64; if None, rows follow each other, each with room for a loop at its end
    num_edges,
):
    """Return the key of each edge's dropout mask: counted up from the row's first, self-loops last."""
    edge = tl.where(number < num_edges, number, tl.load(indptr + v + 1))
    offset = v
    if first_keys is not None:
        offset = tl.load(first_keys + v) - tl.load(indptr + v)
    return edge + offset


@triton.jit
def coefficients_kept(number, v, indptr, first_keys, num_edges, h, seed, threshold):
    """Return which coefficients of the tile's edges and heads dropout keeps, as (EDGES, HEADS)."""
    keys = mask_keys(number, v, indptr, first_keys, num_edges)
    return kept(dropout_key(seed_of(seed), keys)[:, None], h[None, :], threshold)


@triton.jit
def leaky(z, slope):
    """Apply leaky ReLU."""
    return tl.where(z > 0, z, z * slope)


def over_heads(kernel: Any, a: Any, indptr: Tensor, shape: tuple[int, int, int], **more: Any) -> None:
    """Launch a kernel over the segments of hubs, then over all rows, with the heads that share a tile.

    ``shape`` has the numbers of rows, heads and channels per head; nothing is launched if one is 0.
    """
    num_rows, heads, channels = shape
    if num_rows * heads * channels == 0:
        return
    more |= {**heads_tile(heads, channels), "slope": float(a.slope), "LOOPS": a.num_loops > 0}
    num_edges = a.indices.numel()
    run = partial(launch, kernel, a=a, num_edges=num_edges, **more)
    over_rows(run, segments_of(indptr, num_edges), num_rows, triton.cdiv(heads, more["HEADS"]))


@triton.jit(do_not_specialize=["count"])
def row_dots_kernel(
    a,  # (count, channels) float32, float16 or bfloat16
    b,  # (count, channels) of the same dtype
    out,  # (count,) float32
    count,
    channels,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute out[i] = <a[i, :], b[i, :]>. Bound by reading both once."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    mask = (i < count)[:, None] & (c < channels)[None, :]
    products = load_rows(a, i, channels, c, mask) * load_rows(b, i, channels, c, mask)
    tl.store(out + i, tl.sum(products, axis=1), mask=i < count)


def row_dots(a: Tensor, b: Tensor, heads: int) -> Tensor:
    """Return ``(num_rows, heads)`` float32 inner products of the rows of ``a`` and ``b``, per head."""
    out = a.new_empty((a.shape[0], heads), dtype=torch.float32)
    if out.numel() == 0:
        return out
    count, channels = out.numel(), a.shape[1] // heads
    block = triton.next_power_of_2(channels)
    rows = max(1, min(64, 1024 // block))
    with on_device_of(a):
        row_dots_kernel[(triton.cdiv(count, rows),)](
            a, b, out, count, channels, ROWS=rows, CHANNELS=block, num_warps=4
        )
    return out


_LOWEST = tl.constexpr(-1e38)  # finite, so that the difference of two empty maxima is 0 and not NaN


@triton.jit(do_not_specialize=COUNTS)
def attend_kernel(
    indptr,  # (num_dst + 1,) int64
    indices,  # (num_edges,) int32 or int64, in [0, num_src)
    src,  # (num_src, heads * channels) float32, float16 or bfloat16
    src_logit,  # (num_src, heads) float32; None: GATv2
    dst_logit,  # (num_dst, heads) float32; None: GATv2
    dst,  # (num_dst, heads * channels) of src's dtype; None: GAT
    att,  # (heads, channels) float32; None: GAT
    first_keys,  # see mask_keys
    out,  # (num_dst, heads * channels) of src's dtype
    lse,  # (num_dst, heads) float32
    partial,  # (num_segments, heads * channels) float32: written where PARTIAL, else read; None without hubs
    partial_top,  # (num_segments, heads) float32, likewise
    partial_total,  # likewise
    slope,
    num_loops,
    num_edges,
    seed,
    threshold,
    keep_scale,
    heads,
    channels,
    segment_row,  # see partition.HubSegments
    segment_first,
    LOOPS: tl.constexpr,
    DROPOUT: tl.constexpr,
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute the forward pass of HEADS heads of one row, or of one segment of a hub.

    Each of EDGES lanes keeps its own maximum and sums, rescaled whenever the maximum rises; the lanes are
    combined at the end. Bound by reading num_edges rows of src.
    """
    item = tl.program_id(0).to(tl.int64)
    h, head, place, inside = head_tile(heads, channels, HEADS, CHANNELS)
    width = heads * channels
    v, begin, end, stop = edges_and_loop(
        item, indptr, num_loops, segment_row, segment_first, LOOPS, SEGMENT, PARTIAL
    )
    if att is None:
        right = tl.load(dst_logit + v * heads + h, mask=head, other=0.0)
    else:
        right = load_own(dst, v, width, place, inside)
        scale = tl.load(att + place, mask=inside, other=0.0)
    top = tl.full((EDGES, HEADS), _LOWEST, tl.float32)
    total = tl.zeros((EDGES, HEADS), tl.float32)
    acc = tl.zeros((EDGES, HEADS, CHANNELS), tl.float32)
    for first in range(begin, stop, EDGES):
        u, number, live = edges_to_nodes(first, end, stop, v, indices, None, num_edges, LOOPS, EDGES)
        rows = load_heads(src, u, width, place, live, inside)
        if att is None:
            left = load_numbers(src_logit, u, heads, h, live, head, 0.0)
            logit = leaky(left + right[None, :], slope)
        else:
            logit = tl.sum(scale[None, :, :] * leaky(rows + right[None, :, :], slope), axis=2)
        logit = tl.where(live[:, None], logit, -float("inf"))
        raised = tl.maximum(top, logit)
        shrink = tl.exp(top - raised)
        power = tl.exp(logit - raised)
        total = total * shrink + power
        if DROPOUT:
            stays = coefficients_kept(number, v, indptr, first_keys, num_edges, h, seed, threshold)
            power = tl.where(stays, power * keep_scale, 0.0)
        acc = acc * shrink[:, :, None] + power[:, :, None] * rows
        top = raised
    if not PARTIAL and segment_row is not None:
        last = tl.load(segment_first + v + 1)
        for first in range(tl.load(segment_first + v), last, EDGES):
            s = first + tl.arange(0, EDGES)
            live = s < last
            logit = load_numbers(partial_top, s, heads, h, live, head, _LOWEST)
            sums = load_numbers(partial_total, s, heads, h, live, head, 0.0)
            rows = load_heads(partial, s, width, place, live, inside)
            raised = tl.maximum(top, logit)
            shrink = tl.exp(top - raised)
            power = tl.exp(logit - raised)
            total = total * shrink + power * sums
            acc = acc * shrink[:, :, None] + power[:, :, None] * rows
            top = raised
    best = tl.max(top, axis=0)
    shrink = tl.exp(top - best[None, :])
    row_total = tl.sum(total * shrink, axis=0)
    row = tl.sum(acc * shrink[:, :, None], axis=0)
    if PARTIAL:
        tl.store(partial_top + item * heads + h, best, mask=head)
        tl.store(partial_total + item * heads + h, row_total, mask=head)
        tl.store(partial + item * width + place, row, mask=inside)
    else:
        is_empty = row_total == 0
        divisor = tl.where(is_empty, 1.0, row_total)
        tl.store(out + v * width + place, row / divisor[:, None], mask=inside)
        tl.store(lse + v * heads + h, tl.where(is_empty, 0.0, best + tl.log(divisor)), mask=head)


def without_edges(*of_edges: Tensor | None) -> None:
    """Refuse logits or features of edges. A model that needs them is not compiled for a device.

    Raises:
        NotImplementedError: logits or features of edges are given.
    """
    if any(given is not None for given in of_edges):
        raise NotImplementedError(
            "the kernels in Triton take no logits or features of edges; those on the CPU do"
        )


@like(reference.gat_forward)
def gat_forward(a: Any) -> None:
    """Compute like the twin; rows contiguous.

    ``above`` and ``share`` are not written: the backward pass here sums over the edges instead.
    """
    without_edges(a.edge_logit)
    if a.att is not None:
        reference.attention.make_logits(a.src, a.att, (a.src_logit, a.dst_logit))
    _attend(a, dst=None, att=None)


@like(reference.gatv2_forward)
def gatv2_forward(a: Any) -> None:
    """Compute like the twin; rows contiguous."""
    without_edges(a.edge_features, a.loop_features, a.edge_weight)
    _attend(a, src_logit=None, dst_logit=None)


def _attend(a: Any, **others: None) -> None:
    heads, (num_dst, width) = a.lse.shape[1], a.out.shape
    sums, top, total = partial_rows(segments_of(a.indptr, a.indices.numel()), a.lse, width, heads, heads)
    buffers = {"partial": sums, "partial_top": top, "partial_total": total}
    shape = num_dst, heads, width // max(heads, 1)
    over_heads(attend_kernel, a, a.indptr, shape, **others, **buffers, **dropout_arguments(a.p, a.seed))
