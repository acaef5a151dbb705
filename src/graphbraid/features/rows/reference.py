"""Plain twins of the compiled disk reader and row cache: the same methods, rows, hits and errors.

Tests compare the kernels with them, and they run where kernels are missing. Rows are read one by one.
"""

import os
import stat
import threading
from collections import OrderedDict, deque

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
        """Whether by io_uring, whether by O_DIRECT, and the reason if not."""
        return False, False, "no compiled kernels"

    def buffer_bytes(self) -> int:
        """Buffers of the compiled reader, so that budgets hold the same number of rows."""
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


class BroughtRows:
    """Rows that the caller of ``decide`` reads."""

    row_bytes = 0

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def read(self, ids: Tensor, _out: Tensor) -> None:
        """Raise an error: there is nothing to read here."""
        if ids.numel():
            raise ValueError("rows that the caller brings are not read")


def check_ids(ids: Tensor, num_rows: int) -> None:
    """Check that all ids are rows; the error names the first that is not."""
    outside = ((ids < 0) | (ids >= num_rows)).nonzero()
    if outside.numel():
        at = int(outside[0])
        raise ValueError(f"ids must be rows in [0, {num_rows}); ids[{at}] is {int(ids[at])}")


NEVER = (1 << 63) - 1
"""Number of the next batch for a row that no announced batch reads."""


class Static:
    """The policy that keeps the first rows of a full cache; twin of csrc/disk/replacement.h."""

    def hit(self, row: int, following: int) -> None:
        """Note a read of a kept row; ``following`` is the batch that reads it next."""

    def choose(self, row: int, following: int) -> int | None:
        """Return the row to evict for one that was read; None: evict none."""
        return None

    def take(self, row: int, following: int) -> None:
        """Note that a row is kept from now on."""

    def announced(self, row: int, following: int) -> None:
        """Note that the next reader of a kept row has changed."""


class Sieve(Static):
    """The policy that evicts the oldest row that was not read since the hand last passed it."""

    def __init__(self) -> None:
        self._rows: list[int] = []  # the oldest first
        self._was_read: dict[int, bool] = {}
        self._hand: int | None = None  # the row looked at next; None: the oldest

    def hit(self, row: int, following: int) -> None:
        """Mark it."""
        self._was_read[row] = True

    def choose(self, row: int, following: int) -> int | None:
        """Move the hand to the first unmarked row and evict it."""
        if not self._rows:
            return None
        at = 0 if self._hand is None else self._rows.index(self._hand)
        while self._was_read[self._rows[at]]:
            self._was_read[self._rows[at]] = False
            at = (at + 1) % len(self._rows)
        self._hand = self._rows[at + 1] if at + 1 < len(self._rows) else None
        gone = self._rows.pop(at)
        del self._was_read[gone]
        return gone

    def take(self, row: int, following: int) -> None:
        """Take a row as the newest."""
        self._rows.append(row)
        self._was_read[row] = False


class Belady(Static):
    """The policy that evicts the row whose next read is last."""

    def __init__(self, ranks: Tensor | None) -> None:
        self._ranks = ranks
        self._keys: OrderedDict[int, int] = OrderedDict()  # the least recently touched first

    def _key(self, row: int, following: int) -> int:
        return following if following != NEVER or self._ranks is None else NEVER - int(self._ranks[row])

    def take(self, row: int, following: int) -> None:
        """Take a row as the most recently touched."""
        self._keys.pop(row, None)
        self._keys[row] = self._key(row, following)

    hit = announced = take

    def choose(self, row: int, following: int) -> int | None:
        """Return the row of the largest key, of equal ones the least recently touched."""
        if not self._keys:
            return None
        last, key = max(self._keys.values()), self._key(row, following)
        if key > last or (key == last and following != NEVER):
            return None
        gone = next(kept for kept, its in self._keys.items() if its == last)
        del self._keys[gone]
        return gone


