"""Tiles of attention, (EDGES, HEADS, CHANNELS) values of a row's edges, and launches over them.

A tile holds as many heads as fit, with all channels of each, so that each row is read once for all of them.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from graphbraid.ops.triton.dropout import dropout_key, kept, seed_of
from graphbraid.ops.triton.partition import HubSegments, edges_of, over_rows

COUNTS = ["num_loops", "num_edges", "seed", "threshold"]  # not specialised on, as they differ between batches

_NUMBERS = 1024
"""Number of values in a tile: eight per lane of four warps, times two or three matrices."""
_NUMBERS_OF_AN_EDGE = 256
_MOST_EDGES = 16
_NUMBERS_OF_A_WARP = 256


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


def over_heads(
    kernel: Any,
    segments: HubSegments | None,
    shape: tuple[int, int, int],
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
) -> None:
    """Launch a kernel over the segments of hubs, then over all rows, with the heads that share a tile.

    Args:
        kernel: as in :func:`graphbraid.ops.triton.partition.over_rows`.
        segments: as in :func:`graphbraid.ops.triton.partition.over_rows`.
        shape: numbers of rows, heads and channels per head; nothing is launched if one is 0.
        arguments: positional arguments.
        constants: further keyword arguments, without heads, channels and the tile.
    """
    num_rows, heads, channels = shape
    if num_rows * heads * channels == 0:
        return
    block = triton.next_power_of_2(channels)
    together = max(1, min(triton.next_power_of_2(heads), _NUMBERS_OF_AN_EDGE // block))
    edges = max(1, min(_MOST_EDGES, _NUMBERS // (together * block)))
    warps = max(1, min(8, edges * together * block // _NUMBERS_OF_A_WARP))
    tile = {"EDGES": edges, "HEADS": together, "CHANNELS": block, "num_warps": warps}
    grid = (num_rows, triton.cdiv(heads, together))
    over_rows(kernel, segments, grid, arguments, {"heads": heads, "channels": channels, **constants, **tile})
