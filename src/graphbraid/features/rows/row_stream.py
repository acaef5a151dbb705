"""RowStream: all rows of a table, read in rounds, each while the one before it is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from graphbraid.ops.linear import Round, rounds_of

LONGEST_ROUND = 16 << 20
"""Bytes of a round at most: it is long enough for a disk, and two of them are little beside the model."""
_ROUNDS_IN_ROOM = 16
"""A round takes this part of the room at most."""


class RowsById(Protocol):
    """A table whose rows are read by id."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the rows that are given."""
        ...

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of ``ids``, int64, in ``out`` if given."""
        ...


class RowStream:
    """The rows of a table as float32, in rounds that a thread reads one ahead of their use.

    Each iteration gives all rounds, in the same order. As many as fit into the room stay in memory from the
    first iteration on; of the others two are there at a time.

    Args:
        table: returns the table; called when rows are read first.
        count: rows of the stream, the first of the table or those of ``ids``.
        width: columns.
        ids: ``(count,)`` int64 rows of the table, ascending. If None, the first ``count``.
    """

    def __init__(
        self, table: Callable[[], RowsById], count: int, width: int, *, ids: Tensor | None = None
    ) -> None:
        self._table, self.count, self.width, self._ids = table, count, width, ids
        self._kept: dict[int, Tensor] = {}
        self._buffers: list[Tensor] = []
        self._reader: ThreadPoolExecutor | None = None
        self._num_read = 0
        self.set_room(0, keeps=False)

    def set_room(self, room: int, *, keeps: bool) -> None:
        """Set the memory that rows may take; before the first iteration.

        Args:
            room: bytes for rounds under way and for those that stay. 0: rounds of :data:`LONGEST_ROUND`.
            keeps: whether any stay.
        """
        row_bytes = 4 * self.width
        longest = min(LONGEST_ROUND, room // _ROUNDS_IN_ROOM if room else LONGEST_ROUND)
        self.rounds = rounds_of(self.count, max(1, longest // row_bytes))
        """The rounds of an iteration."""
        self._round_bytes = max(part.num_rows for part in self.rounds) * row_bytes
        spare = max(0, room - self._buffer_bytes)
        fits = room >= self.count * row_bytes
        most = len(self.rounds) if fits else spare // max(self._round_bytes, 1)
        self._num_kept = min(most, len(self.rounds)) if keeps else 0

    @property
    def _buffer_bytes(self) -> int:
        """Bytes of the rounds that are worked on and read, and of one that is widened to float32."""
        return 3 * self._round_bytes

    @property
    def nbytes(self) -> int:
        """Memory that it takes at most, beside the table's own."""
        kept = sum(part.num_rows for part in self.rounds[: self._num_kept]) * 4 * self.width
        return kept + (0 if self._num_kept == len(self.rounds) else self._buffer_bytes)

    @property
    def rows_per_pass(self) -> int:
        """Rows that an iteration reads of the table, once others stay in memory."""
        return sum(part.num_rows for part in self.rounds[self._num_kept :])

    def __iter__(self) -> Iterator[tuple[Round, Tensor]]:
        """Yield each round with its ``(num_rows, width)`` float32 rows, valid until the next."""
        there = dict(self._kept)  # as it is now: the thread adds to it
        missing = iter([number for number in range(len(self.rounds)) if number not in there])
        ahead = self._begin(next(missing, None))
        try:
            for number, part in enumerate(self.rounds):
                rows = there.get(number)
                if rows is None:
                    assert ahead is not None
                    rows = ahead.result()
                    ahead = self._begin(next(missing, None))
                yield part, rows
        finally:
            if ahead is not None:  # left early: its buffer must be at rest before it is read into again
                ahead.exception()

    def _begin(self, number: int | None) -> Future[Tensor] | None:
        """Start to read a round."""
        if number is None:
            return None
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="graphbraid-rows")
        part = self.rounds[number]
        if number < self._num_kept:
            out = torch.empty(part.num_rows, self.width)
        else:
            self._num_read += 1
            out = self._buffer(self._num_read % 2)[: part.num_rows]
        return self._reader.submit(self._read, number, part, out)

    def _buffer(self, number: int) -> Tensor:
        if not self._buffers:
            most = self._round_bytes // (4 * self.width)
            self._buffers = [torch.empty(most, self.width) for _ in range(2)]
        return self._buffers[number]

    def _read(self, number: int, part: Round, out: Tensor) -> Tensor:
        table, ids = self._table(), part.ids()
        if self._ids is not None:
            ids = self._ids[ids]
        if table.dtype == torch.float32:
            table.gather(ids, out)
        else:
            out.copy_(table.gather(ids))
        if number < self._num_kept:
            self._kept[number] = out
        return out


__all__ = ["LONGEST_ROUND", "RowStream", "RowsById"]
