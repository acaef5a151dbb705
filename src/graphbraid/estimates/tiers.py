"""Rows and lists in tiers: what memory holds of them, what it leaves to the disk, and what a device keeps."""

import dataclasses
import time
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from graphbraid.arguments import as_budget
from graphbraid.collective.hardware.device_resident import resident_bytes, resident_in
from graphbraid.collective.run.stages import Context
from graphbraid.errors import GraphbraidError
from graphbraid.estimates.memory import SampledNeeds, are_mapped, may_try_steps
from graphbraid.estimates.records import Need, Needs
from graphbraid.estimates.seconds import rows_made_up, training_seconds
from graphbraid.estimates.trial import Trial
from graphbraid.features import DiskRows, Score, TieredFeatures
from graphbraid.features.budgets import hot_ids_in, list_bytes, options_for, order_of
from graphbraid.features.scores.choice import RunTime
from graphbraid.features.tiers.tier_report import ReadShareCurve
from graphbraid.features.tiers.tiered_features import LOOKAHEAD
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.scaled_features import kept_row_bytes, scale_of, stored_rows
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.step import ALONE, Share, make_loader
from graphbraid.train.step.tiers import expected_list_reads

_SLOT_BYTES, _NOTES_BYTES = 32, 9
"""Noted of each row in memory, and of each row at all."""
_TRIED_ROWS, _TRIED_SECONDS = 8192, 0.5
_SAMPLER_PARTS = {
    "topology": "which the device samples from",
    "labels": "and what else batches are made of by id",
    "features": "which the device reads where it samples",
    "lists": "the adjacency lists read most, of a topology that does not fit",
    "rows": "that the device chooses by out-degree",
    "local ids": "of the device's sampler",
}


# ---- memory and disk


