"""TieredFeatures: a graph's feature rows in tiers, of which memory holds one and a file the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphbraid.arguments import MOST_BYTES, as_count, as_size, check_choice
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.features.caches import POLICIES, RowCache, checked_score
from graphbraid.features.disk import DiskOptions, DiskRows
from graphbraid.features.tier_report import Served, TierReport, TierRow, reads_per_epoch
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.signatures import typed

LOOKAHEAD = 16
"""Batches that are announced before the first of them is gathered."""
_SLOT_BYTES = 32  # noted of each row in memory: csrc/row_cache.cpp, and what it was filled with
_FEWEST_REQUESTS = 4  # under way at a time, however small the budget


class TierCounts(NamedTuple):
    """What was read of the tiers since they were made."""

    host_rows: int
    """Reads of rows that lay in memory."""
    disk_rows: int
    """Reads of rows that came from the file."""
    filled_rows: int
    """Rows read to fill memory beforehand."""
    disk_requests: int
    disk_bytes: int
    """Whole blocks, for all of these."""

    @property
    def host_share(self) -> float:
        """Of the reads that memory served; 0 before the first."""
        return self.host_rows / max(self.host_rows + self.disk_rows, 1)


class TieredFeatures:
    """The dense features of a graph in a store: some rows in memory, the others read from the file.

    It is indexed as one tensor, ``store[ids]``, and gives the file's rows to the bit, whatever lies where.
    :class:`graphbraid.loader.NeighborLoader` and :class:`graphbraid.Trainer` take it in place of ``graph.x``.
    Made by :meth:`build`. Threads may share it.
    """

    def __init__(
        self,
        disk: DiskRows,
        cache: RowCache,
        *,
        score: Tensor | None,
        lookahead: int,
        epoch_reads: float | None = None,
    ) -> None:
        self.disk, self.cache = disk, cache
        self._score, self._lookahead, self._epoch_reads = score, lookahead, epoch_reads

    @classmethod
    @typed
    def build(
        cls,
        graph: Graph,
        *,
        host: int | str,
        score: Any = None,
        policy: str = "belady",
        lookahead: int = LOOKAHEAD,
        disk: DiskOptions | None = None,
    ) -> TieredFeatures:
        """Tiers over a graph's features.

        Args:
            graph: its ``x`` is mapped from a store, as :func:`graphbraid.datasets.open_store` gives it.
            host: memory for rows and for what is noted about them, in bytes or as ``"4GiB"``; 0 reads all
                from the file, ``"all"`` and whatever is more than the features keep them in memory.
            score: ``(num_nodes,)`` numbers, higher where a row is read more often, or a record with them as
                ``values``: memory is filled with the highest. None: with the first batches' rows.
            policy: which rows stay: ``belady``, ``sieve`` or ``static`` (:data:`POLICIES`).
            lookahead: batches a loader announces before it gathers the first of them, for ``belady``.
            disk: how the file is read. None takes the defaults, and less at a time for a small ``host``.

        Raises:
            ConfigError: a size that cannot be meant, or that holds no row; ``static`` without a score.
            DataError: the features are not dense or not mapped from a store, or the score does not fit them.
            ResourceError: the memory is not free, or the file cannot be read.
        """
        check_choice(policy, "policy", POLICIES)
        lookahead = as_count(lookahead, "lookahead", most=1 << 16)
        x = graph.x
        if not isinstance(x, Tensor):
            raise DataError(
                "tiers hold dense features; this graph has "
                + ("none" if x is None else "sparse ones, which lie in memory")
            )
        rows = DiskRows.behind(x, options=disk or options_for(host))
        values = None if score is None else checked_score(values_of(score), len(x))
        num_rows = _rows_in(host, rows, ranked=values is not None)
        if num_rows == len(x):
            policy = "static"  # nothing ever goes
        elif policy == "static" and num_rows and values is None:
            raise ConfigError(
                "policy='static' keeps the rows of the highest score; give score=, or another policy"
            )
        cache = RowCache(rows, num_rows, policy=policy, score=values)
        cache.fill(_first_rows(values, num_rows, len(x)))
        return cls(
            rows,
            cache,
            score=values,
            lookahead=lookahead if policy == "belady" and num_rows else 0,
            epoch_reads=None if values is None else reads_per_epoch(score, values),
        )

    @property
    def shape(self) -> torch.Size:
        """``(num_nodes, F)``."""
        return self.disk.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.disk.dtype

    @property
    def lookahead(self) -> int:
        """Batches that are worth announcing before they are gathered."""
        return self._lookahead

    @property
    def host_bytes(self) -> int:
        """Memory that the host's tier takes at most: rows, and what is noted about them."""
        return self.cache.nbytes + self.cache.overhead_bytes

    @property
    def counts(self) -> TierCounts:
        """What was read since the tiers were made."""
        cache, disk = self.cache.counts, self.disk.counts
        return TierCounts(cache.hits, cache.misses, cache.filled, disk.requests, disk.bytes)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, ids: int | slice | Tensor | Sequence[int]) -> Tensor:
        """Rows as a tensor of all of them would give: by an id, a slice, ids or a mask."""
        if isinstance(ids, int):
            return self.gather(torch.tensor([range(len(self))[ids]]))[0]
        if isinstance(ids, slice):
            return self.gather(torch.arange(len(self))[ids])
        wanted = torch.as_tensor(ids)
        if wanted.dtype == torch.bool:
            if wanted.shape != (len(self),):
                raise DataError(f"a mask must have shape ({len(self)},); got {tuple(wanted.shape)}")
            return self.gather(wanted.nonzero().flatten())
        wanted = wanted.to(torch.int64)
        return self.gather(torch.where(wanted < 0, wanted + len(self), wanted))

    def announce(self, ids: Tensor) -> int:
        """As :meth:`RowCache.announce`."""
        return self.cache.announce(ids)

    def gather(self, ids: Tensor, out: Tensor | None = None, *, batch: int = -1) -> Tensor:
        """As :meth:`RowCache.gather`."""
        return self.cache.gather(ids, out, batch=batch)

    def forget(self) -> None:
        """As :meth:`RowCache.forget`."""
        self.cache.forget()

    def expected_share(self, num_rows: int) -> float | None:
        """Share of the reads that the ``num_rows`` highest rows have by the score; None without one."""
        return None if self._score is None else Served(self._score).share(num_rows)

    def report(self) -> TierReport:
        """The tiers as a record: rows, bytes, shares of the reads, and what more memory would buy."""
        counts, served = self.counts, None if self._score is None else Served(self._score)
        row_bytes = self.disk.row_bytes
        return TierReport(
            num_rows=len(self),
            row_bytes=row_bytes,
            dtype=str(self.dtype),
            tiers=(self._host_row(counts, served), self._disk_row(counts, served)),
            reads=counts.host_rows + counts.disk_rows,
            disk_bytes=counts.disk_bytes,
            disk_requests=counts.disk_requests,
            curve=() if served is None else served.curve(row_bytes, self._epoch_reads),
        )

    def explain(self) -> str:
        """The :meth:`report` in words: a row for each tier, and the curve of what memory would buy."""
        return str(self.report())

    def _host_row(self, counts: TierCounts, served: Served | None) -> TierRow:
        ahead = f", {self._lookahead} batches ahead" if self._lookahead else ""
        share = None if served is None else served.share(self.cache.num_rows)
        return TierRow(
            name="host",
            rows=self.cache.num_rows,
            nbytes=self.cache.nbytes,
            notes_bytes=self.cache.overhead_bytes,
            expected_share=share,
            measured_share=_of_reads(counts.host_rows, counts),
            epoch_bytes=self._epoch_bytes(share),
            detail=f"policy {self.cache.policy}{ahead}",
        )

    def _disk_row(self, counts: TierCounts, served: Served | None) -> TierRow:
        rows = len(self) - self.cache.num_rows
        share = None if served is None else 1 - served.share(self.cache.num_rows)
        return TierRow(
            name="disk",
            rows=rows,
            nbytes=rows * self.disk.row_bytes,
            expected_share=share,
            measured_share=_of_reads(counts.disk_rows, counts),
            epoch_bytes=self._epoch_bytes(share),
            detail=self.disk.how(),
        )

    def _epoch_bytes(self, share: float | None) -> float | None:
        if share is None or self._epoch_reads is None:
            return None
        return share * self._epoch_reads * self.disk.row_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self.disk, self.cache, self._score, self._lookahead, self._epoch_reads)

    def __repr__(self) -> str:
        return f"TieredFeatures({tuple(self.shape)}, {self.dtype}, {self.cache.num_rows:,} rows in memory)"