class RowCache:
    """Keeps rows in a dictionary."""

    def __init__(
        self, *, disk: DiskRows | BroughtRows, capacity: int, policy: str, ranks: Tensor | None
    ) -> None:
        self._disk, self._capacity, self._ranks = disk, capacity, ranks
        self._policy = Belady(ranks) if policy == "belady" else Sieve() if policy == "sieve" else Static()
        self._looks_ahead = policy == "belady" and capacity > 0
        self._rows: dict[int, Tensor] = {}
        self._ahead: deque[tuple[int, list[int]]] = deque()
        self._next_batch = 0
        self._slots: dict[int, int] = {}  # of rows that the caller keeps
        self._reads = self._hits = self._filled = 0
        self._turns = threading.Lock()

    def fill(self, ids: Tensor) -> None:
        """Read rows while there is room."""
        check_ids(ids, self._disk.num_rows)
        with self._turns:
            self._fill(ids)

    def _fill(self, ids: Tensor) -> None:
        for row in ids.tolist():
            if row not in self._rows and len(self._rows) < self._capacity:
                out = torch.empty(1, self._disk.row_bytes, dtype=torch.uint8)
                self._disk.read(torch.tensor([row]), out)
                self._filled += 1
                self._keep(row, out[0], NEVER)

    def announce(self, ids: Tensor) -> int:
        """Add a coming batch."""
        check_ids(ids, self._disk.num_rows)
        with self._turns:
            is_whole = len(self._rows) == self._disk.num_rows  # no row will be evicted
            return self._announce(ids) if self._looks_ahead and not is_whole else -1

    def _announce(self, ids: Tensor) -> int:
        batch, self._next_batch = self._next_batch, self._next_batch + 1
        pending = {row for _, rows in self._ahead for row in rows}
        for row in ids.tolist():
            if row not in pending and row in self._rows:
                self._policy.announced(row, batch)
            pending.add(row)
        self._ahead.append((batch, ids.tolist()))
        return batch

    def forget(self) -> None:
        """Drop all coming batches."""
        with self._turns:
            while self._ahead:
                self._drop_first()

    def gather(self, ids: Tensor, out: Tensor, batch: int) -> None:
        """``out[i] = row ids[i]``."""
        check_ids(ids, self._disk.num_rows)
        with self._turns:
            self._gather(ids, out, batch)

    def _gather(self, ids: Tensor, out: Tensor, batch: int) -> None:
        rows = ids.tolist()
        hits, wanted = self._found(rows)
        for i in hits:
            out[i] = self._rows[rows[i]]
        missing = torch.tensor([row for row, _ in wanted], dtype=torch.int64)
        read = torch.empty(len(wanted), self._disk.row_bytes, dtype=torch.uint8)
        self._disk.read(missing, read)
        for (_, i), values in zip(wanted, read, strict=True):
            out[i] = values
        self._note(rows, hits, wanted, batch, out)

    def _found(self, rows: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Places of rows that are kept, and the others with theirs, in the order of the file."""
        hits = [i for i, row in enumerate(rows) if row in self._rows]
        return hits, sorted((row, i) for i, row in enumerate(rows) if row not in self._rows)

    def _note(
        self, rows: list[int], hits: list[int], wanted: list[tuple[int, int]], batch: int, out: Tensor
    ) -> None:
        """Note that a batch was read, and keep the rows that the policy chooses."""
        is_announced = self._begin(rows, batch)
        for i in hits:
            self._policy.hit(rows[i], self._following(i) if is_announced else NEVER)
        for row, i in wanted if self._capacity else ():
            following = self._following(i) if is_announced else NEVER
            self._policy.hit(row, following) if row in self._rows else self._keep(row, out[i], following)
        if is_announced:
            self._ahead.popleft()
        self._reads, self._hits = self._reads + len(rows), self._hits + len(hits)

    def decide(self, ids: Tensor, batch: int, slots: Tensor, fills: Tensor) -> None:
        """Decide as :meth:`gather` would, with slots for the rows."""
        check_ids(ids, self._disk.num_rows)
        rows = ids.tolist()
        with self._turns:
            before = [self._slots.get(row, -1) for row in rows]
            hits, wanted = self._found(rows)
            wanted.sort(key=lambda one: one[1])
            self._note(rows, hits, wanted, batch, torch.empty(len(rows), 0, dtype=torch.uint8))
            kept = {row: slot for row, slot in self._slots.items() if row in self._rows}
            free = sorted({*range(self._capacity)} - {*kept.values()})
            self._slots = kept | dict(zip((row for row in self._rows if row not in kept), free, strict=False))
        after = [self._slots.get(row, -1) if slot < 0 else -1 for row, slot in zip(rows, before, strict=True)]
        slots[:], fills[:] = torch.tensor([before, after], dtype=torch.int32)

    def counts(self) -> tuple[int, int, int, int]:
        """Reads, hits, rows filled, rows kept."""
        return self._reads, self._hits, self._filled, len(self._rows)

    def overhead_bytes(self) -> int:
        """Bookkeeping of the compiled cache, since that of dictionaries is not known."""
        per_row = (8 if self._looks_ahead else 4) if self._capacity else 0
        return self._disk.num_rows * per_row + self._capacity * 24

    def _begin(self, rows: list[int], batch: int) -> bool:
        if not any(number == batch for number, _ in self._ahead):
            return False
        while self._ahead[0][0] < batch:
            self._drop_first()
        return self._ahead[0][1] == rows

    def _drop_first(self) -> None:
        for i, row in enumerate(self._ahead[0][1]):
            if row in self._rows:
                self._policy.announced(row, self._following(i))
        self._ahead.popleft()

    def _following(self, i: int) -> int:
        """The batch that next reads what the first announced one reads in its i-th place."""
        batch, rows = self._ahead[0]
        if rows[i] in rows[i + 1 :]:
            return batch
        later = (number for number, others in list(self._ahead)[1:] if rows[i] in others)
        return next(later, NEVER)

    def _keep(self, row: int, values: Tensor, following: int) -> None:
        if len(self._rows) >= self._capacity:
            gone = self._policy.choose(row, following)
            if gone is None:
                return
            del self._rows[gone]
        self._rows[row] = values.clone()
        self._policy.take(row, following)
