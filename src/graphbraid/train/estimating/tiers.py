"""What a run on mini-batches needs with its feature rows in tiers, and how long its epochs take then."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

import torch

from graphbraid.estimates.records import Need, Needs
from graphbraid.features import DiskRows, Score
from graphbraid.features.budgets.row_budgets import options_for
from graphbraid.features.budgets.sizing import list_bytes
from graphbraid.features.tiers.tier_report import SHARES, Served
from graphbraid.features.tiers.tiered_features import LOOKAHEAD
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import scale_of, stored_rows
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.device import DeviceRun
from graphbraid.train.estimating.memory.sampled import SampledNeeds, are_mapped
from graphbraid.train.estimating.records import TierEstimate
from graphbraid.train.estimating.seconds.epoch_seconds import EpochSeconds, Pace
from graphbraid.train.step.tiers import expected_list_reads

_SLOT_BYTES, _NOTES_BYTES = 32, 9
"""Noted of each row in memory, and of each row at all."""
_TRIED_ROWS, _TRIED_SECONDS = 8192, 1.0


class TieredRun(NamedTuple):
    """A graph's rows in tiers, as estimates ask for them."""

    graph: Graph
    reads: Score
    """Reads of each row in an epoch, by the score that the run's tiers are filled by."""
    served: Served
    epoch_reads: float
    """Rows that an epoch reads."""
    list_reads: float
    """Blocks of adjacency lists that an epoch reads where no list is held; 0 if they are in memory anyway."""
    num_batches: int
    """Batches in an epoch."""
    rows_per_second: float | None
    """Rows that come from the file at random; None where the disk is not described or no time asked for."""
    is_here: bool
    """Whether the run is for this machine."""
    buffer_bytes: int
    list_bytes: int
    """Bytes of the adjacency lists, which a budget holds first; 0 if they are in memory anyway."""
    device: DeviceRun | None = None
    """What is on the device; None without one. Memory holds the rows behind those that are hot there."""

    @property
    def whole_bytes(self) -> int:
        """Memory that holds everything."""
        return self.host_bytes(self.graph.num_nodes)

    def rows_in(self, host: int) -> int:
        """Return how many rows a budget holds, beside all lists."""
        num_rows, row_bytes = self.graph.num_nodes, self._row_bytes
        notes = self.buffer_bytes + num_rows * self._notes_bytes + self.list_bytes
        return max(0, min((host - notes) // (row_bytes + _SLOT_BYTES), num_rows))

    def host_bytes(self, rows: int) -> int:
        """Return the budget that holds so many rows, all lists and what is noted; 0 for no rows."""
        if rows == 0:
            return 0
        notes = self.buffer_bytes + self.graph.num_nodes * self._notes_bytes + self.list_bytes
        return rows * (self._row_bytes + _SLOT_BYTES) + notes

    def disk_reads(self, host: int, num_hot: int | None = None) -> float:
        """Return the reads that the disk is expected to serve in an epoch: rows, and blocks of lists.

        Args:
            host: the budget.
            num_hot: rows on the device. If None, those of ``device``.
        """
        rows = (1 - self._shares(host, num_hot)[1]) * self.epoch_reads
        return rows + self.list_reads if host == 0 else rows

    def _shares(self, host: int, num_hot: int | None = None) -> tuple[float, float]:
        """Shares of the reads: of the device's hot rows, and of these with the rows in memory."""
        if num_hot is None:
            num_hot = 0 if self.device is None else self.device.num_hot
        upto = min(num_hot + self.rows_in(host), self.graph.num_nodes)
        return self.served.share(num_hot), self.served.share(upto)

    def taken_bytes(self, host: int) -> int:
        """Return the memory that a budget takes: buffers of requests at least, and no more than holds all."""
        return max(min(host, self.whole_bytes), self.buffer_bytes * (1 + bool(self.list_bytes)))

    @property
    def _row_bytes(self) -> int:
        x = stored_rows(self.graph.x)
        assert x is not None
        return x.nbytes // max(self.graph.num_nodes, 1)

    @property
    def _notes_bytes(self) -> int:
        scale = scale_of(self.graph.x)
        return _NOTES_BYTES + (0 if scale is None else scale.itemsize)

    def estimate(
        self, host: int, needs: SampledNeeds, seconds: EpochSeconds | None, pace: Pace | None
    ) -> TierEstimate:
        """Return what a run with such a budget needs.

        Args:
            host: the budget.
            needs: of a run with all in memory.
            seconds: likewise; None if they are not known.
            pace: seconds by what is read from disk; None if that is not known.
        """
        rows = self.rows_in(host)
        by_device, served = self._shares(host)
        taken = None if seconds is None else seconds.train
        return TierEstimate(
            rows=rows,
            host_bytes=host,
            expected_share=served - by_device,
            disk_bytes_per_epoch=(1 - served) * self.epoch_reads * self._row_bytes,
            link_bytes_per_epoch=None if self.device is None else self.device.link_bytes(self.device.num_hot),
            memory_bytes=tiered_needs(needs, self.taken_bytes(host), self.list_bytes).nbytes,
            seconds=taken if pace is None else pace.seconds(self.disk_reads(host)),
        )

    def curve(
        self, needs: SampledNeeds, seconds: EpochSeconds | None, pace: Pace | None
    ) -> tuple[TierEstimate, ...]:
        """Return what more and more rows in memory would bring."""
        num_rows = self.graph.num_nodes
        budgets = (self.host_bytes(int(share * num_rows)) for share in (0.0, *SHARES))
        return tuple(self.estimate(host, needs, seconds, pace) for host in budgets)


def tiered_run(
    graph: Graph,
    config: TrainConfig,
    *,
    num_batches: int,
    bytes_per_second: float | None,
    is_here: bool,
    times: bool,
    reads: Score,
    device: DeviceRun | None = None,
) -> TieredRun | None:
    """Return a graph's rows in tiers; None where no store's file holds them.

    Args:
        graph: whose features are read.
        config: options of the run.
        num_batches: in an epoch.
        bytes_per_second: the disk's rate. If None, it is measured where ``is_here``.
        is_here: whether the run is for this machine.
        times: whether times are asked for.
        reads: of each row in an epoch, by the score that the run's tiers are filled by.
        device: what is on the device. If None, there is none.
    """
    x = stored_rows(graph.x)
    if x is None or not are_mapped(graph):
        return None
    disk = DiskRows.behind(x, options=options_for(config.host or 0))
    rate = None if bytes_per_second is None or not times else bytes_per_second / disk.row_bytes
    if times and rate is None and is_here:
        rate = rows_per_second(disk)
    lists = list_bytes(graph)
    return TieredRun(
        graph=graph,
        reads=reads,
        served=Served(reads.values),
        epoch_reads=float(reads.values.sum()),
        list_reads=expected_list_reads(graph, config) if lists and times else 0.0,
        num_batches=num_batches,
        rows_per_second=rate,
        is_here=is_here,
        buffer_bytes=disk.buffer_bytes,
        list_bytes=lists,
        device=device,
    )


def tiered_needs(needs: SampledNeeds, host_bytes: int, list_bytes: int) -> Needs:
    """Return the needs in memory with rows, and lists of ``list_bytes``, in tiers that take ``host_bytes``.

    A thread gathers rows ahead: batches that wait with their rows, and before them announced ones without.
    """
    sizes, ahead = needs.sizes, needs.ahead
    waiting = min(ahead + 2, sizes.num_batches)
    announced = min(2 * ahead + LOOKAHEAD + 2, sizes.num_batches)
    graph = next(need for need in needs.host.held if need.name == "graph")
    others = {
        "graph": replace(graph, nbytes=graph.nbytes - list_bytes),
        "features": Need(name="features", nbytes=host_bytes, why="what is in memory, and noted of all"),
        "batches": Need(
            name="batches", nbytes=announced * sizes.index_bytes, why=f"{announced} announced, without rows"
        ),
    }
    held = tuple(others.get(need.name, need) for need in needs.host.held)
    rows = waiting * sizes.feature_bytes  # given back after an epoch, unlike a pipeline's buffers
    phases = tuple(
        replace(need, nbytes=need.nbytes + rows, why=f"{need.why}; {waiting} batches' rows")
        if need.name == "step"
        else need
        for need in needs.host.phases
    )
    return Needs(held=held, phases=phases)


def rows_per_second(disk: DiskRows) -> float:
    """Measure how many rows at random a second come from the file, some that no cache has first.

    On a slow disk as many as come in about a second, and an eighth of all tried ones at least.
    """
    count = min(_TRIED_ROWS, disk.shape[0])
    draw = torch.Generator().manual_seed(0)
    first, second = (torch.randint(disk.shape[0], (count,), generator=draw) for _ in range(2))
    part, gathered = max(1, count // 8), 0
    disk.gather(first[:part])
    started = time.perf_counter()
    for ids in torch.split(second, part):
        disk.gather(ids)
        gathered, taken = gathered + len(ids), time.perf_counter() - started
        if taken > _TRIED_SECONDS:
            break
    return gathered / max(taken, 1e-9)
