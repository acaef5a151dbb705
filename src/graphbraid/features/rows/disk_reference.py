"""Plain twin of the compiled disk reader: the same methods, rows and errors.

It says what the kernel does, and runs where none can; it reads one row after the other.
"""

from __future__ import annotations

import os
import stat
import threading

import torch
from torch import Tensor

from graphbraid.files.block_sums import BLOCK_BYTES, sum_of

_MOST_MEMORY = 16 << 20


class DiskRows:
    """Reads each row's blocks by ``pread``."""

    def __init__(
        self,
        *,
        path: str,
        first_byte: int,
        num_rows: int,
        row_bytes: int,
        sums: Tensor | None,
        depth: int = 1,
        longest: int = BLOCK_BYTES,
        **_options: int,
    ) -> None:
        self.path, self.first_byte, self.num_rows, self.row_bytes = path, first_byte, num_rows, row_bytes
        self.end_byte, self._sums = first_byte + num_rows * row_bytes, sums
        num_blocks = -(-self.end_byte // BLOCK_BYTES)
        if sums is not None and sums.shape != (num_blocks,):
            raise ValueError(f"sums must have length {num_blocks}; got {tuple(sums.shape)}")
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(self._file)
        except OSError as error:
            raise RuntimeError(f"{path} cannot be opened: {error.strerror}") from error
        if stat.S_ISREG(status.st_mode) and status.st_size < self.end_byte:
            raise ValueError(
                f"{path} is truncated: it has {status.st_size} bytes; "
                f"its {num_rows} rows end at {self.end_byte}"
            )
        slot = max(longest // BLOCK_BYTES, -(-row_bytes // BLOCK_BYTES) + 1) * BLOCK_BYTES
        self._buffer_bytes = min(depth, max(_MOST_MEMORY // slot, 4)) * slot
        self._reading = threading.Lock()
        self._rows = self._requests = self._bytes = 0

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read(self, ids: Tensor, out: Tensor) -> None:
        """``out[i] = row ids[i]``; ``out`` is ``(num_ids, row_bytes)`` uint8."""
        check_ids(ids, self.num_rows)
        distinct, place = torch.unique(ids, return_inverse=True)
        with self._reading:
            if distinct.numel():
                rows = torch.stack([self._row(row) for row in distinct.tolist()])
                torch.index_select(rows, 0, place, out=out)
            self._rows += distinct.numel()

    def counts(self) -> tuple[int, int, int]:
        """Rows, requests, bytes."""
        return self._rows, self._requests, self._bytes

    def how(self) -> tuple[bool, bool, str]:
        """Whether by io_uring, whether past the page cache, and why not."""
        return False, False, "no compiled kernels"

    def buffer_bytes(self) -> int:
        """What the compiled reader takes for requests under way, so that budgets hold as many rows."""
        return self._buffer_bytes

    def _row(self, row: int) -> Tensor:
        at = self.first_byte + row * self.row_bytes
        first, last = at // BLOCK_BYTES, (at + self.row_bytes - 1) // BLOCK_BYTES
        begin, end = first * BLOCK_BYTES, min((last + 1) * BLOCK_BYTES, self.end_byte)
        read = bytearray(self._read(begin, end - begin, row))
        for block in range(first, last + 1) if self._sums is not None else ():
            self._check(block, memoryview(read)[(block - first) * BLOCK_BYTES :][:BLOCK_BYTES], row)
        self._requests, self._bytes = self._requests + 1, self._bytes + (last + 1 - first) * BLOCK_BYTES
        return torch.frombuffer(read, dtype=torch.uint8, offset=at - begin, count=self.row_bytes)

    def _read(self, begin: int, num_bytes: int, row: int) -> bytes:
        parts, done = [], 0
        while done < num_bytes:
            try:
                part = os.pread(self._file, num_bytes - done, begin + done)
            except OSError as error:
                raise RuntimeError(
                    f"{self.path} cannot be read at byte {begin + done} (row {row}): {error.strerror}"
                ) from error
            if not part:
                raise ValueError(
                    f"{self.path} was truncated while it was open: it ends at byte {begin + done} "
                    f"(row {row}); its rows end at {self.end_byte}"
                )
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def _check(self, block: int, content: memoryview, row: int) -> None:
        assert self._sums is not None
        if sum_of(content) != int(self._sums[block]) % (1 << 64):
            begin = block * BLOCK_BYTES
            raise ValueError(
                f"{self.path} has changed since it was written: block {block} (bytes {begin} to "
                f"{begin + len(content)}, read for row {row}) does not have its checksum; store again"
            )


def check_ids(ids: Tensor, num_rows: int) -> None:
    """Refuse ids that are no rows, by the first."""
    outside = ((ids < 0) | (ids >= num_rows)).nonzero()
    if outside.numel():
        at = int(outside[0])
        raise ValueError(f"ids must be rows in [0, {num_rows}); ids[{at}] is {int(ids[at])}")
