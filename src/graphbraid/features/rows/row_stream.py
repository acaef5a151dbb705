"""RowStream: rows of a table in rounds, read one round ahead of their use; ScratchRows: rows to write."""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Protocol

import torch
from torch import Tensor

from graphbraid.errors import DataError, ResourceError
from graphbraid.features.rows.disk import DiskOptions, DiskRows
from graphbraid.files.block_sums import BlockSums
from graphbraid.files.writing import format_bytes, reserve, resource_error
from graphbraid.ops.gram_rounds import Round, rounds_of

_READ = DiskOptions(direct=False)
"""Reads go through the page cache, which still has much of what was just written. They are many at a time,
while page faults would read one page after the other, with the system's read-ahead around each."""


class ScratchRows:
    """A ``(num_rows, width)`` matrix that is written and then gathered by chunks of rows.

    Reads of a file are compared with checksums of its blocks, taken when they were written. Without
    ``in_memory``, a file in ``folder`` (None: the system's) has the rows until the process ends. ``need``
    names the task that needs it, and ``instead`` how to do without, for the ResourceError about a full disk.
    """

    def __init__(
        self,
        num_rows: int,
        width: int,
        *,
        in_memory: bool,
        folder: Path | None,
        need: str = "exact inference",
        instead: str = "raise memory_budget_bytes so that no file is needed",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.shape, self.dtype = torch.Size((num_rows, width)), dtype
        nbytes = num_rows * width * dtype.itemsize
        self.memory_bytes = nbytes if in_memory else 0
        self._rows = torch.empty(self.shape, dtype=dtype) if in_memory else None
        self._need, self._place = need, Path(tempfile.gettempdir() if folder is None else folder)
        self._file = None if in_memory else _new_file(nbytes, self._place, need, instead)
        self._sums, self._num_written = BlockSums(), 0
        self._reader: DiskRows | None = None
        if self._file is not None:
            weakref.finalize(self, self._file.close)

    def write(self, start: int, rows: Tensor) -> None:
        """Write ``rows`` from ``start`` on, after all earlier ones; ResourceError if the disk fails."""
        if self._rows is not None:
            self._rows[start : start + rows.shape[0]] = rows
            return
        assert self._file is not None
        assert start == self._num_written, "the sums of blocks are taken in the file's order"
        rest = memoryview(rows.contiguous().numpy().data).cast("B")
        offset = start * self.shape[1] * self.dtype.itemsize
        self._sums.add(rest)
        self._num_written += rows.shape[0]
        try:
            while rest:  # writes may be short
                done = os.pwrite(self._file.fileno(), rest, offset)
                rest, offset = rest[done:], offset + done
        except OSError as error:
            raise ResourceError(f"the temporary file {self._file.name} cannot be written: {error}") from error

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a copy of the rows of ``ids``, in ``out`` if given, once all have been written."""
        if self._rows is not None:
            return torch.index_select(self._rows, 0, ids, out=out)
        if self._reader is None:
            self._reader = self._open()
        try:
            return self._reader.gather(ids, out)
        except DataError as error:
            raise DataError(
                f"{self._need} reads a temporary file in {self._place} that is not what was written there "
                f"({str(error).partition(';')[0]}). Run again. If it happens again, memory or disk fails: "
                "set TMPDIR to a folder on another disk"
            ) from error

    def _open(self) -> DiskRows:
        assert self._file is not None
        assert self._num_written == self.shape[0], "rows are read once all are written"
        # Where the file has no name any more, its descriptor leads to it.
        by_descriptor = Path(f"/proc/self/fd/{self._file.fileno()}")
        path = by_descriptor if by_descriptor.exists() else Path(self._file.name)
        return DiskRows(
            path,
            offset=0,
            num_rows=self.shape[0],
            row_shape=self.shape[1:],
            dtype=self.dtype,
            sums=torch.from_numpy(self._sums.all()),
            options=_READ,
        )


def _new_file(num_bytes: int, place: Path, need: str, instead: str) -> IO[bytes]:
    make = tempfile.TemporaryFile if Path("/proc/self/fd").exists() else tempfile.NamedTemporaryFile
    try:
        file: IO[bytes] = make(dir=place, buffering=0)
        try:
            # Reserved now, so that a full disk is told before hours of work and not after.
            reserve(file.fileno(), max(num_bytes, 1))
        except OSError:
            file.close()
            raise
    except OSError as error:
        clear = resource_error(error, place / "rows")
        raise ResourceError(
            f"{need} needs a temporary file of {format_bytes(num_bytes)} in {place}: "
            f"{clear or error}. Set TMPDIR to a folder on a larger disk, or {instead}."
        ) from error
    return file


LONGEST_ROUND = 16 << 20
"""Most bytes of a round: enough for a disk to be fast, while two rounds are little beside the model."""
_ROUNDS_IN_ROOM = 16
"""Largest part of the room that a round takes."""


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

    Each iteration gives all rounds, in the same order. Rounds that fit into the room stay in memory from the
    first iteration on. Of the other rounds, two are in memory at a time. ``table`` is called at the first
    read; ``ids`` are ascending rows of it, by default the first ``count``.
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
        """Set the bytes for rounds under way and, if it ``keeps`` them, that stay; before iterating."""
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
        """Bytes of the round in use, the one being read, and one that is widened to float32."""
        return 3 * self._round_bytes

    @property
    def nbytes(self) -> int:
        """Most memory that it takes, beside the table's own."""
        kept = sum(part.num_rows for part in self.rounds[: self._num_kept]) * 4 * self.width
        return kept + (0 if self._num_kept == len(self.rounds) else self._buffer_bytes)

    @property
    def rows_per_pass(self) -> int:
        """Rows that an iteration reads from the table once the others stay in memory."""
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
            if ahead is not None:  # left early: the read must end before its buffer is used again
                ahead.exception()

    def _begin(self, number: int | None) -> Future[Tensor] | None:
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
