"""Values of edges in Triton: inner products along edges, and the softmax over each destination's in-edges."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops import reference
from graphbraid.ops.triton.launch import launch, like
from graphbraid.ops.triton.partition import (
    RowReduction,
    destination_of,
    edges_by_row,
    edges_of,
    load_rows,
    partial_rows,
    store_sums,
    work_tile,
)


@triton.jit(do_not_specialize=["num_dst", "num_edges", "steps"])
def sddmm_kernel(
    indptr,  # (num_dst + 1,) int64
    indices,  # (num_edges,) int32 or int64, in [0, num_src)
    dst,  # (num_dst, heads * channels) float32, float16 or bfloat16; rows dst_stride apart
    src,  # (num_src, heads * channels); rows src_stride apart
    dst_scale,  # (num_dst,) float32 or None
    src_scale,  # (num_src,) float32 or None
    out,  # (num_edges, heads) float32
    num_dst,
    num_edges,
    steps,  # of the binary search for a row
    heads,
    channels,
    dst_stride,
    src_stride,
    EDGES: tl.constexpr,
    CHANNELS: tl.constexpr,  # of a head taken together, a power of two
):
    """Compute inner products along edges.

    out[e, h] = dst_scale[v] * src_scale[u] * <dst[v, h, :], src[u, h, :]> for the edge e = u -> v.
    A program handles EDGES consecutive edges, whatever rows they belong to, so hubs need no special care.

    Bound by reading num_edges rows of src; a row of dst is read once for neighbouring edges.
    """
    e = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    live = e < num_edges
    v = destination_of(e, indptr, num_dst, steps)
    u = tl.load(indices + e, mask=live, other=0).to(tl.int64)
    for head in range(heads):
        acc = tl.zeros((EDGES, CHANNELS), tl.float32)
        for channel in range(0, channels, CHANNELS):
            c = channel + tl.arange(0, CHANNELS)
            tile = live[:, None] & (c < channels)[None, :]
            columns = head * channels + c
            left = load_rows(dst, v, dst_stride, columns, tile)
            acc += left * load_rows(src, u, src_stride, columns, tile)
        total = tl.sum(acc, axis=1)
        if dst_scale is not None:
            total *= tl.load(dst_scale + v, mask=live, other=0.0)
        if src_scale is not None:
            total *= tl.load(src_scale + u, mask=live, other=0.0)
        tl.store(out + e * heads + head, total, mask=live)


_LOWEST = tl.constexpr(-1e38)  # finite, so that the difference of two empty maxima is 0 and not NaN


@triton.jit
def softmax_rows_kernel(
    indptr,  # (num_dst + 1,) int64
    logits,  # (num_edges, heads) float32
    top,  # (num_dst, heads) float32
    total,  # (num_dst, heads) float32
    partial_top,  # (num_segments, heads) float32: written where PARTIAL, else read; None without hubs
    partial_total,  # likewise
    heads,
    segment_row,  # see partition.HubSegments
    segment_first,
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,  # heads taken together
):
    """Compute top = max of the logits and total = sum of exp(logit - top) per row and head, in one pass.

    Each lane keeps its own running maximum; the lanes are combined at the end. Bound by reading logits once.
    """
    item, columns, inside = work_tile(heads, FEAT)
    v, begin, end = edges_of(item, indptr, segment_row, segment_first, SEGMENT, PARTIAL)
    high = tl.full((EDGES, FEAT), _LOWEST, tl.float32)
    acc = tl.zeros((EDGES, FEAT), tl.float32)
    for first in range(begin, end, EDGES):
        e = first + tl.arange(0, EDGES)
        place = e[:, None] * heads + columns[None, :]
        mask = (e < end)[:, None] & inside[None, :]
        logit = tl.load(logits + place, mask=mask, other=-float("inf"))
        raised = tl.maximum(high, logit)
        acc = acc * tl.exp(high - raised) + tl.exp(logit - raised)
        high = raised
    if not PARTIAL and segment_row is not None:
        last = tl.load(segment_first + v + 1)
        for first in range(tl.load(segment_first + v), last, EDGES):
            s = first + tl.arange(0, EDGES)
            place = s[:, None] * heads + columns[None, :]
            mask = (s < last)[:, None] & inside[None, :]
            logit = tl.load(partial_top + place, mask=mask, other=_LOWEST)
            raised = tl.maximum(high, logit)
            powers = tl.load(partial_total + place, mask=mask, other=0.0) * tl.exp(logit - raised)
            acc = acc * tl.exp(high - raised) + powers
            high = raised
    best = tl.max(high, axis=0)
    acc *= tl.exp(high - best[None, :])
    place = item * heads + columns
    if PARTIAL:
        tl.store(partial_top + place, best, mask=inside)
        tl.store(partial_total + place, tl.sum(acc, axis=0), mask=inside)
    else:
        tl.store(top + place, best, mask=inside)
        tl.store(total + place, tl.sum(acc, axis=0), mask=inside)


@triton.jit
def row_sums_kernel(
    indptr,  # (num_dst + 1,) int64
    values,  # (num_edges, heads) float32
    factors,  # (num_edges, heads) float32 or None
    out,  # (num_dst, heads) float32
    partial,  # (num_segments, heads) float32: written where PARTIAL, else read; None without hubs
    heads,
    segment_row,
    segment_first,
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Sum out[v, h] = sum of values[e, h] * factors[e, h] over v's edges. Bound by reading both once."""
    item, columns, inside = work_tile(heads, FEAT)
    v, begin, end = edges_of(item, indptr, segment_row, segment_first, SEGMENT, PARTIAL)
    acc = tl.zeros((EDGES, FEAT), tl.float32)
    for first in range(begin, end, EDGES):
        e = first + tl.arange(0, EDGES)
        mask = (e < end)[:, None] & inside[None, :]
        rows = load_rows(values, e, heads, columns, mask)
        if factors is not None:
            rows *= load_rows(factors, e, heads, columns, mask)
        acc += rows
    store_sums(acc, item, v, out, partial, segment_first, columns, inside, heads, PARTIAL, EDGES)


