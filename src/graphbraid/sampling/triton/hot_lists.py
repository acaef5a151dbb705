"""Adjacency lists of which the device holds the hot ones: where an edge is, for the sampler's kernels.

Edges have places. Without hot lists these are their positions in the graph. With them the first ``num_hot``
places are those of the hot lists' edges, which are packed in device memory, list by list; an edge of another
list has the place ``position + shift`` and is read over the link. Draws are made within a list and know its
first place only, so that they are the same whichever way.
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
from graphbraid.ops.triton.partition import destination_of, on_device_of, search_steps
from graphbraid.sampling.list_reads import ListReads
from graphbraid.sampling.rows.by_id import take_rows
from graphbraid.sampling.triton.hop_rows import HopRows, RowEdges, rows_of_hop
from graphbraid.sampling.triton.placement import place

_NODES_AT_ONCE = 1 << 18


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EdgeArray:
    """One array of the graph's edges by place."""

    whole: Tensor
    """``(num_edges,)`` values in the graph's order, which the device can read."""
    hot: Tensor | None = None
    """``(num_hot,)`` values of the hot lists' edges on the device; None: every place is a position."""
    shift: int = 0
    """What is added to the position of an edge that is not hot."""

    @property
    def arguments(self) -> tuple[Tensor, Tensor | None, int, int]:
        """What :func:`load_edge` takes after the places."""
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
    starts,  # see hop_rows.RowEdges
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
        hot: ``(num_hot,)`` int64 distinct nodes whose lists the device holds beside a topology on the host,
            and ``indptr`` with them. If None, none. Where they are the first nodes, as in a store that was
            renumbered by score, comparing places is enough; else a map of the nodes is kept as well.
        device: where kernels run.

    Raises:
        DataError: ``hot`` has what is no node, or one twice.
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
        """What was read since the start; waits for the device. None without hot lists."""
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
