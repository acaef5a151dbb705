"""The topology where kernels read it, the hot lists on the device, and the rows that draw at a hop.

Edges have places. Without hot lists a place is a position in the graph. With them the first ``num_hot``
places are those of the hot lists' edges, which are packed in device memory, list by list; an edge of another
list has the place ``position + shift`` and is read over the bus. A draw within a list needs only the list's
first place, so draws are the same in both cases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.graph.scans import check_ids
from graphbraid.ops.triton.launch import on_device_of
from graphbraid.ops.triton.partition import destination_of, search_steps
from graphbraid.sampling.rows.pinning import pinned
from graphbraid.sampling.sample import ListReads
from graphbraid.sampling.source import take_rows

PLACEMENTS = ("device", "host")


def place(array: Tensor, placement: str, device: torch.device) -> Tensor:
    """Return ``array`` in memory that kernels on ``device`` can read.

    Placement ``device`` copies it to the device. ``host`` keeps it in page-locked memory, which the device
    maps (unified virtual addressing) and Triton's launcher accepts; a large array is page-locked in place
    while the result lives, any other is copied once (:func:`pinned`). An array already on the device stays
    there, as on the CPU, where kernels are interpreted.
    """
    if array.device == device:
        return array.contiguous()
    return array.to(device) if placement == "device" else pinned(array.contiguous())


def empty(count: int, dtype: torch.dtype, placement: str, device: torch.device) -> Tensor:
    """Return an uninitialised array of ``count`` numbers where :func:`place` would put it."""
    if device.type == "cpu" or placement == "device":
        return torch.empty(count, dtype=dtype, device=device)
    return torch.empty(count, dtype=dtype, pin_memory=True)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class HopRows:
    """The rows that draw at one hop; their number is known on the device only."""

    n_id: Tensor
    """Global ids of the batch's nodes, int64."""
    node_bounds: Tensor
    """Running numbers of nodes, ``(hops + 2,)`` int64; see ``batch.Counts``."""
    capacity: int
    """Largest number of rows."""
    hop: int
    fanout: int
    replace: bool
    blocks: bool
    """Whether all nodes found so far draw; otherwise only those that the last hop found."""
    key: int
    """Key of the batch, as a signed integer."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RowEdges:
    """The in-edges of a hop's rows, read from the graph just once since it may be in host memory."""

    starts: Tensor
    """Place of the first in-edge of each row's node, ``(capacity,)`` int64; see :class:`EdgeArray`. Without
    hot lists it is the position in the graph."""
    degrees: Tensor
    """In-degree of each row's node, ``(capacity,)`` int64."""
    offsets: Tensor
    """Row r draws the hop's edges ``[offsets[r], offsets[r + 1])``; ``(capacity + 1,)`` int64."""


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


def count_edges(rows: HopRows, lists: PlacedTopology, available: Tensor | None) -> RowEdges:
    """Return the places of the rows' edges and the offsets of their drawn edges.

    Args:
        rows: the rows of the hop, at least one.
        lists: begins of the adjacency lists.
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


_NODES_AT_ONCE = 1 << 18


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EdgeArray:
    """One array of the graph's edges by place."""

    whole: Tensor
    """``(num_edges,)`` values in the graph's order, which the device can read."""
    hot: Tensor | None = None
    """``(num_hot,)`` values of the hot lists' edges on the device; None: every place is a position."""
    shift: int = 0
    """Added to the position of an edge that is not hot, to give its place."""

    @property
    def arguments(self) -> tuple[Tensor, Tensor | None, int, int]:
        """Arguments of :func:`load_edge` after the places."""
        return self.whole, self.hot, 0 if self.hot is None else self.hot.numel(), self.shift


@triton.jit
def load_edge(places, whole, hot, num_hot, shift, mask, other):
    """Return the values of an :class:`EdgeArray` at places, ``other`` where not ``mask``."""
    if hot is None:
        values = tl.load(whole + places, mask=mask, other=other)
    else:
        is_hot = places < num_hot
        near = tl.load(hot + places, mask=mask & is_hot, other=other)
        values = tl.where(
            is_hot, near, tl.load(whole + (places - shift), mask=mask & (is_hot == 0), other=other)
        )
    return values


