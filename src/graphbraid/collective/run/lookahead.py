"""Look-ahead: feature rows that a device already has are neither gathered nor copied again.

The device always has the hot rows of the features' tiers. With *look-ahead* it also has rows that earlier
batches brought, since consecutive batches share many. The device keeps the rows copied last in a ring buffer,
and the host keeps a directory of it. The ids of a batch are known as soon as it is sampled, before any row is
gathered: rows that the device will hold when the batch is copied are left out, and it joins the rows that it
has with those that come. The result is the same bit for bit.

The directory runs ahead of the ring, so batches must be copied in the order in which they were looked up,
which is the order of the claims. A batch that comes out of order, because some before it were dropped, is
gathered as a whole, and the ring is restarted.
"""

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.ops.gather import gather_rows
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.rows.by_id import FeatureSource, RowPart, TierCounts, link_of
from graphbraid.sampling.rows.device_cache import DeviceCache

_log = logging.getLogger(__name__)

KEPT_BATCHES = 4
"""Number of rows in the ring as a multiple of the first batch's. By ``benchmarks.planning.lookahead``,
25 to 58 % of a batch's rows need not be copied with 2, 50 to 92 % with 4, and 70 to 94 % with 8, each time
for twice the memory."""

APART = -1
"""Position of rows that stay out of the ring."""
Key = tuple[int, int]
"""Epoch and step."""


class Directory:
    """The contents of the ring once all batches looked up so far are copied.

    Rows get increasing positions as they are appended, and are stored at their position modulo the capacity.
    """

    def __init__(self, num_nodes: int, capacity: int) -> None:
        self._position = torch.full((num_nodes,), -1, dtype=torch.int64)
        self.capacity = capacity
        self.head = 0
        """Position of the next row."""

    def look_up(self, n_id: Tensor) -> tuple[Tensor, Tensor]:
        """Find the rows of a batch in the ring, and append those that are missing.

        Args:
            n_id: ``(num_ids,)`` int64 node ids, at most ``capacity`` of them.

        Returns:
            Indices into ``n_id`` of the missing rows, int64, and each row's slot in the ring, ``(num_ids,)``
            int32.
        """
        found = gather_rows(self._position.unsqueeze(1), n_id).squeeze(1)
        # Appending rows overwrites as many old ones: all of the batch's in the first pass, in the second only
        # those that the first found missing. The second finds no others missing, so what it finds stays.
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
    """The result of looking up a batch; see also :class:`graphbraid.sampling.rows.by_id.RowPart`."""

    missing: Tensor
    """Indices of the batch's rows that the device will not hold, ``(num_missing,)`` int64."""
    slots: Tensor
    """Slot of each of the batch's rows, hot rows first, ``(num_nodes,)`` int32."""
    first: int
    generation: int
    ring_rows: int = 0


