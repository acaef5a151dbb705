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
with id num_edges + v; stored self-loops are then ignored. A tile is (EDGES, HEADS, CHANNELS): each row of src
is read once for as many heads as fit, with all channels of a head at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

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
)
from graphbraid.ops.triton.dropout import dropout_arguments
from graphbraid.ops.triton.partition import partial_rows, segments_of

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
    """Refuse logits or features of edges, which no kernel here reads."""
    if any(given is not None for given in of_edges):
        raise NotImplementedError(
            "the kernels in Triton take no logits or features of edges; those on the CPU do"
        )


def gat_forward(
    indptr: Tensor,
    indices: Tensor,
    src: Tensor,
    src_logit: Tensor,
    dst_logit: Tensor,
    slope: float,
    num_loops: int,
    p: float,
    seed: int | Tensor,
    out: Tensor,
    lse: Tensor,
    above: Tensor | None = None,
    share: Tensor | None = None,
    first_keys: Tensor | None = None,
    edge_logit: Tensor | None = None,
) -> None:
    """Compute like the twin in ``ops/reference/attention.py``; rows contiguous.

    ``above`` and ``share`` are not written: the backward pass here sums over the edges instead.

    Raises:
        NotImplementedError: edges have logits; on a device, models with such layers run uncompiled.
    """
    del above, share
    without_edges(edge_logit)
    inputs = (src_logit, dst_logit, None, None, first_keys)
    _attend(indptr, indices, src, inputs, slope, num_loops, p, seed, out, lse)


def gatv2_forward(
    indptr: Tensor,
    indices: Tensor,
    src: Tensor,
    dst: Tensor,
    att: Tensor,
    slope: float,
    num_loops: int,
    p: float,
    seed: int | Tensor,
    out: Tensor,
    lse: Tensor,
    first_keys: Tensor | None = None,
    edge_features: Tensor | None = None,
    loop_features: Tensor | None = None,
    edge_weight: Tensor | None = None,
) -> None:
    """Compute like the twin in ``ops/reference/attention.py``; rows contiguous.

    Raises:
        NotImplementedError: edges have features; see :func:`gat_forward`.
    """
    without_edges(edge_features, loop_features, edge_weight)
    inputs = (None, None, dst, att, first_keys)
    _attend(indptr, indices, src, inputs, slope, num_loops, p, seed, out, lse)


def _attend(
    indptr: Tensor,
    indices: Tensor,
    src: Tensor,
    inputs: tuple[Tensor | None, ...],
    slope: float,
    num_loops: int,
    p: float,
    seed: int | Tensor,
    out: Tensor,
    lse: Tensor,
) -> None:
    if out.numel() == 0:
        return
    num_edges, heads = indices.numel(), lse.shape[1]
    segments, channels = segments_of(indptr, num_edges), out.shape[1] // heads
    arguments = (
        indptr,
        indices,
        src,
        *inputs,
        out,
        lse,
        *partial_rows(segments, lse, out.shape[1], heads, heads),
        float(slope),
        num_loops,
        num_edges,
    )
    constants = {"LOOPS": num_loops > 0, **dropout_arguments(p, seed)}
    over_heads(attend_kernel, segments, (out.shape[0], heads, channels), arguments, constants)
