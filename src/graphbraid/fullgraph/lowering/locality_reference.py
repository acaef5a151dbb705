"""Plain-Python reference of ``cached_reads`` in ``csrc/graph/locality.cpp``, with the same counts."""

from __future__ import annotations

from torch import Tensor

_WAYS = 16


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