@triton.jit(do_not_specialize=["num_dst", "num_edges", "steps"])
def softmax_edges_kernel(
    indptr,  # (num_dst + 1,) int64
    values,  # (num_edges, heads) float32: logits, or alpha where BACKWARD
    grad,  # (num_edges, heads) float32 where BACKWARD
    top,  # (num_dst, heads) float32 where not BACKWARD
    total,  # (num_dst, heads) float32
    out,  # (num_edges, heads) float32
    num_dst,
    num_edges,
    steps,
    heads,
    BACKWARD: tl.constexpr,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute each edge's result from its row's statistics.

    Forward: out = exp(logit - top) / total. Backward, with total = sum over the row's edges of alpha * grad:
    out = alpha * (grad - total). Bound by reading the edges' values and writing out.
    """
    e = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    columns = tl.program_id(1) * FEAT + tl.arange(0, FEAT)
    v = destination_of(e, indptr, num_dst, steps)
    mask = (e < num_edges)[:, None] & (columns < heads)[None, :]
    place = e[:, None] * heads + columns[None, :]
    at_row = v[:, None] * heads + columns[None, :]
    value = tl.load(values + place, mask=mask, other=0.0)
    row_total = tl.load(total + at_row, mask=mask, other=1.0)
    if BACKWARD:
        result = value * (tl.load(grad + place, mask=mask, other=0.0) - row_total)
    else:
        result = tl.exp(value - tl.load(top + at_row, mask=mask, other=0.0)) / row_total
    tl.store(out + place, result, mask=mask)


@like(reference.sddmm)
def sddmm(a: Any) -> None:
    """Compute like the twin; rows are float32, float16 or bfloat16."""
    num_edges, heads = a.out.shape
    if a.out.numel() == 0:
        return
    channels = a.dst.shape[1] // heads
    # A warp reads 128 columns, with at most eight values per lane, as each needs two 64-bit addresses.
    block = min(128, triton.next_power_of_2(max(channels, 1)))
    edges = max(8, min(64, 1024 // block))
    numbers = {**edges_by_row(a.indptr, num_edges), "heads": heads, "channels": channels}
    grid = (triton.cdiv(num_edges, edges),)
    launch(sddmm_kernel, grid, a, **numbers, EDGES=edges, CHANNELS=block, num_warps=4)


@like(reference.edge_softmax)
def edge_softmax(a: Any) -> None:
    """Compute like the twin: ``(num_edges, heads)`` float32, contiguous."""
    if a.logits.numel() == 0:
        return
    num_edges, heads = a.logits.shape
    top, total = (a.logits.new_empty((a.indptr.numel() - 1, heads)) for _ in range(2))
    reduce = RowReduction(a.indptr, num_edges, heads)
    partial_top, partial_total = partial_rows(reduce.segments, a.logits, heads, heads)
    sums = {"top": top, "total": total, "partial_top": partial_top, "partial_total": partial_total}
    reduce.launch(softmax_rows_kernel, a, **sums, heads=heads)
    _over_edges(a, values=a.logits, grad=None, top=top, total=total, BACKWARD=False)


@like(reference.edge_softmax_backward)
def edge_softmax_backward(a: Any) -> None:
    """Compute like the twin: ``(num_edges, heads)`` float32, contiguous."""
    if a.alpha.numel() == 0:
        return
    total = a.alpha.new_empty((a.indptr.numel() - 1, a.alpha.shape[1]))
    row_sums(a.indptr, a.alpha.shape[0], a.alpha, a.grad, total)
    _over_edges(a, values=a.alpha, top=None, total=total, BACKWARD=True)


def row_sums(indptr: Tensor, num_edges: int, values: Tensor, factors: Tensor | None, out: Tensor) -> None:
    """Sum ``out[v, h] = sum of values[e, h] * factors[e, h]`` over the edges of each row.

    Args:
        indptr: ``(num_dst + 1,)`` int64.
        num_edges: last value of ``indptr``.
        values: ``(at least num_edges, heads)`` float32, contiguous.
        factors: like ``values``, or None for ones.
        out: ``(num_dst, heads)`` float32, contiguous.
    """
    if out.numel():
        a = SimpleNamespace(indptr=indptr, values=values, factors=factors, out=out)
        RowReduction(indptr, num_edges, out.shape[1]).launch(row_sums_kernel, a, heads=out.shape[1])


def _over_edges(a: Any, *, values: Tensor, **more: Any) -> None:
    num_edges, heads = values.shape
    columns = min(64, triton.next_power_of_2(heads))
    tile = {"EDGES": 1024 // columns, "FEAT": columns, "num_warps": 4}
    grid = triton.cdiv(num_edges, tile["EDGES"]), triton.cdiv(heads, columns)
    numbers = {**edges_by_row(a.indptr, num_edges), "heads": heads}
    launch(softmax_edges_kernel, grid, a, values=values, **more, **numbers, **tile)
