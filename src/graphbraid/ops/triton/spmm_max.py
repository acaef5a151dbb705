"""Largest message per destination and feature in Triton; on the CPU ``csrc/aggregate/spmm_max.inl``."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from graphbraid.ops import reference
from graphbraid.ops.triton.launch import like
from graphbraid.ops.triton.partition import edges_of, load_row, load_rows, reduce_rows, store_sums, work_tile

NAN_KEY = tl.constexpr(0x7FFFFFFF)  # above the key of +inf, and as bits a NaN itself
NO_KEY = tl.constexpr(-(2**31))  # below the key of -inf
_NO_POSITION = tl.constexpr(0x7FFFFFFF)


@triton.jit
def ordered_key(x):
    """Return int32 keys in the order of float32 ``x``: equal for both zeros, largest for every NaN.

    As integers, the bits of positive floats rise with the floats. Those of negative ones fall, so all but the
    sign are flipped.
    """
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x != x, NAN_KEY, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits))


@triton.jit
def number_of_key(key):
    """Return the float32 of an :func:`ordered_key`."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def spmm_max_kernel(
    indptr,  # (num_dst + 1,) int64
    indices,  # (num_edges,) int32 or int64, in [0, num_src)
    x,  # (num_src, width) float32, float16 or bfloat16; rows x_stride apart
    weight,  # (num_edges,) float32 or None
    out,  # (num_dst, width) of x's dtype
    found,  # (num_dst, width) int32, or None
    partial_key,  # (num_segments, width) int32: written where PARTIAL, else read; None without hubs
    partial_found,  # likewise
    width,
    x_stride,
    segment_row,  # see partition.HubSegments
    segment_first,
    TIES: tl.constexpr,  # an index into ops.spmm.TIES
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute the maximum over in-neighbours, and which edge won it or how many are equal.

    out[v, f] = max of weight[e] * x[u, f] over the edges e = u -> v, 0 in an empty row; a NaN wins. For found
    see ops.spmm.TIES. Messages are compared as integers of the same order (ordered_key), whose maximum is
    exact and which also order NaNs.

    Bound by reading num_edges rows of x.
    """
    item, columns, inside = work_tile(width, FEAT)
    v, begin, end = edges_of(item, indptr, segment_row, segment_first, SEGMENT, PARTIAL)
    row_begin = tl.load(indptr + v)
    best = tl.full((EDGES, FEAT), NO_KEY, tl.int32)
    kept = tl.full((EDGES, FEAT), _NO_POSITION if TIES == 0 else 0, tl.int32)
    for first in range(begin, end, EDGES):
        e = first + tl.arange(0, EDGES)
        live = e < end
        u = tl.load(indices + e, mask=live, other=0).to(tl.int64)
        rows = load_rows(x, u, x_stride, columns, live[:, None] & inside[None, :])
        if weight is not None:
            rows *= tl.load(weight + e, mask=live, other=0.0)[:, None]
        key = tl.where(live[:, None], ordered_key(rows), NO_KEY)
        value = (e - row_begin if TIES == 0 else live).to(tl.int32)[:, None]
        best, kept = keep_larger(key, value, best, kept, TIES)
    if not PARTIAL and segment_row is not None:
        last = tl.load(segment_first + v + 1)
        for first in range(tl.load(segment_first + v), last, EDGES):
            s = first + tl.arange(0, EDGES)
            live = (s < last)[:, None] & inside[None, :]
            place = s[:, None] * width + columns[None, :]
            key = tl.load(partial_key + place, mask=live, other=NO_KEY)
            value = tl.load(partial_found + place, mask=live, other=_NO_POSITION if TIES == 0 else 0)
            best, kept = keep_larger(key, value, best, kept, TIES)
    top = tl.max(best, axis=0)
    is_top = best == top[None, :]
    if TIES == 0:
        result = tl.min(tl.where(is_top, kept, _NO_POSITION), axis=0)
    else:
        result = tl.sum(tl.where(is_top, kept, 0), axis=0)
    place = item * width + columns
    if PARTIAL:
        tl.store(partial_key + place, top, mask=inside)
        tl.store(partial_found + place, result, mask=inside)
    else:
        value = number_of_key(top)
        is_empty = tl.load(indptr + v + 1) == row_begin
        tl.store(out + place, tl.where(is_empty, 0.0, value), mask=inside)
        if found is not None:
            if TIES == 0:
                result = tl.where(is_empty, -1, result)
            else:
                if TIES == 2:
                    result += (top == 0).to(tl.int32)
                result = tl.where(is_empty | (top == NAN_KEY), 0, result)
            tl.store(found + place, result, mask=inside)


@triton.jit
def keep_larger(key, value, best, kept, TIES: tl.constexpr):
    """Keep the value of the larger key; for equal keys, keep the first position or add the counts."""
    if TIES == 0:
        kept = tl.where(key > best, value, kept)
    else:
        kept = tl.where(key > best, value, tl.where(key == best, kept + value, kept))
    return tl.maximum(best, key), kept


@triton.jit
def spmm_max_backward_kernel(
    indptr,  # (num_src + 1,) int64, of the transpose
    indices,  # (num_edges,) int32 or int64, of the transpose: destinations
    perm,  # (num_edges,) int64: edge of the transpose -> edge
    forward_indptr,  # (num_dst + 1,) int64
    grad,  # (num_dst, width) of out's dtype; rows grad_stride apart
    weight,  # (num_edges,) float32 in the order of the transpose, or None
    winner,  # (num_dst, width) int32
    out,  # (num_src, width)
    partial,  # (num_segments, width) float32; None without hubs
    width,
    grad_stride,
    segment_row,
    segment_first,
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute the maximum's gradient: out[u, f] = sum of weight[e] * grad[v, f] over edges that won (v, f).

    Bound by reading num_edges rows of grad and of winner.
    """
    item, columns, inside = work_tile(width, FEAT)
    u, begin, end = edges_of(item, indptr, segment_row, segment_first, SEGMENT, PARTIAL)
    acc = tl.zeros((EDGES, FEAT), tl.float32)
    for first in range(begin, end, EDGES):
        e = first + tl.arange(0, EDGES)
        live = e < end
        v = tl.load(indices + e, mask=live, other=0).to(tl.int64)
        start = tl.load(forward_indptr + v, mask=live, other=0)
        position = (tl.load(perm + e, mask=live, other=0) - start).to(tl.int32)
        tile = live[:, None] & inside[None, :]
        winners = tl.load(winner + v[:, None] * width + columns[None, :], mask=tile, other=-1)
        won = winners == position[:, None]
        rows = load_rows(grad, v, grad_stride, columns, won & tile)
        if weight is not None:
            rows *= tl.load(weight + e, mask=live, other=0.0)[:, None]
        acc += rows
    store_sums(acc, item, u, out, partial, segment_first, columns, inside, width, PARTIAL, EDGES)