class RowBuffer:
    """The feature rows that one loader's device has: the hot ones, and a ring buffer with its directory.

    Workers claim steps in the order of their copies, look them up in this order, and gather the missing rows;
    the copying thread admits a batch before its copy and completes it on the device.

    Args:
        x: ``(num_nodes, F)`` contiguous feature rows on the host, or a source of them.
        kept_batches: rows in the ring as a multiple of the first batch's rows that are not hot. If 0, there
            is no ring, and each batch brings all rows that are not hot.
        hot: rows that the device always has. If None, there are none.
    """

    def __init__(
        self, x: Tensor | FeatureSource, *, kept_batches: int = KEPT_BATCHES, hot: DeviceCache | None = None
    ) -> None:
        self._x = x.detach() if isinstance(x, Tensor) else x
        self._kept_batches, self._hot = kept_batches, hot
        self._link = None if isinstance(x, Tensor) else link_of(x)
        self._claimed = threading.Condition()
        self._claims: deque[Key] = deque()
        self._looking_up = threading.Lock()
        self._directory: Directory | None = None
        self._is_on = True
        # Written by the copying thread only.
        self._generation = 0
        self._next = 0  # position that the first new row of the next batch must have
        self._ring: Tensor | None = None

    @property
    def capacity(self) -> int:
        """Number of rows that the ring can hold; 0 before the first batch."""
        return 0 if self._directory is None else self._directory.capacity

    @property
    def ring_bytes(self) -> int:
        """Bytes of device memory of the ring."""
        return self.capacity * self._x.shape[1] * self._x.dtype.itemsize

    def claim(self, epoch: int, step: int) -> None:
        """Announce the preparation of a step, whose copy follows those of the steps claimed before."""
        with self._claimed:
            self._claims.append((epoch, step))

    @contextmanager
    def preparing(self, epoch: int, step: int) -> Iterator[None]:
        """Guard the preparation of a claimed step, so that others do not wait for it if it fails."""
        try:
            yield
        finally:
            self._end_turn((epoch, step))

    def look_up(self, epoch: int, step: int, n_id: Tensor) -> Found | None:
        """Look up a batch; with a ring, waits for the steps claimed before.

        Returns None if all rows must be copied: none are hot, and the step was not claimed, the batch is
        larger than the ring, or there was no memory for it.
        """
        hot = self._hot
        if hot is None:
            return self._in_ring((epoch, step), n_id)
        cold, slots = hot.split(n_id)
        hot.count(slots, len(cold))
        found = self._in_ring((epoch, step), n_id[cold])
        if found is None:
            return Found(missing=cold, slots=slots, first=APART, generation=0)
        slots[cold] = found.slots + hot.num_rows
        return dataclasses.replace(found, missing=cold[found.missing], slots=slots)

    def _in_ring(self, key: Key, n_id: Tensor) -> Found | None:
        """Find rows in the ring, and append those that are missing; None if they stay out of it."""
        if not self._kept_batches:
            return None
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
        kept = len(slots) - len(missing)
        return Found(missing=missing, slots=slots, first=first, generation=generation, ring_rows=kept)

    def part_of(self, found: Found, n_id: Tensor) -> RowPart:
        """Gather the missing rows of a batch that was looked up."""
        ids, x = n_id[found.missing], self._x
        rows = gather_rows(x, ids) if isinstance(x, Tensor) else x.gather(ids)
        return RowPart(
            rows=rows,
            slots=found.slots,
            first=found.first,
            generation=found.generation,
            ring_rows=found.ring_rows,
        )

    def admit(self, batch: MiniBatch) -> None:
        """Check a batch before its copy; if the ring will not hold the rows left out, copy it as a whole."""
        part = batch.row_part
        if part is None or part.first == APART:
            return
        if part.generation == self._generation and part.first == self._next:
            return
        batch.send_whole()
        if part.generation == self._generation:
            self._start_anew()

    def complete(self, moved: MiniBatch) -> None:
        """Append a batch's rows to the ring on the device, and assemble all its features there.

        Runs on the current stream. If device memory runs out, nothing has changed.

        Raises:
            ResourceError: the device has no memory for the hot rows.
        """
        part = moved.row_part
        if part is None:
            return
        owner = self._hot
        hot = None if owner is None else owner.table_on(part.rows.device)
        if part.first == APART and owner is not None and hot is not None:
            moved.x = owner.joined(hot, part.rows, part.slots)
            return
        ring = self._ring_on(part.rows)
        if ring is None:
            moved.send_whole()
            return
        # Memory may run out here, before the ring changes. A retry writes the same rows to the same places.
        x = ring.new_empty(part.slots.numel() if hot is None else 0, ring.shape[1])
        begin, count = part.first % len(ring), len(part.rows)
        straight = min(count, len(ring) - begin)
        ring[begin : begin + straight].copy_(part.rows[:straight])
        ring[: count - straight].copy_(part.rows[straight:])
        if owner is None or hot is None:
            torch.index_select(ring, 0, part.slots, out=x)
        else:
            x = owner.joined(hot, ring, part.slots)
        self._next = part.first + count
        moved.x = x
        if self._link is not None:
            self._link.add(TierCounts(ring_rows=part.ring_rows))

    def _end_turn(self, key: Key) -> None:
        with self._claimed:
            if key in self._claims:
                self._claims.remove(key)
                self._claimed.notify_all()

    def _make_directory(self, num_rows: int) -> Directory:
        num_nodes = self._x.shape[0]
        return Directory(num_nodes, max(min(self._kept_batches * num_rows, num_nodes + num_rows), 1))

    def _start_anew(self) -> None:
        """Restart the ring when rows that were looked up never came; batches already prepared go whole."""
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
    return rows.new_empty(capacity, rows.shape[1])
