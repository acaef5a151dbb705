"""TieredFeatures: a graph's feature rows in tiers: devices, the host's memory, and a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import as_budget, as_count, check_choice, shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.features import budgets
from graphbraid.features.rows.caches import POLICIES, MemoryRows, RowCache, checked_score
from graphbraid.features.rows.disk import DiskOptions, DiskRows, RowReader
from graphbraid.features.scores.score import Score
from graphbraid.features.scores.score import score as score_of
from graphbraid.features.scores.walks import out_degree
from graphbraid.features.tiers.tier_report import ReadShareCurve, SeenTiers, TierReport, reads_per_epoch
from graphbraid.graph import Graph, ScaledFeatures
from graphbraid.graph.identity import check_made_for, features_mark
from graphbraid.graph.scaled_features import kept_row_bytes, scale_of, stored_rows
from graphbraid.sampling.config import SamplerConfig, SeedSchedule
from graphbraid.sampling.rows.by_id import SECTOR_BYTES, TierCounts, TransferCounter
from graphbraid.sampling.rows.device_cache import DeviceCache
from graphbraid.signatures import typed

LOOKAHEAD = 16
"""Number of batches that are announced before the first of them is gathered."""


class TieredFeatures:
    """The dense features of a graph: rows on devices, rows in memory, and rows read from a store's file.

    It is indexed like one tensor, ``store[ids]``, and returns the file's rows to the bit from any tier.
    :class:`graphbraid.loader.NeighborLoader` and :class:`graphbraid.Trainer` take it in place of ``graph.x``.
    :meth:`build` makes it. Threads may share it.
    """

    def __init__(
        self,
        disk: DiskRows | None,
        cache: RowCache | MemoryRows,
        *,
        score: Tensor | None,
        lookahead: int,
        epoch_reads: float | None = None,
        hot: DeviceCache | None = None,
        filled_by: str = "",
        mark: str = "",
    ) -> None:
        self.disk, self.cache, self.hot, self.filled_by = disk, cache, hot, filled_by
        self.mark = mark
        """:func:`.graph.identity.features_mark` of the features; empty if not known."""
        self._lookahead, self.epoch_reads, self.score = lookahead, epoch_reads, score
        self.link = TransferCounter()
        """Counter of the transfers to devices with batches."""
        self._last_epoch: TierCounts | None = None

    @classmethod
    @typed
    def build(
        cls,
        graph: Graph,
        *,
        host: int | str | None = None,
        hot: int | str = 0,
        score: Any = None,
        sampler: SamplerConfig | None = None,
        schedule: SeedSchedule | None = None,
        epochs: int | range = 1,
        run_seconds: float | None = None,
        policy: str = "belady",
        lookahead: int = LOOKAHEAD,
        disk: DiskOptions | None = None,
    ) -> TieredFeatures:
        """Make tiers of a graph's features.

        Args:
            graph: the graph. With ``host``, its ``x`` must be mapped from a store, as by
                :func:`graphbraid.datasets.open_store`.
            host: memory for rows and for their bookkeeping, in bytes or as ``"4GiB"``; 0 reads all from the
                file. ``"all"``, or more than the features need, keeps all in memory. None: features are read
                from the graph.
            hot: memory of each device that gets batches, given as ``host`` is. The highest rows stay there
                and are never copied again. 0: none.
            score: ``(num_nodes,)`` numbers, higher where a row is read more often, a record with them as
                ``values``, or the name of a score (:data:`graphbraid.features.KINDS`): tiers are filled with
                the highest, devices first. None: devices by out-degree, memory with the first batches' rows.
                ``auto`` looks as far ahead as ``run_seconds`` allows. If that is no epoch, it takes the best
                of a trial; without a sampler, a score of the graph. :meth:`explain` names it.
            sampler: options of the sampler, for named scores that need one.
            schedule: seeds of the steps, for the same scores.
            epochs: epochs in the run. ``lookahead`` counts these, and ``auto`` at most these.
            run_seconds: expected time of the run, for ``auto``. If None, it does not look ahead.
            policy: policy of the rows in memory: ``belady``, ``sieve`` or ``static`` (:data:`POLICIES`).
            lookahead: number of batches that a loader announces before it gathers the first, for ``belady``.
            disk: options of reads from the file. None takes the defaults, with fewer requests for a small
                ``host``.

        Raises:
            ConfigError: a size is invalid or holds no row, or no size is given; ``static`` is given without a
                score; a named score is unknown or needs a sampler; an option of named scores is given without
                one, or an option of the file without ``host``.
            DataError: the features are not dense or not mapped from a store, or have no columns, or the score
                does not fit them or is of another graph.
            ResourceError: the memory is not free, or the file cannot be read.
        """
        check_choice(policy, "policy", POLICIES)
        lookahead = as_count(lookahead, "lookahead", most=1 << 16)
        if not isinstance(score, str):
            of_names = {"sampler": sampler, "schedule": schedule, "run_seconds": run_seconds}
            why = "is for scores by name, but score= has no name; leave it out, or give score='auto'"
            _refuse({name: value is not None for name, value in of_names.items()}, why)
        x = graph.x
        stored = stored_rows(x)
        if not isinstance(x, Tensor | ScaledFeatures) or stored is None:
            raise DataError(
                "tiers hold dense features; this graph has "
                + ("none" if x is None else "sparse ones, which lie in memory")
            )
        if not stored[:1].numel() and len(stored):
            raise DataError(
                "tiers hold feature rows, and those of this graph have no columns; leave them out"
            )
        has_hot = as_budget(hot, "hot") > 0
        if host is None and not has_hot:
            raise ConfigError(
                f"tiers need host= or hot=, memory for rows on the host or on a device; got host=None and "
                f"hot={hot!r}"
            )
        if host is None:
            why = "needs host=: without host memory nothing is cached. Leave it out, or give host="
            _refuse({"policy": policy != "belady", "disk": disk is not None}, why)
        if isinstance(score, str):
            score = _named_score(
                graph, score, sampler=sampler, schedule=schedule, epochs=epochs, run_seconds=run_seconds
            )
        check_made_for(score, graph.csc, "scores were")
        values = None if score is None else checked_score(budgets.values_of(score), len(stored))
        hot_ids = torch.empty(0, dtype=torch.int64)
        if has_hot:
            order = budgets.order_of(out_degree(graph.csc) if values is None else values)
            hot_ids = budgets.hot_ids_in(hot, order, kept_row_bytes(x))
        rows: RowCache | MemoryRows = MemoryRows(x)
        file: DiskRows | None = None
        if host is not None:
            file = DiskRows.behind(stored, options=disk or budgets.options_for(host))
            rows = budgets.cache_in(host, file, policy, values, hot_ids, scale=scale_of(x))
        looks_ahead = host is not None and rows.policy == "belady" and rows.num_rows
        return cls(
            file,
            rows,
            score=values,
            lookahead=lookahead if looks_ahead else 0,
            epoch_reads=None if values is None else reads_per_epoch(score, values),
            hot=DeviceCache(hot_ids, len(stored), rows.uncounted, scale_of(x)) if hot_ids.numel() else None,
            filled_by=budgets.described(score),
            mark=features_mark(x),
        )

    @property
    def shape(self) -> torch.Size:
        """``(num_nodes, F)``."""
        return self._whole.shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the returned rows."""
        return self.cache.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is kept, without the scale of an int8 row, which is always in memory."""
        return (
            kept_row_bytes(self.cache.x) if isinstance(self.cache, MemoryRows) else self.cache.disk.row_bytes
        )

    @property
    def _whole(self) -> RowReader | MemoryRows:
        return self.cache if isinstance(self.cache, MemoryRows) else self.cache.disk

    @property
    def scale(self) -> Tensor | None:
        """Scale of each int8 row; None for other dtypes."""
        return self.cache.scale if isinstance(self.cache, RowCache) else scale_of(self.cache.x)

    @property
    def in_memory(self) -> Tensor | ScaledFeatures | None:
        """The graph's features in memory; None if a file is read."""
        return self.cache.x if isinstance(self.cache, MemoryRows) else None

    @property
    def lookahead(self) -> int:
        """Number of batches that should be announced before they are gathered."""
        return self._lookahead

    @property
    def host_bytes(self) -> int:
        """Most memory of the host's tier: rows and their bookkeeping."""
        return self.cache.nbytes + self.cache.overhead_bytes

    @property
    def counts(self) -> TierCounts:
        """Counts of reads since the tiers were made."""
        disk = TierCounts() if self.disk is None else self.disk.counts
        found = self.cache.counts._replace(disk_requests=disk.disk_requests, disk_bytes=disk.disk_bytes)
        if self.hot is not None:
            hot = self.hot.read.now()
            found = found.plus(
                TierCounts(
                    host_rows=hot.direct,
                    hot_rows=hot.own,
                    peer_rows=hot.peers,
                    link_rows=hot.direct,
                    link_row_bytes=hot.direct * self.row_bytes,
                    link_sector_bytes=hot.sectors * SECTOR_BYTES,
                )
            )
        return found.plus(self.link.counts)

    def note_epoch(self, before: TierCounts) -> None:
        """Record the reads since ``before``, earlier :attr:`counts`, as an epoch of training, for reports.

        A :class:`graphbraid.Trainer` calls it at the end of each epoch; your own loop may, too.
        """
        self._last_epoch = self.counts.since(before)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, ids: int | slice | Tensor | Sequence[int]) -> Tensor:
        """Return the rows of an id, a slice, ids or a mask, as a tensor would.

        Raises:
            DataError: ``ids`` is something else, a mask of another length, or contains an id that is no row.
        """
        if isinstance(ids, int | np.integer) and not isinstance(ids, bool):
            return self.gather(torch.tensor([range(len(self))[ids]]))[0]
        if isinstance(ids, slice):
            return self.gather(torch.arange(len(self))[ids])
        wanted = torch.as_tensor(ids) if isinstance(ids, Tensor | np.ndarray | list) else None
        if isinstance(ids, list) and not ids:
            wanted = torch.empty(0, dtype=torch.int64)
        if wanted is None or wanted.dtype not in (torch.int64, torch.int32, torch.bool):
            raise DataError(f"rows are chosen by an id, a slice, int64 ids or a mask; got {shown(ids)}")
        if wanted.ndim == 0 and wanted.dtype != torch.bool:
            return self[int(wanted)]
        if wanted.dtype == torch.bool:
            if wanted.shape != (len(self),):
                raise DataError(f"a mask must have shape ({len(self)},); got {tuple(wanted.shape)}")
            return self.gather(wanted.nonzero().flatten())
        wanted = wanted.to(torch.int64)
        return self.gather(torch.where(wanted < 0, wanted + len(self), wanted))

    def announce(self, ids: Tensor) -> int:
        """Announce a batch; see :meth:`RowCache.announce`."""
        return self.cache.announce(ids)

    def gather(self, ids: Tensor, out: Tensor | None = None, *, batch: int = -1) -> Tensor:
        """Gather rows; see :meth:`RowCache.gather`."""
        return self.cache.gather(ids, out, batch=batch)

    def forget(self) -> None:
        """Forget announced batches; see :meth:`RowCache.forget`."""
        self.cache.forget()

    def take_hot(self, hot: DeviceCache, score: Tensor) -> None:
        """Replace the hot rows by others, chosen by another ``score``, such as that of all ranks."""
        self.hot, self.score = hot, score

    def expected_share(self, num_rows: int) -> float | None:
        """Share of the reads that go to the ``num_rows`` highest rows by the score; None without one."""
        return None if self.score is None else ReadShareCurve(self.score).share(num_rows)

    def report(self) -> TierReport:
        """Return the tiers as a record: rows, bytes, shares of the reads, and the gain by more memory."""
        return SeenTiers(self, self._last_epoch).report()

    def explain(self) -> str:
        """Return the :meth:`report` as text: a row for each tier, and the curve of gains by memory."""
        return str(self.report())

    def __reduce__(self) -> tuple[Any, ...]:
        named = {
            "score": self.score,
            "lookahead": self._lookahead,
            "epoch_reads": self.epoch_reads,
            "hot": self.hot,
            "filled_by": self.filled_by,
            "mark": self.mark,
        }
        return _remade, (self.disk, self.cache, named)

    def __repr__(self) -> str:
        hot = "" if self.hot is None else f", {self.hot.num_rows:,} on devices"
        rows = f"{self.cache.num_rows:,} rows in memory{hot}"
        return f"TieredFeatures({tuple(self.shape)}, {self.dtype}, {rows})"


def _named_score(graph: Graph, name: str, **options: Any) -> Score:
    """Return a score by its name; without a sampler, ``auto`` is the best score of the graph alone."""
    if name != "auto" or options["sampler"] is not None:
        return score_of(graph, name, **options)
    kind = "weighted_reverse_pagerank" if "train" in graph.splits else "degree"
    reason = "no sampler was given, so it is the best that the graph alone gives"
    return dataclasses.replace(score_of(graph, kind), reason=reason)


def _refuse(given: Mapping[str, bool], why: str) -> None:
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(f"{name}= {why}")


def _remade(disk: DiskRows | None, cache: RowCache | MemoryRows, named: dict[str, Any]) -> TieredFeatures:
    return TieredFeatures(disk, cache, **named)
