"""The two layouts of a batch, cut from the hops' buffers once their sizes are known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from graphbraid.sampling.sample import SampledEdges


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class DrawnHop:
    """The edges that one hop drew, in buffers as large as the hop's upper bounds."""

    offsets: Tensor
    """Offsets of the rows' edges, starting at 0: ``(rows + 1,)`` int64."""
    local: Tensor
    """Local ids of the sources, ``(edges,)`` int32."""
    positions: Tensor | None
    """Positions of the edges in the graph, ``(edges,)`` int64; None unless the batch keeps them."""


def no_edges(num_rows: int, n_id: Tensor, *, keep_positions: bool) -> DrawnHop:
    """Return a hop of ``num_rows`` rows that draws nothing, on the device of ``n_id``."""
    none = n_id.new_empty(0)
    offsets = n_id.new_zeros(num_rows + 1)
    return DrawnHop(offsets=offsets, local=none.int(), positions=none if keep_positions else None)


def steps_of(bounds: list[int]) -> list[int]:
    """Return the differences of consecutive numbers."""
    return [after - before for before, after in pairwise(bounds)]


def cut_blocks(hops: list[DrawnHop], nodes: list[int], edges: list[int]) -> list[SampledEdges]:
    """Return the edges of each hop, whose rows are all nodes found before it."""
    return [
        SampledEdges(
            indptr=hop.offsets[: num_rows + 1],
            indices=hop.local[:count],
            positions=None if hop.positions is None else hop.positions[:count],
        )
        for hop, num_rows, count in zip(hops, nodes[1:-1], steps_of(edges), strict=True)
    ]


def cut_subgraph(hops: list[DrawnHop], nodes: list[int], edges: list[int]) -> list[SampledEdges]:
    """Return the edges of all hops, concatenated."""
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
