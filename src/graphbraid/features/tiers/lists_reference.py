"""The plain twin of csrc/disk/neighbor_lists.cpp: the same ids, counts and errors, one list at a time."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from graphbraid.features.rows.reference import DiskRows

_NODES_PER_WORD, _WORD_BYTES = 64, 16


class NeighborLists:
    """The lists of ``hot`` nodes in memory, those of the others in a file.

    Args:
        disk: the graph's indices as rows of one id.
        indptr: ``(num_nodes + 1,)`` int64.
        hot: ``(num_hot,)`` int64 nodes, ascending.
    """

    def __init__(self, *, disk: DiskRows, indptr: Tensor, hot: Tensor) -> None:
        self._disk, self._num_nodes = disk, indptr.numel() - 1
        self._dtype = torch.int32 if disk.row_bytes == torch.int32.itemsize else torch.int64
        self._counting = threading.Lock()
        self._counts = [0, 0, 0, 0]
        edges = [torch.arange(int(indptr[v]), int(indptr[v + 1])) for v in hot.tolist()]
        ids = self._read(torch.cat([torch.empty(0, dtype=torch.int64), *edges]))
        sizes = [positions.numel() for positions in edges]
        self._hot = dict(zip(hot.tolist(), torch.split(ids, sizes) if sizes else (), strict=True))

    def read(self, indptr: Tensor, nodes: Tensor, ends: Tensor, positions: Tensor, out: Tensor) -> None:
        """Write the ids of drawn edges.

        Args:
            indptr: ``(num_nodes + 1,)`` int64.
            nodes: ``(rows,)`` int64 nodes that drew.
            ends: ``(rows + 1,)`` int64: row r drew the edges ``[ends[r], ends[r + 1])``, from 0 on.
            positions: ``(edges,)`` int64 positions of the drawn edges in the graph.
            out: ``(edges,)`` int64, written.
        """
        is_cold = torch.zeros(positions.numel(), dtype=torch.bool)
        counts = [0, 0, 0, 0]
        for node, begin, end in zip(nodes.tolist(), ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            if begin == end:
                continue
            here = slice(begin, end)
            if node in self._hot:
                out[here] = self._hot[node][positions[here] - int(indptr[node])].long()
            else:
                is_cold[here] = True
            kind = 0 if node in self._hot else 2
            counts[kind] += 1
            counts[kind + 1] += end - begin
        out[is_cold] = self._read(positions[is_cold]).long()
        with self._counting:
            self._counts = [a + b for a, b in zip(self._counts, counts, strict=True)]

    def counts(self) -> tuple[int, int, int, int]:
        """Lists and edges read from memory, and those read from the file."""
        hot_lists, hot_edges, cold_lists, cold_edges = self._counts
        return hot_lists, hot_edges, cold_lists, cold_edges

    def hot_edges(self) -> int:
        """Number of edges of the hot lists."""
        return sum(ids.numel() for ids in self._hot.values())

    def overhead_bytes(self) -> int:
        """Bookkeeping of the compiled lists, so that budgets hold the same number of lists."""
        words = -(-self._num_nodes // _NODES_PER_WORD) * _WORD_BYTES
        return words + 8 * (len(self._hot) + 1) + self._disk.buffer_bytes()

    def _read(self, positions: Tensor) -> Tensor:
        rows = torch.empty(positions.numel(), self._disk.row_bytes, dtype=torch.uint8)
        if positions.numel():
            self._disk.read(positions, rows)
        ids = rows.view(self._dtype).flatten()
        is_outside = (ids < 0) | (ids >= self._num_nodes)
        if bool(is_outside.any()):
            at = int(is_outside.nonzero()[0])
            raise ValueError(
                f"{self._disk.path} has changed since it was written: the source of edge "
                f"{int(positions[at])} is {int(ids[at])}, which is no node in [0, {self._num_nodes}); "
                "store again"
            )
        return ids
