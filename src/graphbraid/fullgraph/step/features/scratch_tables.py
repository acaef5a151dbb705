"""What is made of features that do not lie in memory before the first step, in temporary files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from graphbraid.features.rows.row_stream import LONGEST_ROUND
from graphbraid.features.rows.scratch import ScratchRows
from graphbraid.fullgraph.lowering.hoisting import computed_once
from graphbraid.fullgraph.lowering.streamed import StreamedFeatures
from graphbraid.fullgraph.program import Operation
from graphbraid.graph.csc import Csc

_LEAST_ROOM = 4 * LONGEST_ROUND
_LANES = 16
"""Columns of a slab are a multiple of these where the room allows as many."""


class ScratchTables:
    """Makes matrices of a graph's features.

    Args:
        features: where the features are read, and the memory that may be taken.
        csc: all edges of the graph.
    """

    def __init__(self, features: StreamedFeatures, csc: Csc) -> None:
        self._features, self._csc = features, csc
        self._num_nodes, self._width = features.rows.shape
        self._room = max(features.host_bytes, _LEAST_ROOM)

    def in_order(self, nodes: Tensor) -> ScratchRows:
        """Return the ``(len(nodes), F)`` rows of nodes, in their order.

        Raises:
            ResourceError: the disk has no room, or fails.
            DataError: a block of the features is damaged.
        """
        made, start = self._new(nodes.numel(), self._width), 0
        for ids in torch.split(nodes, self._rows_at_a_time):
            made.write(start, self._read(ids))
            start += ids.numel()
        return made

    def computed(self, ops: Sequence[Operation], nodes: Tensor | None) -> ScratchRows:
        """Return the ``(num_rows, F)`` value of operations that are computed once, as :func:`computed_once`.

        Operations treat each column alike, so that some columns of all rows are there at a time: the features
        are read once for each such slab.

        Raises:
            ResourceError: the disk has no room, or fails.
            DataError: a block of the features is damaged.
        """
        num_rows = self._num_nodes if nodes is None else nodes.numel()
        slabs = []
        for columns in self._slabs(len(ops)):
            rows = computed_once(ops, self._csc, self._columns(columns), nodes)
            slab = self._new(num_rows, rows.shape[1])
            slab.write(0, rows)
            del rows
            slabs.append(slab)
        return slabs[0] if len(slabs) == 1 else self._side_by_side(slabs, num_rows)

    def num_slabs(self, num_ops: int) -> int:
        """Return how often :meth:`computed` reads the features for so many operations."""
        return sum(1 for _ in self._slabs(num_ops))

    def _slabs(self, num_ops: int) -> Iterator[slice]:
        """Yield the columns that fit into the room, with every operation's value and the temporary ones."""
        most = self._room // (4 * self._num_nodes * (num_ops + 2))
        count = max(1, min(most - most % _LANES if most > _LANES else most, self._width))
        for first in range(0, self._width, count):
            yield slice(first, min(first + count, self._width))

    def _columns(self, columns: slice) -> Tensor:
        """Return some columns of the features, ``(num_nodes, count)`` float32."""
        slab = torch.empty(self._num_nodes, columns.stop - columns.start)
        for ids in torch.split(torch.arange(self._num_nodes), self._rows_at_a_time):
            slab[int(ids[0]) : int(ids[-1]) + 1] = self._read(ids)[:, columns]
        return slab

    def _side_by_side(self, slabs: Sequence[ScratchRows], num_rows: int) -> ScratchRows:
        made, start = self._new(num_rows, self._width), 0
        for ids in torch.split(torch.arange(num_rows), self._rows_at_a_time):
            made.write(start, torch.cat([slab.gather(ids) for slab in slabs], 1))
            start += ids.numel()
        return made

    @property
    def _rows_at_a_time(self) -> int:
        return max(1, min(LONGEST_ROUND, self._room // 8) // (4 * self._width))

    def _read(self, ids: Tensor) -> Tensor:
        return self._features.rows.gather(ids).to(torch.float32)

    @staticmethod
    def _new(num_rows: int, width: int) -> ScratchRows:
        return ScratchRows(
            num_rows,
            width,
            in_memory=False,
            folder=None,
            need="full-graph training on features from disk",
            instead="give the features memory, by leaving host and tiers out",
        )


__all__ = ["ScratchTables"]
