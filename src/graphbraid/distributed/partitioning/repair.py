"""Repair: moves nodes out of parts that are too heavy, at the cost of few cut edges."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.distributed.partitioning.hubs import is_hub, relieve
from graphbraid.distributed.partitioning.streaming import place
from graphbraid.graph.csc import Csc

PASSES = 8
"""Most passes over the nodes of parts that are too heavy."""

_Rows = tuple[Tensor, Tensor, Tensor | None]


def repaired(csc: Csc, part_of: Tensor, loads: Tensor, sums: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Move nodes of the parts above the limit, those with the least weight of neighbours in their part first.

    Each goes to the part with room that holds most of its neighbours. Once its part is below the limit, a
    node only moves where it has more neighbours. A part that is too heavy by its hubs alone gives one of them
    to another, which makes room for it in the next pass.

    Args:
        csc: Symmetric adjacency, its weights the edges each one stands for.
        part_of: ``(num_nodes,)`` int32.
        loads: ``(num_nodes,)`` int64, of the nodes.
        sums: ``(num_parts,)`` int64, of the parts.
        limit: Largest load of a part.

    Returns:
        New ``part_of`` and ``sums``; a part may still be above the limit.
    """
    part_of, sums = part_of.clone(), sums.clone()
    hubs = is_hub(loads, int(sums.sum()), sums.numel(), limit).nonzero().squeeze(1)
    for _ in range(PASSES):
        nodes = (sums > limit)[part_of].nonzero().squeeze(1)
        if not nodes.numel():
            break
        nodes = nodes[_inside(_rows(csc, nodes), part_of[nodes], part_of).argsort(stable=True)]
        place(nodes, _rows(csc, nodes), loads[nodes], part_of, sums, most=limit, price=0.0)
        relieve(part_of, sums, hubs, loads[hubs], limit)
    return part_of, sums


def _rows(csc: Csc, nodes: Tensor) -> _Rows:
    """Return ``indptr``, ``indices`` and ``weight`` of the rows of some nodes."""
    counts = csc.degrees()[nodes]
    indptr = torch.zeros(nodes.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=indptr[1:])
    at = torch.arange(int(indptr[-1])) + (csc.indptr[nodes] - indptr[:-1]).repeat_interleave(counts)
    return indptr, csc.indices[at], None if csc.weight is None else csc.weight[at]


def _inside(rows: _Rows, own: Tensor, part_of: Tensor) -> Tensor:
    """Return the weight of each row's neighbours that are in the row's own part."""
    indptr, indices, weight = rows
    row = torch.arange(own.numel()).repeat_interleave(indptr.diff())
    is_inside = (part_of[indices.long()] == own[row]).float()
    return torch.zeros(own.numel()).index_add_(0, row, is_inside if weight is None else is_inside * weight)