def _remade(
    disk: DiskRows, cache: RowCache, score: Tensor | None, lookahead: int, epoch_reads: float | None
) -> TieredFeatures:
    return TieredFeatures(disk, cache, score=score, lookahead=lookahead, epoch_reads=epoch_reads)


def _of_reads(rows: int, counts: TierCounts) -> float | None:
    reads = counts.host_rows + counts.disk_rows
    return rows / reads if reads else None


def options_for(host: int | str) -> DiskOptions:
    """How to read for a budget: requests under way take an eighth of it at most, where that is some."""
    options = DiskOptions()
    size = MOST_BYTES if host == "all" else as_size(host, "host")
    fit = max(size // 8 // options.longest_bytes, _FEWEST_REQUESTS) if size else options.depth
    return DiskOptions(depth=min(fit, options.depth))


def row_bytes_kept(rows: DiskRows, *, ranked: bool) -> tuple[int, int]:
    """Bytes noted of all rows where some are kept, and bytes that each of these takes."""
    return rows.buffer_bytes + rows.shape[0] * (9 if ranked else 8), rows.row_bytes + _SLOT_BYTES


def _rows_in(host: int | str, rows: DiskRows, *, ranked: bool) -> int:
    """How many rows a budget holds, with what is noted about them.

    Raises:
        ConfigError: it holds none, and is not 0.
        ResourceError: it is more than the free memory.
    """
    num_rows = rows.shape[0]
    notes, kept = row_bytes_kept(rows, ranked=ranked)
    whole = notes + num_rows * kept
    budget = whole if host == "all" else min(as_size(host, "host"), whole)
    if budget == 0:
        return 0
    free = free_memory_bytes()
    if free is not None and budget > free:
        raise ResourceError(
            f"host={host!r} takes {format_bytes(budget)} of memory; {format_bytes(free)} are free. Give "
            "less: the other rows are read from the file"
        )
    held = min((budget - notes) // kept, num_rows)
    if held < 1:
        raise ConfigError(
            f"host={host!r} holds no row: what is noted of all {num_rows:,} rows takes "
            f"{format_bytes(notes)}, a row {format_bytes(kept)}. Give more, or 0 to "
            "read all from the file"
        )
    return held


def values_of(score: Any) -> Any:
    """The numbers of a score, which may be a record of them."""
    if isinstance(score, Tensor):  # which has a method of that name
        return score
    return getattr(score, "values", score)


def _first_rows(score: Tensor | None, num_rows: int, all_rows: int) -> Tensor:
    """Those that memory is filled with."""
    if num_rows == all_rows:
        return torch.arange(all_rows)
    if score is None:
        return torch.empty(0, dtype=torch.int64)
    return score.argsort(descending=True, stable=True)[:num_rows]
