"""ScratchRows: a matrix that is computed by chunks of rows, in memory or in a temporary file."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from graphbraid.errors import DataError, ResourceError
from graphbraid.features.rows.disk import DiskOptions, DiskRows
from graphbraid.files.block_sums import BlockSums
from graphbraid.files.writing import format_bytes, resource_error

_READ = DiskOptions(direct=False)
"""Through the page cache, which holds what was just written as far as there is room, and many at a time: page
faults would bring one page after the other, with as much around each as the system reads ahead."""


class ScratchRows:
    """A ``(num_rows, width)`` float32 matrix that is written and then gathered by chunks of rows.

    What is read of a file is compared with checksums of its blocks, taken as they were written.

    Args:
        num_rows: number of rows.
        width: number of columns.
        in_memory: whether to keep them in memory; otherwise they are in a file that is deleted when the
            process ends.
        folder: folder of that file. If None, the system's folder for temporary files.
        need: what needs the file, for the message about a full disk.
        instead: what would do without it, likewise.

    Raises:
        ResourceError: the disk has no room for the file.
    """

    dtype = torch.float32

    def __init__(
        self,
        num_rows: int,
        width: int,
        *,
        in_memory: bool,
        folder: Path | None,
        need: str = "exact inference",
        instead: str = "raise memory_budget_bytes so that no file is needed",
    ) -> None:
        self.shape = torch.Size((num_rows, width))
        self.memory_bytes = num_rows * width * 4 if in_memory else 0
        self._rows = torch.empty(self.shape) if in_memory else None
        self._need, self._place = need, Path(tempfile.gettempdir() if folder is None else folder)
        self._file = None if in_memory else _new_file(num_rows * width * 4, self._place, need, instead)
        self._sums, self._num_written = BlockSums(), 0
        self._reader: DiskRows | None = None
        if self._file is not None:
            weakref.finalize(self, self._file.close)

    def write(self, start: int, rows: Tensor) -> None:
        """Write ``rows`` from row ``start`` on, which is behind all that were written before.

        Raises:
            ResourceError: the disk fails.
        """
        if self._rows is not None:
            self._rows[start : start + rows.shape[0]] = rows
            return
        assert self._file is not None
        assert start == self._num_written, "the sums of blocks are taken in the file's order"
        rest = memoryview(rows.contiguous().numpy().data).cast("B")
        offset = start * self.shape[1] * 4
        self._sums.add(rest)
        self._num_written += rows.shape[0]
        try:
            while rest:  # writes may be short
                done = os.pwrite(self._file.fileno(), rest, offset)
                rest, offset = rest[done:], offset + done
        except OSError as error:
            raise ResourceError(f"the temporary file {self._file.name} cannot be written: {error}") from error

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a copy of the rows of ``ids``, in ``out`` if given; all rows have been written.

        Raises:
            DataError: a block of the file is not what was written.
            ResourceError: the disk fails.
        """
        if self._rows is not None:
            return torch.index_select(self._rows, 0, ids, out=out)
        if self._reader is None:
            self._reader = self._open()
        try:
            return self._reader.gather(ids, out)
        except DataError as error:
            raise DataError(
                f"{self._need} reads a temporary file in {self._place} that is not what was written there "
                f"({str(error).partition(';')[0]}). Run again; if this comes back, memory or disk fails: set "
                "TMPDIR to a folder on another disk"
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
            dtype=torch.float32,
            sums=torch.from_numpy(self._sums.all()),
            options=_READ,
        )


def _new_file(num_bytes: int, place: Path, need: str, instead: str) -> IO[bytes]:
    make = tempfile.TemporaryFile if Path("/proc/self/fd").exists() else tempfile.NamedTemporaryFile
    try:
        file: IO[bytes] = make(dir=place, buffering=0)
        try:
            # Reserved now, so that a full disk is told before hours of work and not after.
            os.posix_fallocate(file.fileno(), 0, max(num_bytes, 1))
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