@triton.jit
def spmm_max_shared_backward_kernel(
    indptr,  # (num_src + 1,) int64, of the transpose
    indices,  # (num_edges,) int32 or int64, of the transpose: destinations
    share,  # (num_dst, width) gradients over the number of shares; rows share_stride apart
    weight,  # (num_edges,) float32 in the order of the transpose, or None
    largest,  # (num_dst, width): the maxima, of share's dtype
    x,  # (num_src, width): what they were taken of; rows x_stride apart
    out,  # (num_src, width)
    partial,  # (num_segments, width) float32; None without hubs
    width,
    share_stride,
    x_stride,
    segment_row,
    segment_first,
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute a shared maximum's gradient: sum of weight[e] * share[v, f] over the edges of equal messages.

    No message is above the maximum, so one that is not below it is equal, or the maximum is a NaN that all
    share. Bound by reading num_edges rows of share and of largest.
    """
    item, columns, inside = work_tile(width, FEAT)
    u, begin, end = edges_of(item, indptr, segment_row, segment_first, SEGMENT, PARTIAL)
    own = load_row(x, u, x_stride, columns, inside)[None, :]
    acc = tl.zeros((EDGES, FEAT), tl.float32)
    for first in range(begin, end, EDGES):
        e = first + tl.arange(0, EDGES)
        live = e < end
        v = tl.load(indices + e, mask=live, other=0).to(tl.int64)
        tile = live[:, None] & inside[None, :]
        best = load_rows(largest, v, width, columns, tile)
        rows = load_rows(share, v, share_stride, columns, tile)
        if weight is not None:
            factor = tl.load(weight + e, mask=live, other=0.0)[:, None]
            acc += tl.where((own * factor < best) | (tile == 0), 0.0, rows * factor)
        else:
            acc += tl.where((own < best) | (tile == 0), 0.0, rows)
    store_sums(acc, item, u, out, partial, segment_first, columns, inside, width, PARTIAL, EDGES)


@like(reference.spmm_max)
def spmm_max(a: Any) -> None:
    """Compute like the twin; ``out`` and ``found``, where it is asked for, are contiguous."""
    reduce_rows(spmm_max_kernel, a, dtype=torch.int32, TIES=a.ties)


@like(reference.spmm_max_backward)
def spmm_max_backward(a: Any) -> None:
    """Compute like the twin; ``weight`` is in the order of the transpose."""
    reduce_rows(spmm_max_backward_kernel, a)


@like(reference.spmm_max_shared_backward)
def spmm_max_shared_backward(a: Any) -> None:
    """Compute like the twin; ``weight`` is in the order of the transpose."""
    reduce_rows(spmm_max_shared_backward_kernel, a)
