"""Plain-Python references of the kernels in ``csrc/locality.cpp``, with the same orders and counts."""

from __future__ import annotations

from torch import Tensor

_WAYS = 16


def community_order(indptr: Tensor, indices: Tensor, out: Tensor) -> None:
    """Write the nodes community by community; see :func:`.locality.community_order`.

    Args:
        indptr: ``(num_nodes + 1,)`` int64, of a CSC.
        indices: ``(num_edges,)`` int32 or int64, in ``[0, num_nodes)``.
        out: ``(num_nodes,)`` int64, overwritten.
    """
    ends, sources = indptr.tolist(), indices.tolist()
    num_nodes, total = len(ends) - 1, float(len(sources))
    strength = [float(ends[v + 1] - ends[v]) for v in range(num_nodes)]
    root = list(range(num_nodes))
    joined: list[list[int]] = [[] for _ in range(num_nodes)]
    kept: list[dict[int, int]] = [{} for _ in range(num_nodes)]

    def community(v: int) -> int:
        while root[v] != v:
            v = root[v]
        return v

    for v in sorted(range(num_nodes), key=lambda v: ends[v + 1] - ends[v]):
        edges = [(u, 1) for u in sources[ends[v] : ends[v + 1]]]
        for child in reversed(joined[v]):
            edges += kept[child].items()
        weights: dict[int, int] = {}
        for neighbour, weight in edges:
            if (found := community(neighbour)) != v:
                weights[found] = weights.get(found, 0) + weight
        best, most = v, 0.0
        for found, weight in weights.items():
            gain = float(weight) * total - strength[v] * strength[found]
            if gain > most:
                best, most = found, gain
        if best != v:
            root[v] = best
            strength[best] += strength[v]
            joined[best].append(v)
            kept[v] = weights
    place = 0
    for top in range(num_nodes):
        todo = [top] if root[top] == top else []
        while todo:
            v = todo.pop()
            out[place] = v
            place += 1
            todo += reversed(joined[v])


def cached_reads(
    indptr: Tensor, indices: Tensor, nodes: Tensor | None, capacity: int, every: int
) -> tuple[int, int]:
    """Count the reads of source rows and the hits among them in a 16-way cache with LRU replacement.

    Args:
        indptr: ``(num_nodes + 1,)`` int64, of a CSC.
        indices: ``(num_edges,)`` int32 or int64.
        nodes: ``(num_rows,)`` int64, the destination rows in the order they are aggregated. If None, all.
        capacity: number of rows that the cache holds.
        every: one in this many sets is simulated.
    """
    ends, sources = indptr.tolist(), indices.tolist()
    num_sets = max(1, capacity // _WAYS)
    sets: list[list[int]] = [[] for _ in range(max(1, num_sets // every))]
    reads = hits = 0
    for v in range(len(ends) - 1) if nodes is None else nodes.tolist():
        for row in sources[ends[v] : ends[v + 1]]:
            place = ((row * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 32) * num_sets >> 32
            if place >= len(sets):
                continue
            held = sets[place]
            reads += 1
            if row in held:
                hits += 1
                held.remove(row)
            held.insert(0, row)
            del held[_WAYS:]
    return reads, hits
