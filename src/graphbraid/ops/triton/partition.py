"""Neighbour partitions: the division of a CSC's rows into the work of programs, and the tiles they read.

Degrees follow a power law, so with one program per row the device would wait for hubs. A row of more than
SEGMENT edges is cut into segments of that many; one launch reduces each segment into a buffer, and the next
handles all rows and reads a hub's segments from there, in order. Sums have a fixed order and need no atomics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from graphbraid.ops.triton.launch import launch

SEGMENT = 512
"""Number of edges in a segment. At some 20 GB/s per program, rows of 128 floats take about 10 us: short
compared with a kernel, long compared with a launch."""

_UNCOUNTED_SEGMENTS = 4096
_KEPT: WeakIdKeyDictionary = WeakIdKeyDictionary()


@dataclass(frozen=True, kw_only=True, slots=True)
class HubSegments:
    """The segments of all hubs of one ``indptr``, row by row."""

    row: Tensor
    """``(count,)`` int64 row of each segment; past the last segment some row, whose sum is never read."""
    first: Tensor
    """``(num_rows + 1,)`` int64: row ``v`` has segments ``[first[v], first[v + 1])``, none unless a hub."""
    count: int
    """Number of segments to reduce, or an upper bound of it."""
    length: int
    """Number of edges in each segment but a row's last."""


def segments_of(indptr: Tensor, num_edges: int) -> HubSegments | None:
    """Return the segments of ``indptr``'s hubs, found once per tensor, or None if there can be no hub.

    Small graphs, such as the blocks of mini-batches, use an upper bound of the number of segments, since
    reading the number itself would wait for the device.
    """
    if num_edges <= SEGMENT:
        return None
    kept = _KEPT.get(indptr)
    if kept is None or kept[0] != SEGMENT:
        _KEPT[indptr] = kept = (SEGMENT, _find_segments(indptr, num_edges))
    found: HubSegments | None = kept[1]
    return found


