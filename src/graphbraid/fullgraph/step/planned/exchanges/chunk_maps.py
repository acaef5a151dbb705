"""The parts of a linear map of halo rows, one for each part in which these rows travel.

Forward, a row's sum goes on where the part before has left it: the sums so far stand behind the halo's rows
in one buffer, and the first edge of each row is one of weight 1 from its own sum. Edges are in the order in
which rows arrive, so each row adds up the same numbers in the same order in however many parts they come, to
the same bits; its factor and what it is added to come with the last part. Backward, each part has whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphbraid.fullgraph.lowering.route import Chunks, arrivals, places_of
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation

MOST_IN_PARTS = 2047
"""Most halo edges of a row that is summed part by part. Kernels sum rows of more than 2048 edges in segments
of their own (``kHubEdges``), whose bounds would move: such rows are summed when all their edges have come."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PartialSums:
    """The rows of a halo map that are summed part by part."""

    rows: Tensor
    """``(num_sums,)`` int64 destinations, ascending."""
    is_whole: Tensor
    """``(num_dst,)`` bool, the destinations of too many edges, which are summed at the end."""

    @classmethod
    def of(cls, csc: Csc) -> PartialSums:
        """Return those of the edges from the halo's rows."""
        degrees = csc.degrees()
        is_whole = degrees > MOST_IN_PARTS
        return cls(rows=((degrees > 0) & ~is_whole).nonzero().squeeze(1), is_whole=is_whole)

    @property
    def count(self) -> int:
        """Number of these rows."""
        return self.rows.numel()


def by_arrival(halo: Aggregation, receive_rows: tuple[int, ...]) -> Aggregation:
    """Return a map of halo rows with each row's edges in the order in which their sources arrive."""
    place = arrivals(receive_rows)
    csc = halo.csc
    placed = Csc(csc.indptr, place[csc.indices.long()].to(csc.indices.dtype), csc.num_src, trusted=True)
    ordered, perm = placed.sort_rows()
    if perm is None:
        return halo
    back = places_of(place).to(csc.indices.dtype)
    weight = None if halo.weight is None else halo.weight[perm]
    kept = Csc(csc.indptr, back[ordered.indices.long()], csc.num_src, trusted=True)
    return replace(halo, csc=kept, weight=weight)


def forward_maps(halo: Aggregation, sums: PartialSums, chunks: Chunks) -> list[Aggregation]:
    """Return the map of each part, from a buffer of halo rows by part and, behind them, the sums so far.

    All but the last write the ``sums.count`` sums; the last one writes all destinations.

    Args:
        halo: the whole map, in the order of :func:`by_arrival`, with neither mean nor loops.
        sums: its rows that are summed part by part.
        chunks: the parts.
    """
    csc, last = halo.csc, chunks.count - 1
    destination, source = csc.destinations().long(), csc.indices.long()
    part = chunks.part_of_received()[source]
    part[sums.is_whole[destination]] = last
    sum_of = torch.full((csc.num_dst,), -1, dtype=torch.int64)
    sum_of[sums.rows] = torch.arange(sums.count)
    place = places_of(chunks.received_order)[source].to(csc.indices.dtype)
    src = halo.src_scale
    if src is not None:
        src = torch.cat((src[chunks.received_order], src.new_ones(sums.count)))
    maps = []
    for number in range(chunks.count):
        kept = part == number
        goes_on, ends = number > 0, number == last
        rows = destination[kept] if ends else sum_of[destination[kept]]
        own = sums.rows if ends else torch.arange(sums.count)
        before = own if goes_on else own[:0]
        edges = _with_sums(rows, place[kept], before, csc.num_dst if ends else sums.count, csc.num_src)
        made = Csc(*edges[:2], csc.num_src + sums.count, trusted=True)
        weight = None if halo.weight is None else _with_ones(halo.weight[kept], edges[2])
        dst = halo.dst_scale if ends else None
        maps.append(replace(halo, csc=made, weight=weight, src_scale=src, dst_scale=dst))
    return maps


def backward_maps(transposed: Aggregation, chunks: Chunks) -> list[Aggregation]:
    """Return the parts of the transposed map, each with the rows that travel back in that part."""
    csc, maps = transposed.csc, []
    for places in chunks.received:
        rows = chunks.received_order[places]
        degrees = csc.degrees()[rows]
        indptr = _ends(degrees)
        edges = torch.repeat_interleave(csc.indptr[rows] - indptr[:-1], degrees)
        edges += torch.arange(edges.numel())
        part = Csc(indptr, csc.indices[edges], csc.num_src, trusted=True)
        weight = None if transposed.weight is None else transposed.weight[edges]
        scale = None if transposed.dst_scale is None else transposed.dst_scale[rows]
        maps.append(replace(transposed, csc=part, weight=weight, dst_scale=scale))
    return maps


def chunk_bytes(halo: Aggregation, sums: PartialSums, chunks: int, back_chunks: int) -> int:
    """Return the most bytes that the maps of both directions take, beside the whole map."""
    csc = halo.csc
    of_edge = csc.indices.element_size() + (0 if halo.weight is None else halo.weight.element_size())
    rows = 8 * (csc.num_dst + 1 + (chunks - 1) * (sums.count + 1)) + 8 * (csc.num_src + back_chunks)
    scales = 0 if halo.src_scale is None else 4 * (csc.num_src + sums.count)
    return of_edge * (2 * csc.num_edges + (chunks - 1) * sums.count) + rows + scales + 8 * sums.count


def _with_sums(
    rows: Tensor, places: Tensor, before: Tensor, num_rows: int, first_sum: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return indptr and indices of edges by row, behind an edge from the own sum of each row in ``before``.

    Also returns the ``(num_edges,)`` bool mask of the given edges.
    """
    counts = torch.bincount(rows, minlength=num_rows)
    counts[before] += 1
    indptr = _ends(counts)
    is_given = torch.ones(int(indptr[-1]), dtype=torch.bool)
    is_given[indptr[before]] = False
    indices = places.new_empty(is_given.numel())
    indices[is_given] = places
    indices[indptr[before]] = torch.arange(first_sum, first_sum + before.numel(), dtype=indices.dtype)
    return indptr, indices, is_given


def _with_ones(weight: Tensor, is_given: Tensor) -> Tensor:
    found = weight.new_ones(is_given.numel())
    found[is_given] = weight
    return found


def _ends(counts: Tensor) -> Tensor:
    indptr = torch.zeros(counts.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=indptr[1:])
    return indptr


__all__ = ["PartialSums", "backward_maps", "by_arrival", "chunk_bytes", "forward_maps"]
