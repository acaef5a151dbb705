"""Plain twins, with the same arguments, of the kernels in ``csrc/graph/partition.cpp``."""

# ruff: noqa: PLR0917, ARG001 - the kernels take their arguments by position

from __future__ import annotations

import heapq
import math

import torch
from torch import Tensor


def pack_by_load(order: Tensor, loads: Tensor, num_parts: int, part_of: Tensor) -> None:
    """Give each item to the part of the least load so far, of equal loads to that of the fewest items.

    Args:
        order: ``(num_items,)`` int64, the items in the order they are packed.
        loads: ``(num_items,)`` int64, not negative.
        num_parts: Number of parts.
        part_of: ``(num_items,)`` int32, overwritten.
    """
    places = [(0, 0, part) for part in range(num_parts)]
    of_item = loads.tolist()
    for item in order.tolist():
        load, count, part = places[0]
        part_of[item] = part
        heapq.heapreplace(places, (load + of_item[item], count + 1, part))


def place_nodes(
    nodes: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor | None,
    loads: Tensor,
    part_of: Tensor,
    part_loads: Tensor,
    most: int,
    price: float,
) -> int:
    """Place nodes, one after the other, where the weight of their neighbours less a price is largest.

    A node is taken out of its part before. The price of a part is ``price * load * sqrt(load of the part)``.

    Args:
        nodes: ``(num_rows,)`` int64, in the order they are placed.
        indptr: ``(num_rows + 1,)`` int64, of their rows.
        indices: ``(num_edges,)`` int32 or int64, their neighbours.
        weight: ``(num_edges,)`` float32, not negative, or None for 1.
        loads: ``(num_rows,)`` int64, theirs, not negative.
        part_of: ``(num_nodes,)`` int32, -1 for a node that is not placed yet; updated.
        part_loads: ``(num_parts,)`` int64, updated.
        most: Load that no part exceeds, if any has room.
        price: What a unit of load costs, by the square root of the part's load.

    Returns:
        How many nodes have another part than before.
    """
    ends, sources, parts = indptr.tolist(), indices.tolist(), part_of.tolist()
    weights = [1.0] * len(sources) if weight is None else weight.tolist()
    sums, moved = part_loads.tolist(), 0
    for row, (v, load) in enumerate(zip(nodes.tolist(), loads.tolist(), strict=True)):
        before = parts[v]
        if before >= 0:
            sums[before] -= load
        gathered: dict[int, float] = {}
        for e in range(ends[row], ends[row + 1]):
            if sources[e] != v and (near := parts[sources[e]]) >= 0:
                gathered[near] = gathered.get(near, 0.0) + weights[e]
        lightest = sums.index(min(sums))
        found, best = -1, 0.0  # it stays where no part has room, or goes to the lightest
        for part in [*([before] if before >= 0 else []), *gathered, lightest]:
            worth = gathered.get(part, 0.0) - price * load * math.sqrt(sums[part])
            if sums[part] + load <= most and (found < 0 or worth > best):
                found, best = part, worth
        if found < 0:
            found = before if before >= 0 else lightest
        parts[v] = found
        sums[parts[v]] += load
        moved += parts[v] != before
    part_of.copy_(torch.tensor(parts, dtype=torch.int32))
    part_loads.copy_(torch.tensor(sums))
    return moved


def count_cut(indptr: Tensor, indices: Tensor, first: int, part_of: Tensor) -> int:
    """Return how many in-edges of some nodes come from another part than the node's.

    Args:
        indptr: ``(num_rows + 1,)`` int64, of the rows of nodes ``first, first + 1, ...``.
        indices: ``(num_edges,)`` int32 or int64, in ``[0, num_nodes)``.
        first: The first of the nodes.
        part_of: ``(num_nodes,)`` int32.
    """
    own = part_of[first : first + indptr.numel() - 1].repeat_interleave(indptr.diff())
    return int((part_of[indices.long()] != own).sum())


def count_split(
    indptr: Tensor,
    indices: Tensor,
    part_of: Tensor,
    rows: Tensor,
    part: int,
    local_indptr: Tensor,
    remote_indptr: Tensor,
    is_halo: Tensor,
) -> None:
    """Count the in-edges of a part's nodes that come from its own nodes and from others'.

    Args:
        indptr: ``(num_nodes + 1,)`` int64, of a CSC.
        indices: ``(num_edges,)`` int32 or int64, in ``[0, num_nodes)``.
        part_of: ``(num_nodes,)`` int32.
        rows: ``(num_rows,)`` int64, the nodes of the part.
        part: Its number.
        local_indptr: ``(num_rows + 1,)`` int64, overwritten.
        remote_indptr: ``(num_rows + 1,)`` int64, overwritten.
        is_halo: ``(num_nodes,)`` uint8, set to 1 for each source of another part.
    """
    edges, row = _edges_of(indptr, rows)
    sources = indices[edges].long()
    is_local = part_of[sources] == part
    is_halo[sources[~is_local]] = 1
    for ends, counted in ((local_indptr, is_local), (remote_indptr, ~is_local)):
        ends[0] = 0
        torch.cumsum(torch.bincount(row[counted], minlength=rows.numel()), 0, out=ends[1:])


def write_split(
    indptr: Tensor,
    indices: Tensor,
    part_of: Tensor,
    rows: Tensor,
    part: int,
    column: Tensor,
    local_indptr: Tensor,
    remote_indptr: Tensor,
    local: Tensor,
    remote: Tensor,
    local_edge: Tensor | None,
    remote_edge: Tensor | None,
) -> None:
    """Write a part's local and remote edges.

    Args:
        indptr: ``(num_nodes + 1,)`` int64, of a CSC.
        indices: ``(num_edges,)`` int32 or int64, in ``[0, num_nodes)``.
        part_of: ``(num_nodes,)`` int32.
        rows: ``(num_rows,)`` int64, the nodes of the part.
        part: Its number.
        column: ``(num_nodes,)``, the local row of each of these, the halo row of each of their sources of
            another part; in the dtype of ``indices``.
        local_indptr: ``(num_rows + 1,)`` int64, as :func:`count_split` writes it.
        remote_indptr: ``(num_rows + 1,)`` int64.
        local: ``(local_indptr[-1],)`` in the dtype of ``indices``, overwritten.
        remote: ``(remote_indptr[-1],)``, overwritten.
        local_edge: ``(local_indptr[-1],)`` int64, overwritten, or None.
        remote_edge: ``(remote_indptr[-1],)`` int64, overwritten, or None.
    """
    edges, _ = _edges_of(indptr, rows)
    is_local = part_of[indices[edges].long()] == part
    for kept, columns, positions in ((is_local, local, local_edge), (~is_local, remote, remote_edge)):
        columns.copy_(column[indices[edges[kept]].long()])
        if positions is not None:
            positions.copy_(edges[kept])


def _edges_of(indptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the rows' edges, and the row of each."""
    counts = indptr.diff()[rows]
    row = torch.arange(rows.numel()).repeat_interleave(counts)
    before = counts.cumsum(0) - counts
    return torch.arange(row.numel()) - before[row] + indptr[rows][row], row
