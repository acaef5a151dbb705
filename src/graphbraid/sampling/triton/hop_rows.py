"""The rows of a hop in Triton: which nodes draw, where their edges are, and how many they will draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class HopRows:
    """The rows that draw at one hop; their number is known on the device only."""

    n_id: Tensor
    """Global ids of the batch's nodes, int64."""
    node_bounds: Tensor
    """Running numbers of nodes, ``(hops + 2,)`` int64; see ``counts.Counts``."""
    capacity: int
    """Largest number of rows."""
    hop: int
    fanout: int
    replace: bool
    blocks: bool
    """Whether all nodes found so far draw, not only those that the last hop found."""
    key: int
    """Key of the batch, as a signed integer."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RowEdges:
    """The in-edges of a hop's rows, read from the graph just once since it may be in host memory."""

    starts: Tensor
    """Place of the first in-edge of each row's node, ``(capacity,)`` int64; see ``hot_lists``. It is the
    position in the graph where no lists are hot."""
    degrees: Tensor
    """In-degree of each row's node, ``(capacity,)`` int64."""
    offsets: Tensor
    """Row r draws the hop's edges ``[offsets[r], offsets[r + 1])``; ``(capacity + 1,)`` int64."""


class Lists(Protocol):
    """Where adjacency lists begin: :class:`graphbraid.sampling.triton.hot_lists.PlacedTopology`."""

    indptr: Tensor
    first: Tensor | None
    reads: Tensor | None
    num_hot: int


@triton.jit
def rows_of_hop(node_bounds, hop, BLOCKS: tl.constexpr):
    """Return the index of the first node that draws at a hop, and how many draw."""
    begin = tl.load(node_bounds + (0 if BLOCKS else hop))
    return begin, tl.load(node_bounds + hop + 1) - begin


@triton.jit
def row_edges(row, live, starts, degrees, offsets):
    """Return each row's start and degree in the graph and the offset of its edges; 0 where not live."""
    start = tl.load(starts + row, mask=live, other=0)
    degree = tl.load(degrees + row, mask=live, other=0)
    return start, degree, tl.load(offsets + row, mask=live, other=0)


@triton.jit
def add_reads(reads, edges):
    """Add a program's reads of lists, and of their edges, to two numbers."""
    tl.atomic_add(reads, tl.sum((edges > 0).to(tl.int64), axis=0), sem="relaxed")
    tl.atomic_add(reads + 1, tl.sum(edges, axis=0), sem="relaxed")


@triton.jit(do_not_specialize=["hop", "fanout", "capacity", "num_hot"])
def count_kernel(
    node_bounds,
    n_id,
    indptr,  # (num_nodes + 1,) int64
    first,  # (num_nodes,): first place of each hot list, -1 of others; None where places are positions
    reads,  # (4,) int64, added to: see ListReads; None without hot lists
    available,  # (num_nodes,) int32: in-neighbours that can be drawn; all if None
    starts,  # (capacity,) int64, written: see RowEdges
    degrees,  # (capacity,) int64, written
    counts,  # (capacity,) int64, written; 0 past the last row
    hop,
    fanout,
    capacity,
    num_hot,  # edges of hot lists
    REPLACE: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count the edges that each row will draw. Bound by one scattered read of indptr per row."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    begin, num_rows = rows_of_hop(node_bounds, hop, BLOCKS)
    live = row < num_rows
    node = tl.load(n_id + begin + row, mask=live, other=0)
    start = tl.load(indptr + node, mask=live, other=0)
    degree = tl.load(indptr + node + 1, mask=live, other=0) - start
    if first is not None:
        at = tl.load(first + node, mask=live, other=-1).to(tl.int64)
        start = tl.where(at >= 0, at, start + num_hot)
    tl.store(starts + row, start, mask=live)
    tl.store(degrees + row, degree, mask=live)
    most = degree
    if available is not None:
        most = tl.load(available + node, mask=live, other=0).to(tl.int64)
    if REPLACE:
        count = tl.where(most > 0, fanout, 0).to(tl.int64)
    else:
        count = tl.where((most > fanout) & (fanout >= 0), fanout, most)
    tl.store(counts + row, count, mask=row < capacity)
    if reads is not None:
        edges = tl.where(live, count, 0)
        hot_edges = tl.where(start < num_hot, edges, 0)
        add_reads(reads, hot_edges)
        add_reads(reads + 2, edges - hot_edges)


def count_edges(rows: HopRows, lists: Lists, available: Tensor | None) -> RowEdges:
    """Return where the rows' edges are and where their drawn edges go.

    Args:
        rows: the rows of the hop, at least one.
        lists: where adjacency lists begin.
        available: ``(num_nodes,)`` int32: number of each node's in-neighbours that can be drawn. If None,
            all.
    """
    starts, degrees, counts = (rows.n_id.new_empty(rows.capacity) for _ in range(3))
    block = 256
    count_kernel[(triton.cdiv(rows.capacity, block),)](
        rows.node_bounds,
        rows.n_id,
        lists.indptr,
        lists.first,
        lists.reads,
        available,
        starts,
        degrees,
        counts,
        rows.hop,
        rows.fanout,
        rows.capacity,
        lists.num_hot,
        REPLACE=rows.replace,
        BLOCKS=rows.blocks,
        BLOCK=block,
        num_warps=4,
    )
    offsets = counts.new_zeros(rows.capacity + 1)
    torch.cumsum(counts, 0, out=offsets[1:])
    return RowEdges(starts=starts, degrees=degrees, offsets=offsets)
