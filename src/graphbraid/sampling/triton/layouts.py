"""The two layouts of a batch, cut out of what its hops drew once their sizes are known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from graphbraid.sampling.sample import SampledEdges


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class DrawnHop:
    """What one hop drew, in buffers of its bounds' sizes."""

    offsets: Tensor
    """``(rows + 1,)`` int64, from 0."""
    local: Tensor
    """``(edges,)`` int32."""
    positions: Tensor | None
    """``(edges,)`` int64, where the batch keeps them."""


def no_edges(num_rows: int, n_id: Tensor, *, keep_positions: bool) -> DrawnHop:
    """A hop of so many rows that draws nothing, on ``n_id``'s device."""
    none = n_id.new_empty(0)
    offsets = n_id.new_zeros(num_rows + 1)
    return DrawnHop(offsets=offsets, local=none.int(), positions=none if keep_positions else None)


def steps_of(bounds: list[int]) -> list[int]:
    """How far each of rising numbers is from the one before."""
    return [after - before for before, after in pairwise(bounds)]


def cut_blocks(hops: list[DrawnHop], nodes: list[int], edges: list[int]) -> list[SampledEdges]:
    """The edges of each hop; their rows are all nodes known before it."""
    return [
        SampledEdges(
            indptr=hop.offsets[: num_rows + 1],
            indices=hop.local[:count],
            positions=None if hop.positions is None else hop.positions[:count],
        )
        for hop, num_rows, count in zip(hops, nodes[1:-1], steps_of(edges), strict=True)
    ]


def cut_subgraph(hops: list[DrawnHop], nodes: list[int], edges: list[int]) -> list[SampledEdges]:
    """The hops' edges, one below the other."""
    indptr = hops[0].offsets.new_zeros(nodes[-2] + 1)
    for h, hop in enumerate(hops):
        rows = hop.offsets[1 : nodes[h + 1] - nodes[h] + 1]
        torch.add(rows, edges[h], out=indptr[nodes[h] + 1 : nodes[h + 1] + 1])
    cut = list(zip(hops, steps_of(edges), strict=True))
    positions = [hop.positions[:count] for hop, count in cut if hop.positions is not None]
    return [
        SampledEdges(
            indptr=indptr,
            indices=torch.cat([hop.local[:count] for hop, count in cut]),
            positions=torch.cat(positions) if positions else None,
        )
    ]