class TieredRun(NamedTuple):
    """The rows and lists of a store's file, as a budget of memory divides them."""

    graph: Graph
    served: ReadShareCurve
    """Share of an epoch's reads that the rows read most have."""
    epoch_reads: float
    """Rows that an epoch reads."""
    list_reads: float
    """Blocks of adjacency lists that an epoch reads where no list is held; 0 if they are in memory anyway."""
    num_hot: int
    """Rows on the device. Memory holds the rows behind these."""
    buffer_bytes: int
    list_bytes: int
    """Bytes of the adjacency lists, which a budget holds first; 0 if they are in memory anyway."""
    notes_bytes: int
    """Noted of all rows."""
    row_bytes: int

    @property
    def whole_bytes(self) -> int:
        """Memory that holds everything."""
        rows = self.graph.num_nodes * (self.row_bytes + _SLOT_BYTES)
        return rows + self.buffer_bytes + self.notes_bytes + self.list_bytes

    def disk_reads(self, host: int) -> float:
        """Return the rows and blocks of lists that an epoch is expected to read from disk with a budget."""
        left = host - self.buffer_bytes - self.notes_bytes - self.list_bytes
        held = max(0, min(left // (self.row_bytes + _SLOT_BYTES), self.graph.num_nodes))
        served = self.served.share(min(self.num_hot + held, self.graph.num_nodes))
        return (1 - served) * self.epoch_reads + (self.list_reads if host == 0 else 0.0)

    def taken_bytes(self, host: int) -> int:
        """Return the memory that a budget takes: buffers of requests at least, and no more than holds all."""
        return max(min(host, self.whole_bytes), self.buffer_bytes * (1 + bool(self.list_bytes)))


def tiered_run(graph: Graph, config: TrainConfig, reads: Tensor, num_hot: int = 0) -> TieredRun | None:
    """Return how budgets divide a graph's rows and lists; None where no store's file holds the rows.

    ``reads`` are ``(num_nodes,)`` in an epoch, by the score that fills the tiers. ``num_hot`` rows are on the
    device.
    """
    x = stored_rows(graph.x)
    if x is None or not are_mapped(graph):
        return None
    lists, scale = list_bytes(graph), scale_of(graph.x)
    return TieredRun(
        graph=graph,
        served=ReadShareCurve(reads),
        epoch_reads=float(reads.sum()),
        list_reads=expected_list_reads(graph, config) if lists else 0.0,
        num_hot=num_hot,
        buffer_bytes=DiskRows.behind(x, options=options_for(config.host or 0)).buffer_bytes,
        list_bytes=lists,
        notes_bytes=graph.num_nodes * (_NOTES_BYTES + (0 if scale is None else scale.itemsize)),
        row_bytes=x.nbytes // max(graph.num_nodes, 1),
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
        "features": Need(
            name="features", nbytes=host_bytes, why="rows in memory, and the bookkeeping of all"
        ),
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


def rows_per_second(graph: Graph, host: int | str) -> float:
    """Measure how many rows in random order come from the file in a second.

    Other rows are read first, so that the requests are set up. On a slow disk the measurement stops after
    half a second, once it has read an eighth of its rows.
    """
    x = stored_rows(graph.x)
    assert x is not None, "only dense rows are in a file"
    disk = DiskRows.behind(x, options=options_for(host))
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


# ---- how long a run takes, for look-ahead


class RunSeconds(RunTime):
    """The seconds of a run's training.

    Training is tried at once, with its rows at hand. How long it waits for a disk depends on the rows that
    tiers hold, and is asked for later. ``host`` is the memory for tiers; if None, no file is read by them.
    ``rate`` is in rows per second that come from a file at random; if None, it is measured, but not for
    another machine (``is_here``).
    """

    def __init__(
        self,
        trial: Trial,
        *,
        host: int | str | None,
        share: Share = ALONE,
        rate: float | None = None,
        is_here: bool = True,
    ) -> None:
        self._trial, self._host, self._rate = trial, host, rate
        self.least = training_seconds(trial, share)
        """Seconds of all training steps, their rows at hand."""
        self._may_wait = host is not None and host != "all" and are_mapped(trial.graph)
        self.waits = self._may_wait and (is_here or rate is not None)
        """Whether training may take longer, as it reads a store's file."""
        self._said = "not counted, as all epochs are allowed without it"

    def with_reads(self, reads: Tensor) -> float:
        """Return the seconds with tiers filled by ``(num_nodes,)`` reads of an epoch.

        Rows are read ahead of their use: an epoch takes as long as the slower of training and reading.
        """
        if not self.waits:
            return self.least
        assert self._host is not None, "a run without tiers does not wait"
        graph, config, num_hot = self._trial.graph, self._trial.config, 0
        if config.hot:
            assert not isinstance(graph.x, SparseFeatures | None), "rows of a file are dense"
            num_hot = len(hot_ids_in(config.hot, order_of(reads), max(kept_row_bytes(graph.x), 1)))
        if self._rate is None:
            self._rate = rows_per_second(graph, self._host)
        run = tiered_run(graph, config.updated(host=self._host), reads, num_hot)
        assert run is not None, "the features are mapped"
        asked = run.disk_reads(as_budget(self._host, "host"))
        longer = max(0.0, config.epochs * asked / self._rate - self.least)
        self._said = f"{longer:.2g} s, by {asked:,.0f} reads an epoch at {self._rate:,.0f} a second"
        return self.least + longer

    @property
    def counted(self) -> str:
        """What was counted, and what was not, and why."""
        said = self._said if self.waits else "not counted, as its rate is not known"
        return f"training {self.least:.2g} s" + f"; waiting for the disk {said}" * self._may_wait


def run_seconds(
    model: nn.Module, graph: Graph, config: TrainConfig, share: Share = ALONE
) -> RunSeconds | None:
    """Return the seconds of a run; None if a step cannot be made, as the run will say, or not tried here.

    Nothing of the model and of torch's random state changes.
    """
    host, config = config.host, config.updated(mode="sampled", host=None, tiers=None)
    with runtime.torch_settings(config), runtime.random_state_kept():
        try:
            trial = Trial(model, graph, config)
            with rows_made_up(trial):
                trial.try_model()
                return RunSeconds(trial, host=host, share=share) if may_try_steps(trial) else None
        except GraphbraidError:
            return None


# ---- a device


def device_needs(
    trial: Trial, needs: Needs, reads: Score, free_bytes: int | None, hot: int | str | None
) -> tuple[Needs, int]:
    """Return what a run holds on its device with hot rows and what its sampler keeps, and the hot rows.

    ``needs`` are those of model, optimizer, batches and steps. ``free_bytes`` are the device's beside the
    model's parameters; if None, what a device that samples would place is not counted. ``hot`` is memory for
    rows.

    Raises:
        ConfigError: ``hot`` holds no row.
    """
    graph, config, tiers = trial.graph, trial.config, None
    held, num_hot = list(needs.held), 0
    if hot:
        tiers = TieredFeatures.build(graph, hot=hot, score=reads)
        if tiers.hot is not None:
            assert not isinstance(graph.x, SparseFeatures | None), "only dense rows are hot"
            num_hot, nbytes = tiers.hot.num_rows, tiers.hot.device_bytes(kept_row_bytes(graph.x))
            held.append(Need(name="hot rows", nbytes=nbytes, why=f"{num_hot:,} rows, and what finds them"))
    samples = config.plan != "cpu" if config.plan is not None else tiers is not None  # whose plan is auto
    if free_bytes is not None and samples:
        context = batch_context(trial)
        context = replace(context, source=dataclasses.replace(context.source, rows=tiers))
        placed = dict(resident_bytes(resident_in(free_bytes // 2, context), context))
        if tiers is not None:
            placed["rows"] = 0  # are those of ``hot``
        held += [Need(name=name, nbytes=placed[name], why=why) for name, why in _SAMPLER_PARTS.items()]
    return replace(needs, held=tuple(need for need in held if need.nbytes)), num_hot


def batch_context(trial: Trial) -> Context:
    """Return the context of the run's mini-batches, with which nothing is placed."""
    with make_loader(trial.runner, trial.config.updated(plan=None), trial.nodes) as loader:
        return loader.context(1)
