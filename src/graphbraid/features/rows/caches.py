"""Rows in memory: MemoryRows keeps all; RowCache some, chosen by a policy, in front of a file or reader."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import MOST_BYTES, as_count, check_choice, check_tensor, shown
from graphbraid.errors import DataError
from graphbraid.features.rows import reference
from graphbraid.features.rows.disk import RowReader, as_bytes
from graphbraid.graph.scaled_features import ScaledFeatures, stored_rows, widened
from graphbraid.native import plain_errors
from graphbraid.ops.gather import gather_features, gather_rows
from graphbraid.sampling.rows.by_id import TierCounts
from graphbraid.signatures import typed


@typed
class MemoryRows:
    """All ``(num_rows, width)`` rows of a CPU tensor, with the interface of :class:`.RowCache`.

    Threads may share it; int8 rows are returned as float32. DataError: ``x`` is not such a tensor.
    """

    policy = "static"

    def __init__(self, x: Tensor | ScaledFeatures) -> None:
        rows = stored_rows(x)
        assert rows is not None
        if rows.ndim != 2 or rows.device.type != "cpu":
            raise DataError(
                f"features in memory must be 2-d on the CPU; got shape {tuple(rows.shape)} on {rows.device}"
            )
        self.x = x if isinstance(x, ScaledFeatures) else x.detach()
        self.shape: torch.Size = rows.shape
        self.dtype, self.nbytes = x.dtype, x.nbytes
        self.num_rows, self.overhead_bytes = len(rows), 0
        self._stored = rows.detach()
        self._reads, self._lock = 0, threading.Lock()

    @property
    def counts(self) -> TierCounts:
        """Reads so far; memory served all of them."""
        return TierCounts(host_rows=self._reads)

    def announce(self, ids: Tensor) -> int:
        """Do nothing, since nothing is read ahead; return -1."""
        return -1

    def forget(self) -> None:
        """Do nothing: nothing was announced."""

    def gather(self, ids: Tensor, out: Tensor | None = None, *, batch: int = -1) -> Tensor:
        """``out[i] = x[ids[i]]`` for int64 ``ids``; ``out`` None makes one; DataError if an id is no row."""
        rows = gather_features(self.x, ids)
        with self._lock:
            self._reads += len(ids)
        return rows if out is None else out.copy_(rows)

    def uncounted(self, ids: Tensor) -> Tensor:
        """Rows of ids as they are kept; not counted as reads."""
        return gather_rows(self._stored, ids)

    def __reduce__(self) -> tuple[type[MemoryRows], tuple[Tensor | ScaledFeatures]]:
        return MemoryRows, (self.x,)

    def __repr__(self) -> str:
        return f"MemoryRows({self.num_rows:,} rows)"


POLICIES = ("belady", "sieve", "static")
"""``belady`` knows the reads of announced batches and evicts the row whose next read is last. ``sieve``
(SIEVE) evicts the oldest row that was not read lately. ``static`` keeps the rows that filled the cache."""

_MOST_ROWS = (1 << 31) - 1
_RANKS = 256


@typed
class RowCache:
    """A cache of at most ``num_rows`` rows of a file.

    It always returns the file's rows, whichever it keeps. Threads may share it; their calls take turns, so
    that no row is read twice at a time.

    Args:
        disk: reader of the rows that are not kept.
        num_rows: largest number of rows kept; 0 keeps none.
        policy: one of :data:`POLICIES`.
        score: ``(rows of the file,)`` numbers, higher for rows that are read more often. Of rows that no
            announced batch reads, ``belady`` evicts the lowest first. None: the least recently read first.
        scale: ``(rows of the file,)`` float32 scale of each row, if the file's rows are int8. Memory keeps
            all scales, and rows are returned as float32. None: rows are returned as the file has them.

    Raises:
        ConfigError: there is no such policy, or ``num_rows`` is more than the file has.
        DataError: the score does not have a finite number for each row.
    """

    def __init__(
        self,
        disk: RowReader,
        num_rows: int,
        *,
        policy: str = "belady",
        score: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        check_choice(policy, "policy", POLICIES)
        self.disk, self.policy, self.scale = disk, policy, scale
        self.dtype = disk.dtype if scale is None else scale.dtype
        self.num_rows = as_count(num_rows, "num_rows", most=min(disk.shape[0], _MOST_ROWS))
        self._score = score
        self._ranks = None if score is None or policy != "belady" else ranks_of(score, disk.shape[0])
        self._filled: list[Tensor] = []
        self._process, self._cache = os.getpid(), self._make()

    @property
    def nbytes(self) -> int:
        """Memory of the rows it may keep, without scales."""
        return self.num_rows * self.disk.row_bytes

    @property
    def overhead_bytes(self) -> int:
        """Memory of its bookkeeping: places of rows, the policy's state, scales, reads under way."""
        return int(self._own().overhead_bytes()) + sum(
            kept.nbytes for kept in (self._ranks, self.scale, *self._filled) if kept is not None
        )

    @property
    def counts(self) -> TierCounts:
        """Counts since it was made, in this process."""
        reads, hits, filled, _ = self._own().counts()
        return TierCounts(host_rows=hits, disk_rows=reads - hits, filled_rows=filled)

    @property
    def num_kept(self) -> int:
        """Number of rows that it holds now."""
        return int(self._own().counts()[3])

    def fill(self, ids: Tensor) -> None:
        """Read rows into free room: the first of ``ids`` that fit.

        Args:
            ids: ``(num_ids,)`` int64 rows.

        Raises:
            DataError: as :meth:`DiskRows.gather`.
            ResourceError: as :meth:`DiskRows.gather`.
        """
        room = self.num_rows - self.num_kept
        chosen = _checked(ids)[:room].sort().values  # in the order of the file
        with plain_errors():
            self._own().fill(chosen)
        self._filled.append(chosen)

    def announce(self, ids: Tensor) -> int:
        """Announce the rows that a coming batch will read. Batches are announced in their order.

        Returns:
            The number that :meth:`gather` takes for the batch; -1 if the policy does not look ahead.

        Raises:
            DataError: an id is no row.
        """
        with plain_errors():
            return int(self._own().announce(_checked(ids)))

    def forget(self) -> None:
        """Forget announced batches that will not be gathered."""
        self._own().forget()

    def gather(self, ids: Tensor, out: Tensor | None = None, *, batch: int = -1) -> Tensor:
        """``out[i] = rows[ids[i]]``, from memory where kept, else from the file; int8 rows times their scale.

        Args:
            ids: ``(num_ids,)`` int64 rows; for an announced batch, the announced ones.
            out: ``(num_ids, ...)`` contiguous; None makes one.
            batch: number that :meth:`announce` returned; -1 for a batch that was not announced.

        Raises:
            ConfigError: ``batch`` is no such number.
            DataError: as :meth:`DiskRows.gather`.
            ResourceError: as :meth:`DiskRows.gather`.
        """
        batch = as_count(batch, "batch", least=-1, most=MOST_BYTES)
        rows = self.disk.room_for(ids, out if self.scale is None else None)
        is_as_wanted = isinstance(out, Tensor) and (out.shape, out.dtype) == (rows.shape, self.dtype)
        if self.scale is not None and out is not None and not is_as_wanted:
            raise DataError(f"out must be {self.dtype} of {tuple(rows.shape)}; got {shown(out)}")
        if ids.numel():
            with plain_errors():
                self._own().gather(ids.contiguous(), as_bytes(rows), batch)
        return rows if self.scale is None else widened(rows, self.scale[ids], out)

    def decide(self, ids: Tensor, *, batch: int = -1) -> tuple[Tensor, Tensor]:
        """Decide which rows are kept, for a caller that keeps them by slot; moves no rows.

        The caller reads all slots of a call before it fills any, in the order of the calls. For ascending
        ids, :meth:`gather` decides the same.

        Args:
            ids: ``(num_ids,)`` int64 rows as for :meth:`gather`.
            batch: number that :meth:`announce` returned; -1 for a batch that was not announced.

        Returns:
            ``(num_ids,)`` int32 slots below ``num_rows`` that hold the rows, -1 if a row must be read; and
            ``(num_ids,)`` int32 slots for the rows read, -1 if one is not kept.

        Raises:
            ConfigError: ``batch`` is no such number.
            DataError: an id is no row.
        """
        slots, fills = torch.empty(2, ids.numel(), dtype=torch.int32)
        batch = as_count(batch, "batch", least=-1, most=MOST_BYTES)
        with plain_errors():
            self._own().decide(_checked(ids), batch, slots, fills)
        return slots, fills

    def uncounted(self, ids: Tensor) -> Tensor:
        """Rows of ids as the file has them. Not counted as reads; the kept rows stay the same."""
        return self.disk.gather(ids)

    def _own(self) -> Any:
        """The cache of this process; a forked process reads the initial rows again."""
        if self._process != os.getpid():
            self._process, self._cache = os.getpid(), self._make()
            for ids in self._filled:
                self._cache.fill(ids)
        return self._cache

    def _make(self) -> Any:
        kernels = native.kernels() or reference
        return kernels.RowCache(
            disk=self.disk.native, capacity=self.num_rows, policy=self.policy, ranks=self._ranks
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self.disk, self.num_rows, self.policy, self._score, self.scale, self._filled)

    def __repr__(self) -> str:
        return f"RowCache({self.num_rows:,} of {self.disk.shape[0]:,} rows, policy={self.policy!r})"


