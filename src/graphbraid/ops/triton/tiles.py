"""Tiles of rows: the part of a matrix that a program handles, how it is read, and where its sums go."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def work_tile(width, FEAT: tl.constexpr):
    """Return a program's work item, its columns and their mask, in a grid of items by tiles."""
    item = tl.program_id(0).to(tl.int64)  # int64: item * width passes 2**31
    columns = tl.program_id(1) * FEAT + tl.arange(0, FEAT)
    return item, columns, columns < width


@triton.jit
def load_rows(rows, i, stride, columns, mask):
    """Load ``columns`` of the rows ``i``, ``stride`` apart, as (ROWS, FEAT) float32; 0 outside the mask."""
    place = i[:, None] * stride + columns[None, :]
    return tl.load(rows + place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_row(rows, v, stride, columns, inside):
    """Load ``columns`` of row ``v`` as (FEAT,) float32; 0 where they are not ``inside``."""
    return tl.load(rows + v * stride + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def add_segments(
    acc,  # (EDGES, FEAT) float32
    partial,  # (num_segments, width) float32; None without hubs
    segment_first,  # see partition.HubSegments; None without hubs
    v,
    columns,
    inside,
    width,
    EDGES: tl.constexpr,
):
    """Add to ``acc`` the segments of row v in ``partial`` if v is a hub."""
    if segment_first is not None:
        last = tl.load(segment_first + v + 1)
        for first in range(tl.load(segment_first + v), last, EDGES):
            s = first + tl.arange(0, EDGES)
            acc += load_rows(partial, s, width, columns, (s < last)[:, None] & inside[None, :])
    return acc


@triton.jit
def store_sums(
    acc,  # (EDGES, FEAT) float32
    item,  # a segment where PARTIAL, else the row v
    v,
    out,  # (num_rows, width)
    partial,  # (num_segments, width) float32: written where PARTIAL, else read; None without hubs
    segment_first,
    columns,
    inside,
    width,
    PARTIAL: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Write a segment's sums, or a row's sums together with those of its segments."""
    place = item * width + columns
    if PARTIAL:
        tl.store(partial + place, tl.sum(acc, axis=0), mask=inside)
    else:
        acc = add_segments(acc, partial, segment_first, v, columns, inside, width, EDGES)
        tl.store(out + place, tl.sum(acc, axis=0), mask=inside)
