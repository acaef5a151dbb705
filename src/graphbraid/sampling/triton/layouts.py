"""The two layouts of a batch, cut out of what its hops drew once their sizes are known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from graphbraid.sampling.reference import Adjacency


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class DrawnHop:
    """What one hop drew, in buffers of its bounds' sizes."""

    offsets: Tensor
    """``(rows + 1,)`` int64, from 0."""
    local: Tensor
    """``(edges,)`` int32."""
    positions: Tensor
    """``(edges,)`` int64."""


def steps_of(bounds: list[int]) -> list[int]:
    """How far each of rising numbers is from the one before."""
    return [after - before for before, after in pairwise(bounds)]


def cut_blocks(
    hops: list[DrawnHop], nodes: list[int], edges: list[int], *, keep_edges: bool
) -> list[Adjacency]:
    """An adjacency per hop; its rows are all nodes known before it."""
    parts = []
    for h, hop in enumerate(hops):
        count = edges[h + 1] - edges[h]
        parts.append(
            Adjacency(
                indptr=hop.offsets[: nodes[h + 1] + 1],
                indices=hop.local[:count],
                edges=hop.positions[:count] if keep_edges else None,
            )
        )
    return parts


def cut_subgraph(
    hops: list[DrawnHop], nodes: list[int], edges: list[int], *, keep_edges: bool
) -> list[Adjacency]:
    """The hops' adjacencies, one below the other."""
    indptr = hops[0].offsets.new_zeros(nodes[-2] + 1)
    for h, hop in enumerate(hops):
        rows = hop.offsets[1 : nodes[h + 1] - nodes[h] + 1]
        torch.add(rows, edges[h], out=indptr[nodes[h] + 1 : nodes[h + 1] + 1])
    counts = steps_of(edges)
    local = torch.cat([hop.local[:count] for hop, count in zip(hops, counts, strict=True)])
    positions = None
    if keep_edges:
        positions = torch.cat([hop.positions[:count] for hop, count in zip(hops, counts, strict=True)])
    return [Adjacency(indptr=indptr, indices=local, edges=positions)]