def _find_segments(indptr: Tensor, num_edges: int) -> HubSegments | None:
    degrees = indptr.diff()
    parts = torch.where(degrees > SEGMENT, (degrees + SEGMENT - 1) // SEGMENT, 0)
    first = torch.zeros_like(indptr)
    torch.cumsum(parts, 0, out=first[1:])
    count = 2 * num_edges // SEGMENT  # a hub has at least one full segment, and its last may be short
    if count > _UNCOUNTED_SEGMENTS:
        count = int(first[-1])
    if count == 0:
        return None
    row = torch.searchsorted(first, torch.arange(count, device=indptr.device), right=True) - 1
    return HubSegments(row=row.clamp_(max=parts.numel() - 1), first=first, count=count, length=SEGMENT)


def over_rows(run: Callable[..., None], segments: HubSegments | None, num_rows: int, tiles: int) -> None:
    """Launch a kernel over the segments of hubs, where there are any, then over all rows.

    ``run`` launches it, given a grid and its parameters ``segment_row``, ``segment_first``, ``SEGMENT`` and
    ``PARTIAL``. ``tiles`` is the number of tiles of a row.
    """
    where: dict[str, Any] = {"segment_row": None, "segment_first": None, "SEGMENT": 1}
    if segments is not None:
        where = {"segment_row": segments.row, "segment_first": segments.first, "SEGMENT": segments.length}
        run((segments.count, tiles), **where, PARTIAL=True)
    run((num_rows, tiles), **where, PARTIAL=False)


def reduce_rows(kernel: Any, a: Any, *, dtype: torch.dtype = torch.float32, **more: Any) -> None:
    """Launch a kernel that reduces rows over the edges of ``a.indptr``: hubs by segments, columns by tiles.

    Its parameters ``partial...`` are buffers of ``dtype`` with a row, as wide as ``a.out``, for each segment.
    """
    if a.out.numel() == 0:
        return
    width = a.out.shape[1]
    segments = segments_of(a.indptr, a.indices.numel())
    names = [name for name in kernel.arg_names if name.startswith("partial")]
    more |= zip(names, partial_rows(segments, a.out, *[width] * len(names), dtype=dtype), strict=True)
    more |= {"width": width, **row_tile(width)}
    run = partial(launch, kernel, a=a, **more)
    over_rows(run, segments, a.indptr.numel() - 1, row_tiles(width, more))


def partial_rows(
    segments: HubSegments | None, like: Tensor, *widths: int, dtype: torch.dtype = torch.float32
) -> list[Tensor | None]:
    """Return a buffer of each width with one row per segment, or Nones without segments."""
    if segments is None:
        return [None] * len(widths)
    return [like.new_empty((segments.count, width), dtype=dtype) for width in widths]


def row_tile(width: int) -> dict[str, int]:
    """Return constants of kernels that reduce rows of ``width`` values: neighbours at a time, columns, warps.

    One warp loads 128 columns as four floats per lane; narrower rows share a warp. A program has two warps
    and about 16 values per lane in flight, so that 32 programs fill a multiprocessor.
    """
    columns = min(128, triton.next_power_of_2(width))
    edges = max(8, min(32, 512 // columns))
    return {"EDGES": edges, "FEAT": columns, "num_warps": 2 if edges * columns > 512 else 1}


def heads_tile(heads: int, channels: int) -> dict[str, int]:
    """Return constants and sizes of kernels over rows by head: edges at a time, heads, channels, warps.

    A tile has at most 1,024 values, eight per lane of four warps, times two or three matrices. All channels
    of a head are in it.
    """
    block = triton.next_power_of_2(channels)
    together = max(1, min(triton.next_power_of_2(heads), 256 // block))
    edges = max(1, min(16, 1024 // (together * block)))
    tile = {"EDGES": edges, "HEADS": together, "CHANNELS": block, "heads": heads, "channels": channels}
    return {**tile, "num_warps": max(1, min(8, edges * together * block // 256))}


def row_tiles(width: int, tile: dict[str, int]) -> int:
    """Return the number of tiles of :func:`row_tile` in a row of ``width`` values."""
    return int(triton.cdiv(width, tile["FEAT"]))


def search_steps(num_rows: int) -> int:
    """Return the number of steps of :func:`destination_of`'s binary search."""
    return max(1, num_rows.bit_length())


def edges_by_row(indptr: Tensor, num_edges: int) -> dict[str, int]:
    """Return the parameters of kernels that take edges one by one and search for the row of each."""
    num_dst = indptr.numel() - 1
    return {"num_dst": num_dst, "num_edges": num_edges, "steps": search_steps(num_dst)}


@triton.jit
def edges_of(
    item,  # a segment where PARTIAL, else a row
    indptr,
    segment_row,
    segment_first,
    SEGMENT: tl.constexpr,
    PARTIAL: tl.constexpr,
):
    """Return a work item's row and the edges [begin, end) it reduces; none for a row with segments."""
    if PARTIAL:
        v = tl.load(segment_row + item)
        begin = tl.load(indptr + v) + (item - tl.load(segment_first + v)) * SEGMENT
        end = tl.minimum(begin + SEGMENT, tl.load(indptr + v + 1))
    else:
        v = item
        begin = tl.load(indptr + v)
        end = tl.load(indptr + v + 1)
        if segment_row is not None:
            begin = tl.where(end - begin > SEGMENT, end, begin)
    return v, begin, end


@triton.jit
def destination_of(e, indptr, num_dst, steps):
    """Find the rows of the edges ``e`` by binary search in indptr, so no array of all edges is needed."""
    low = tl.zeros_like(e)
    high = tl.zeros_like(e) + num_dst
    for _ in range(steps):
        middle = (low + high) // 2
        right = tl.load(indptr + middle) <= e
        low = tl.where(right, middle, low)
        high = tl.where(right, high, middle)
    return low


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