def _remade(  # noqa: PLR0917  (as pickle calls it)
    disk: RowReader,
    num_rows: int,
    policy: str,
    score: Tensor | None,
    scale: Tensor | None,
    filled: list[Tensor],
) -> RowCache:
    cache = RowCache(disk, num_rows, policy=policy, score=score, scale=scale)
    for ids in filled:
        cache.fill(ids)
    return cache


def checked_score(score: Tensor, num_rows: int) -> Tensor:
    """Return a score; DataError unless it has a finite number for each row."""
    check_tensor(score, "score")
    if score.is_complex():
        raise DataError(f"score must be real numbers; got {shown(score)}")
    if score.shape != (num_rows,):
        raise DataError(f"score must have one number for each of the {num_rows} rows; got {shown(score)}")
    if not bool(torch.isfinite(score).all()):
        at = int((~torch.isfinite(score)).nonzero()[0])
        raise DataError(f"score must be finite; score[{at}] is {float(score[at])}")
    return score


def ranks_of(score: Tensor, num_rows: int) -> Tensor:
    """``(num_rows,)`` uint8: classes of equally many rows; a higher class has higher scores."""
    order = checked_score(score, num_rows).argsort(stable=True)
    ranks = torch.empty(num_rows, dtype=torch.uint8)
    ranks[order] = (torch.arange(num_rows) * _RANKS // max(num_rows, 1)).to(torch.uint8)
    return ranks


def _checked(ids: Tensor) -> Tensor:
    check_tensor(ids, "ids", ndim=1)
    if ids.dtype != torch.int64 or ids.device.type != "cpu":
        raise DataError(f"ids must be int64 on the CPU; got {ids.dtype} on {ids.device}")
    return ids.contiguous()
