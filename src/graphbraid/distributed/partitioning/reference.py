"""Plain twins, with the same arguments, of the kernels in ``csrc/graph/partition.cpp``.

``part_of`` is int32, a part for each node or item. ``nodes``, ``rows``, ``order``, ``loads`` and every
``indptr`` are int64, ``indices`` int32 or int64, and ``weight`` float32. What a function finds, it writes to
its arguments.
"""

# ruff: noqa: PLR0917, ARG001 - the kernels take their arguments by position

import heapq
import math

import torch
from torch import Tensor

from graphbraid.graph.csc import indptr_of_rows, ranges


def pack_by_load(order: Tensor, loads: Tensor, num_parts: int, part_of: Tensor) -> None:
    """Give items, in this order, to the part of the least load so far, of equal ones that of the fewest."""
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
    """Place nodes in turn where the weight of their neighbours less a price is largest; count moved ones.

    A node is taken out of its part before. The price of a part is ``price * load * sqrt(load of the part)``.
    No part exceeds the load ``most``, if any has room. ``indptr``, ``indices``, ``weight`` (None for 1) and
    ``loads`` are of these nodes' rows; ``part_of`` is -1 for a node that is not placed yet.
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
    """Return how many in-edges of the nodes from ``first`` on come from another part than the node's."""
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
    """Count the in-edges of a part's nodes ``rows`` that come from its own nodes and from others'.

    Writes both ``(num_rows + 1,)`` indptr, and 1 to uint8 ``is_halo`` for each source of another part.
    """
    edges, row = _edges_of(indptr, rows)
    sources = indices[edges].long()
    is_local = part_of[sources] == part
    is_halo[sources[~is_local]] = 1
    for ends, counted in ((local_indptr, is_local), (remote_indptr, ~is_local)):
        ends.copy_(indptr_of_rows(row[counted], rows.numel()))


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
    """Write a part's local and remote edges, and their positions if asked for, after :func:`count_split`.

    ``column`` is the local row of each of the part's nodes, and the halo row of each other source.
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
    return ranges(indptr[rows], counts), row
