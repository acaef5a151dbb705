"""DiskRows: rows of a table in a file, read by id without the rest; BroughtRows: rows that a caller reads."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import MOST_BYTES, as_count, as_flag, check_choice, check_tensor, shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.features.rows import reference
from graphbraid.files import mapped
from graphbraid.files.block_sums import BLOCK_BYTES
from graphbraid.native import plain_errors
from graphbraid.sampling.rows.by_id import TierCounts
from graphbraid.signatures import typed

READERS = ("auto", "io_uring", "threads")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskOptions:
    """Options of reads from a file.

    Raises:
        ConfigError: a number is out of its bounds.
    """

    reader: str = "auto"
    """``auto``: io_uring if the system allows it, else threads with ``pread``; ``threads``; ``io_uring``: an
    error if the system refuses it."""
    direct: bool = True
    """Whether to bypass the system's page cache (O_DIRECT) if the file system can."""
    depth: int = 128
    """Largest number of requests under way at a time."""
    longest_bytes: int = 16 * BLOCK_BYTES
    """Largest size of a request for several rows."""
    gap_blocks: int = 0
    """Largest gap, in blocks of 4096 bytes, between two rows that one request reads. A gap pays on disks with
    few requests a second, such as spinning and many network disks."""

    def __post_init__(self) -> None:
        check_choice(self.reader, "reader", READERS)
        checked = {
            "direct": as_flag(self.direct, "direct"),
            "depth": as_count(self.depth, "depth", least=1, most=4096),
            "longest_bytes": as_count(self.longest_bytes, "longest_bytes", least=BLOCK_BYTES, most=1 << 30),
            "gap_blocks": as_count(self.gap_blocks, "gap_blocks", most=1 << 20),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


class RowReader:
    """A reader of a table's rows by id; a :class:`.caches.RowCache` can be in front of it."""

    shape: torch.Size
    """``(num_rows, ...)``."""
    dtype: torch.dtype
    row_bytes: int
    buffer_bytes: int = 0
    """Memory of the buffers of reads under way."""
    native: Any
    """The compiled reader, or its twin."""

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """``out[i] = rows[ids[i]]``.

        Args:
            ids: ``(num_ids,)`` int64 rows, in any order, repeated or not.
            out: ``(num_ids, ...)`` contiguous, of this table's dtype; None makes one.

        Raises:
            DataError: an id is no row; the file is too short; or a block is not what was written. The message
                names the file, the block and the row.
            ResourceError: the system cannot read it.
        """
        out = self.room_for(ids, out)
        if ids.numel():
            with plain_errors():
                self.native.read(ids.contiguous(), as_bytes(out))
        return out

    def room_for(self, ids: Tensor, out: Tensor | None) -> Tensor:
        """Return ``out``, or a new tensor for the rows of ``ids``; DataError if one does not fit."""
        check_tensor(ids, "ids", ndim=1)
        if ids.dtype != torch.int64 or ids.device.type != "cpu":
            raise DataError(f"ids must be int64 on the CPU; got {ids.dtype} on {ids.device}")
        shape = torch.Size((ids.numel(), *self.shape[1:]))
        if out is None:
            return torch.empty(shape, dtype=self.dtype)
        check_tensor(out, "out")
        if out.shape != shape or out.dtype != self.dtype or not out.is_contiguous():
            raise DataError(f"out must be contiguous {self.dtype} of {tuple(shape)}; got {shown(out)}")
        return out


class BroughtRows(RowReader):
    """Rows that the caller of :meth:`.caches.RowCache.decide` reads and keeps itself."""

    def __init__(self, num_rows: int, row_bytes: int) -> None:
        self.shape, self.dtype, self.row_bytes = torch.Size((num_rows, row_bytes)), torch.uint8, row_bytes
        self.native = (native.kernels() or reference).BroughtRows(num_rows)


@typed
class DiskRows(RowReader):
    """Rows of a table in a file, by id.

    Rows are read in the order of the file; one request reads rows that lie near each other, and a row
    requested twice is read once. If the file has block sums, reads are compared with them. Threads may share
    it; their calls take turns, each with the disk's whole queue.

    Args:
        path: the file; it must not change while it is read.
        offset: byte at which the first row begins.
        num_rows: number of rows.
        row_shape: shape of a row.
        dtype: dtype of the numbers.
        sums: ``(num_blocks,)`` int64 XXH64 of the file's blocks of 4096 bytes up to the end of the last row.
            If None, reads are not checked.
        options: options of the reads; None takes the defaults.

    Raises:
        ConfigError: a number is out of its bounds.
        DataError: the file is too short, rows have no bytes, or there is not one sum for each block.
        ResourceError: the file cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        offset: int,
        num_rows: int,
        row_shape: tuple[int, ...],
        dtype: torch.dtype,
        sums: Tensor | None = None,
        options: DiskOptions | None = None,
    ) -> None:
        self.path, self.options = Path(path), options or DiskOptions()
        num_rows = as_count(num_rows, "num_rows", most=MOST_BYTES)
        row = tuple(as_count(size, "row_shape", most=MOST_BYTES) for size in row_shape)
        self.row_bytes = math.prod(row) * dtype.itemsize
        if self.row_bytes == 0:
            raise DataError(f"rows of {self.path} have no bytes: their shape is {row}")
        as_count(num_rows * self.row_bytes, "the bytes of all rows", most=MOST_BYTES)
        self.shape, self.dtype = torch.Size((num_rows, *row)), dtype
        self._offset = as_count(offset, "offset", most=MOST_BYTES)
        if sums is not None:
            check_tensor(sums, "sums", ndim=1)
            if sums.dtype != torch.int64 or sums.device.type != "cpu":
                raise DataError(f"sums must be int64 on the CPU; got {sums.dtype} on {sums.device}")
        self._sums = None if sums is None else sums.contiguous()
        self._process, self._native = os.getpid(), self._open()

    @classmethod
    def behind(cls, x: Tensor, *, options: DiskOptions | None = None, what: str = "features") -> DiskRows:
        """Make a reader of the file from which a store's tensor is mapped.

        Args:
            x: ``(num_rows, ...)`` contiguous, as :func:`graphbraid.datasets.open_store` gives it.
            options: options of the reads; None takes the defaults.
            what: name of the rows, for messages.

        Raises:
            DataError: the tensor is not mapped from a file, or was written to and differs from it.
        """
        check_tensor(x, "x")
        found = mapped.find(x.data_ptr(), x.nbytes) if x.device.type == "cpu" and x.ndim else None
        if found is None or not x.is_contiguous():
            raise DataError(
                f"{what} on disk must be a whole array of a store that is mapped, as "
                f"datasets.open_store(path) gives it; got {shown(x)}, which "
                + ("is not contiguous" if found is not None else "lies in memory only")
            )
        if x._version:
            raise DataError(
                f"x is mapped from {found.path} and was written to since, so that the file has other values; "
                "store the graph again"
            )
        check_is_mapped(found)
        return cls(
            found.path,
            offset=found.offset,
            num_rows=x.shape[0],
            row_shape=tuple(x.shape[1:]),
            dtype=x.dtype,
            sums=None if found.sums is None else found.sums(),
            options=options,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.shape[0] * self.row_bytes

    @property
    def is_checked(self) -> bool:
        """Whether blocks are compared with sums as they are read."""
        return self._sums is not None

    @property
    def counts(self) -> TierCounts:
        """Counts of reads since the file was opened, in this process."""
        rows, requests, num_bytes = self.native.counts()
        return TierCounts(disk_rows=rows, disk_requests=requests, disk_bytes=num_bytes)

    @property
    def buffer_bytes(self) -> int:  # type: ignore[override]
        """Memory of the buffers of requests under way."""
        return int(self.native.buffer_bytes())

    def how(self) -> str:
        """The way the file is read, in words."""
        uring, direct, why = self.native.how()
        by = f"io_uring, {self.options.depth} requests at a time" if uring else f"threads ({why})"
        cache = "past the page cache" if direct else "through the page cache"
        return f"{by}, {cache}, {'blocks checked' if self.is_checked else 'unchecked'}"

    @property
    def native(self) -> Any:
        """The compiled reader or its twin; a forked process opens a new one."""
        if self._process != os.getpid():
            self._process, self._native = os.getpid(), self._open()
        return self._native

    def _open(self) -> Any:
        kernels = native.kernels() or reference
        options = self.options
        with plain_errors():
            opened = kernels.DiskRows(
                path=str(self.path),
                first_byte=self._offset,
                num_rows=self.shape[0],
                row_bytes=self.row_bytes,
                sums=self._sums,
                uring=options.reader != "threads",
                direct=options.direct,
                depth=options.depth,
                longest=options.longest_bytes,
                gap=options.gap_blocks,
            )
        uring, _, why = opened.how()
        if options.reader == "io_uring" and not uring:
            raise ConfigError(f"reader='io_uring' is not available here: {why}; leave it out for threads")
        return opened

    def __reduce__(self) -> tuple[Any, ...]:
        given = {
            "offset": self._offset,
            "num_rows": self.shape[0],
            "row_shape": tuple(self.shape[1:]),
            "dtype": self.dtype,
            "sums": self._sums,
            "options": self.options,
        }
        return _reopened, (str(self.path), given)

    def __repr__(self) -> str:
        return f"DiskRows({str(self.path)!r}, {tuple(self.shape)}, {self.dtype}, {self.how()})"


def check_is_mapped(found: mapped.Mapped) -> None:
    """Raise DataError if another file, or none, has the name of the mapped one."""
    try:
        now = mapped.file_id_of(found.path)
    except OSError as error:
        raise DataError(
            f"{found.path}, from which x is mapped, cannot be read any more ({error.strerror}); open "
            "the store again"
        ) from error
    if now != found.file_id:
        raise DataError(f"{found.path} was replaced since x was mapped from it; open the store again")


def _reopened(path: str, given: dict[str, Any]) -> DiskRows:
    return DiskRows(path, **given)


def as_bytes(rows: Tensor) -> Tensor:
    """Return ``(num_rows, row_bytes)`` uint8 over the same memory."""
    return rows.view(rows.shape[0], -1).view(torch.uint8)
