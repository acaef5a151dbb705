"""Look-ahead: rows that earlier batches brought to the device are not gathered and copied again.

Batches that follow one another share many rows. The device keeps the latest rows that were copied to it, in a
ring; the host keeps a directory of it. A batch's ids are known as soon as it is sampled, before anything was
gathered: what the ring will hold by the time of its copy is left out, and the device puts the batch together
from the ring. The batch's bits are the same.

The directory runs ahead of the ring, so batches must be copied in the order they were looked up in: that of
the claims. A batch that comes out of turn (some before it were dropped) is gathered whole, and the ring
starts anew.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.ops.gather import gather_rows
from graphbraid.sampling.minibatch import MiniBatch
from graphbraid.sampling.rows import RowPart

_log = logging.getLogger(__name__)

KEPT_BATCHES = 4
"""Rows in the ring, as a multiple of the first batch's. By ``benchmarks.planning.lookahead`` 25 to 58 % of
a batch's rows need not travel with two, 50 to 92 % with four, 70 to 94 % with eight, for twice the memory."""

Key = tuple[int, int]
"""Epoch and step."""


class Directory:
    """What the ring holds once all batches looked up so far are copied.

    Rows get rising positions as they are appended, and lie at their position modulo the capacity.
    """

    def __init__(self, num_nodes: int, capacity: int) -> None:
        self._position = torch.full((num_nodes,), -1, dtype=torch.int64)
        self.capacity = capacity
        self.head = 0
        """Position of the next row."""

    def look_up(self, n_id: Tensor) -> tuple[Tensor, Tensor]:
        """Append what is missing.

        Args:
            n_id: ``(num_ids,)`` int64, at most ``capacity``.

        Returns:
            Which of the ids are missing, int64, and each id's place in the ring, ``(num_ids,)`` int32.
        """
        found = gather_rows(self._position.unsqueeze(1), n_id).squeeze(1)
        # As many rows go from the ring as are appended: first all might be, then those missing then.
        margin = n_id.numel()
        for _ in range(2):
            is_missing = found < max(self.head + margin - self.capacity, 0)
            missing = is_missing.nonzero().squeeze(1)
            margin = missing.numel()
        new = torch.arange(self.head, self.head + margin)
        found[missing] = new
        self._position[n_id[missing]] = new
        self.head += margin
        return missing, (found % self.capacity).int()

    def clear(self) -> None:
        """Forget all rows."""
        self._position.fill_(-1)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Found:
    """What a batch's look-up gave."""

    missing: Tensor
    """``(num_missing,)`` int64: which of the batch's rows the ring will not hold."""
    slots: Tensor
    """See :class:`graphbraid.sampling.rows.RowPart`, also for the others."""
    first: int
    generation: int


class RowBuffer:
    """The directory and the ring of one loader.

    Workers claim steps in the order of their copies, look them up in this order, and gather what is missing;
    the copying thread admits a batch before its copy and completes it on the device.

    Args:
        x: ``(num_nodes, F)`` contiguous feature rows, on the host.
        kept_batches: rows in the ring, in batches.
    """

    def __init__(self, x: Tensor, *, kept_batches: int = KEPT_BATCHES) -> None:
        self._x = x.detach()
        self._kept_batches = kept_batches
        self._claimed = threading.Condition()
        self._claims: deque[Key] = deque()
        self._looking_up = threading.Lock()
        self._directory: Directory | None = None
        self._is_on = True
        # Of the copying thread; others only read.
        self._generation = 0
        self._next = 0  # the position that the next batch's rows must have
        self._ring: Tensor | None = None

    @property
    def capacity(self) -> int:
        """Rows in the ring; 0 before the first batch."""
        return 0 if self._directory is None else self._directory.capacity

    @property
    def ring_bytes(self) -> int:
        """Device memory of the ring."""
        return self.capacity * self._x.shape[1] * self._x.element_size()

    def claim(self, epoch: int, step: int) -> None:
        """A worker is about to prepare a step; its copy follows those of the steps claimed before."""
        with self._claimed:
            self._claims.append((epoch, step))

    @contextmanager
    def preparing(self, epoch: int, step: int) -> Iterator[None]:
        """Around a claimed step's preparation: one that fails holds up no other."""
        try:
            yield
        finally:
            self._end_turn((epoch, step))

    def look_up(self, epoch: int, step: int, n_id: Tensor) -> Found | None:
        """What of a batch is missing; waits for the steps that were claimed before.

        None: all must travel, since nobody claimed the step, it is larger than the ring, or there is no ring.
        """
        key = (epoch, step)
        with self._claimed:
            self._claimed.wait_for(lambda: key not in self._claims or self._claims[0] == key)
            if key not in self._claims or not self._is_on:
                return None
        with self._looking_up:
            directory = self._directory = self._directory or self._make_directory(n_id.numel())
            if n_id.numel() > directory.capacity:
                return None
            first, generation = directory.head, self._generation
            missing, slots = directory.look_up(n_id)
        self._end_turn(key)
        return Found(missing=missing, slots=slots, first=first, generation=generation)

    def part_of(self, found: Found, n_id: Tensor) -> RowPart:
        """What must travel of a batch, gathered."""
        rows = gather_rows(self._x, n_id[found.missing])
        return RowPart(rows=rows, slots=found.slots, first=found.first, generation=found.generation)

    def admit(self, batch: MiniBatch) -> None:
        """Before a batch's copy: if the ring will not hold what it was prepared for, let it travel whole."""
        part = batch.row_part
        if part is None or (part.generation == self._generation and part.first == self._next):
            return
        batch.send_whole()
        if part.generation == self._generation:
            self._start_anew()

    def complete(self, moved: MiniBatch) -> None:
        """On the device: append a batch's rows to the ring and make its features from there.

        Runs in the current stream. Where device memory runs out, nothing has changed.
        """
        part = moved.row_part
        if part is None:
            return
        ring = self._ring_on(part.rows)
        if ring is None:
            moved.send_whole()
            return
        x = ring.new_empty(part.slots.numel(), ring.shape[1])
        begin, count = part.first % len(ring), len(part.rows)
        straight = min(count, len(ring) - begin)
        ring[begin : begin + straight].copy_(part.rows[:straight])
        ring[: count - straight].copy_(part.rows[straight:])
        torch.index_select(ring, 0, part.slots, out=x)
        self._next = part.first + count
        moved.x = x

    def _end_turn(self, key: Key) -> None:
        with self._claimed:
            if key in self._claims:
                self._claims.remove(key)
                self._claimed.notify_all()

    def _make_directory(self, num_rows: int) -> Directory:
        num_nodes = len(self._x)
        return Directory(num_nodes, min(self._kept_batches * num_rows, num_nodes + num_rows))

    def _start_anew(self) -> None:
        """Rows that were looked up never came: forget the ring; batches already prepared travel whole."""
        with self._looking_up:
            assert self._directory is not None
            self._directory.clear()
            self._generation += 1
            self._next = self._directory.head

    def _ring_on(self, rows: Tensor) -> Tensor | None:
        if self._ring is None and self._is_on:
            try:
                self._ring = _make_ring(self.capacity, rows)
            except torch.OutOfMemoryError:
                self._is_on = False
                _log.warning("no device memory for the look-ahead's %d rows: it is off", self.capacity)
        return self._ring


def _make_ring(capacity: int, rows: Tensor) -> Tensor:
    """So many rows like these, on their device."""
    return rows.new_empty(capacity, rows.shape[1])
