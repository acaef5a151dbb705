"""Belady's replacement over a trace of batches: the most reads a cache can answer, known afterwards.

A batch reads its rows at once. Rows that are in the cache by then are hits; afterwards any of the rows that
were there or were read may stay. Keeping those whose next use comes first is optimal (Belady 1966), even
where rows may pass the cache by, as here. Before the first batch the cache may be filled, as a static
choice is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

_Ids = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Trace:
    """The rows of some batches in their order, 4 bytes a read (8 from 2**31 nodes on)."""

    batches: tuple[_Ids, ...]
    """The distinct rows that each batch reads."""
    num_nodes: int
    """Rows that there are."""

    @classmethod
    def of(cls, batches: Iterable[Tensor], num_nodes: int) -> Trace:
        """The trace of batches given by their ``n_id``."""
        dtype = np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64
        return cls(
            batches=tuple(np.unique(n_id.numpy()).astype(dtype) for n_id in batches), num_nodes=num_nodes
        )

    @property
    def num_reads(self) -> int:
        """Reads of all batches."""
        return sum(len(batch) for batch in self.batches)

    def next_uses(self) -> tuple[list[npt.NDArray[np.int32]], npt.NDArray[np.int32]]:
        """When each row that is read is read next, and when each row is read first.

        Returns:
            For each read of each batch, the number of the next batch that reads the row, and the same of
            every row from before the first batch: ``(num_nodes,)``. The number of batches stands for never.
        """
        never = len(self.batches)
        upcoming = np.full(self.num_nodes, never, np.int32)
        found = []
        for number in range(never - 1, -1, -1):
            batch = self.batches[number]
            found.append(upcoming[batch])
            upcoming[batch] = number
        return found[::-1], upcoming


def belady_hits(trace: Trace, capacity: int) -> int:
    """Reads that a cache of ``capacity`` rows answers at best, filled with the right rows beforehand."""
    never = len(trace.batches)
    next_uses, next_use = trace.next_uses()
    kept = _first_used(np.flatnonzero(next_use < never), next_use, capacity)
    is_kept = np.zeros(trace.num_nodes, bool)
    is_kept[kept] = True
    hits = 0
    for batch, next_of_batch in zip(trace.batches, next_uses, strict=True):
        new = batch[~is_kept[batch]]
        hits += len(batch) - len(new)
        next_use[batch] = next_of_batch
        candidates = np.concatenate([kept, new])
        is_kept[kept] = False
        kept = _first_used(candidates[next_use[candidates] < never], next_use, capacity)
        is_kept[kept] = True
    return hits


def _first_used(rows: _Ids, next_use: npt.NDArray[np.int32], capacity: int) -> _Ids:
    """The rows whose next use comes first."""
    if len(rows) <= capacity:
        return rows
    return rows[np.argpartition(next_use[rows], capacity - 1)[:capacity]] if capacity else rows[:0]