@triton.jit(do_not_specialize=["hop", "capacity", "steps"])
def position_kernel(
    node_bounds,
    n_id,
    indptr,  # (num_nodes + 1,) int64
    starts,  # see topology.RowEdges
    offsets,
    places,  # (num_edges,) int64, turned into positions
    hop,
    capacity,
    steps,  # see partition.destination_of
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Turn places into positions in the graph: those of a list differ by as much as its first."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = e < tl.load(offsets + capacity)
    row = destination_of(e, offsets, capacity, steps)
    begin, _ = rows_of_hop(node_bounds, hop, BLOCKS)
    node = tl.load(n_id + begin + row, mask=live, other=0)
    shift = tl.load(indptr + node, mask=live, other=0) - tl.load(starts + row, mask=live, other=0)
    tl.store(places + e, tl.load(places + e, mask=live, other=0) + shift, mask=live)


class PlacedTopology:
    """A graph's topology where the sampler's kernels read it.

    Args:
        csc: the graph, on the CPU.
        placement: ``device`` or ``host``; see :func:`place`.
        hot: ``(num_hot,)`` int64 distinct nodes whose lists, with ``indptr``, are on the device while the
            topology is on the host. If None, none. If they are the first nodes, as in a store renumbered by
            score, comparing places is enough; else a map of the nodes is kept as well.
        device: where kernels run.

    Raises:
        DataError: an id in ``hot`` is no node, or is there twice.
    """

    def __init__(self, csc: Csc, placement: str, hot: Tensor | None, device: torch.device) -> None:
        self._placement, self._device = placement, device
        self.indptr = place(csc.indptr, placement if hot is None else "device", device)
        self.first: Tensor | None = None
        """First place of each node's list if it is hot, else -1: ``(num_nodes,)`` int32 or int64. None where
        places are positions."""
        self.reads: Tensor | None = None
        """``(4,)`` int64: see :class:`ListReads`. None without hot lists."""
        self._nodes: Tensor | None = None
        self.num_hot = 0
        if hot is not None:
            self._hold(csc, _checked(hot, csc.num_dst))
        self.indices = self.by_place(place(csc.indices, placement, device))

    def by_place(self, placed: Tensor) -> EdgeArray:
        """An array of the edges in the graph's order, which the device can read, with the hot lists' part."""
        if self._nodes is None:
            return EdgeArray(whole=placed)
        hot = torch.empty(self.num_hot, dtype=placed.dtype, device=self._device)
        begin = 0
        with on_device_of(hot):
            for nodes in self._nodes.split(_NODES_AT_ONCE):
                part = take_rows(placed, self._edges_of(nodes))
                hot[begin : begin + part.numel()] = part
                begin += part.numel()
        return EdgeArray(whole=placed, hot=hot, shift=0 if self.first is None else self.num_hot)

    def placed(self, array: Tensor) -> EdgeArray:
        """:meth:`by_place` of an array on the CPU, placed as the topology is."""
        return self.by_place(place(array, self._placement, self._device))

    def positions_of(self, rows: HopRows, edges: RowEdges, places: Tensor) -> Tensor:
        """The positions in the graph of a hop's edges, given by their places, which are overwritten."""
        if self.first is None:
            return places
        block = 256
        position_kernel[(triton.cdiv(places.numel(), block),)](
            rows.node_bounds,
            rows.n_id,
            self.indptr,
            edges.starts,
            edges.offsets,
            places,
            rows.hop,
            rows.capacity,
            search_steps(rows.capacity),
            BLOCKS=rows.blocks,
            BLOCK=block,
            num_warps=4,
        )
        return places

    def list_reads(self) -> ListReads | None:
        """Reads of lists since the start; waits for the device. None without hot lists."""
        return None if self.reads is None else ListReads.of(self.reads)

    def _hold(self, csc: Csc, nodes: Tensor) -> None:
        self._nodes = nodes.to(self._device)
        self.reads = torch.zeros(4, dtype=torch.int64, device=self._device)
        degrees = csc.indptr[nodes + 1] - csc.indptr[nodes]
        self.num_hot = int(degrees.sum())
        if nodes.numel() and int(nodes[-1]) == nodes.numel() - 1:
            return  # the first nodes: their edges are the first
        first = torch.full((csc.num_dst,), -1, dtype=index_dtype(self.num_hot))
        first[nodes] = (degrees.cumsum(0) - degrees).to(first.dtype)
        self.first = first.to(self._device)

    def _edges_of(self, nodes: Tensor) -> Tensor:
        """Positions of the in-edges of ``nodes``, list by list."""
        starts = self.indptr[nodes]
        degrees = self.indptr[nodes + 1] - starts
        before = degrees.cumsum(0) - degrees
        shifts = (starts - before).repeat_interleave(degrees)
        return shifts + torch.arange(shifts.numel(), device=shifts.device)


def _checked(hot: Tensor, num_nodes: int) -> Tensor:
    check_ids(hot, num_nodes, "hot lists")
    nodes = hot.cpu().long().sort().values
    twice = (nodes[1:] == nodes[:-1]).nonzero().flatten()
    if twice.numel():
        raise DataError(f"hot lists name node {int(nodes[twice[0]])} twice")
    return nodes
