"""Feeds: sources of a run's batches: sampled mini-batches, the whole graph, or one rank's shares of these.

With several ranks, the epoch's mini-batches are those of one rank: a function of seed, epoch and step. Each
rank samples for a contiguous part of a batch's seeds, with the random numbers that these have in the whole
batch.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from graphbraid.collective.plan.scheduler import REFILL
from graphbraid.collective.plan.times import Arrangement
from graphbraid.graph import Graph, NodeSet
from graphbraid.sampling.schedule import part_of
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.runner import Batch, ModelRunner, WholeGraph
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.collective import Plan
    from graphbraid.collective.run.stages import Accelerator
    from graphbraid.loader.batch_loader import BatchLoader

B = TypeVar("B")


class CoreSharing:
    """A setter of the number of the model's threads before each mini-batch, according to an arrangement."""

    def __init__(self, loader: BatchLoader, cores: Arrangement) -> None:
        self._loader, self._cores = loader, cores

    def before_batch(self) -> None:
        """Give the model the cores on which no sampling thread is busy."""
        threads = self._cores.threads
        if self._cores.turns:
            threads = max(1, threads - self._loader.busy_threads)
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def after_epoch(self) -> None:
        """Give the model all its threads, as no batches are being prepared."""
        torch.set_num_threads(self._cores.threads)


def follow(loader: BatchLoader, cores: Arrangement, ahead: int) -> CoreSharing:
    """Set up a loader's threads by an arrangement, and return the setter of the model's threads."""
    loader.work_in_turns(cores.workers, ahead, REFILL if cores.turns else None)
    return CoreSharing(loader, cores)


class FirstTrace:
    """The trace of the first epoch that a loader prepares by a plan, or of the part of it that it does.

    Args:
        path: file to write. If None, none is written.
        loader: the loader; one without a plan has no timeline.
    """

    def __init__(self, path: Path | None, loader: BatchLoader) -> None:
        self._path, self._loader = (path if loader.plan is not None else None), loader

    def write(self, num_batches: int) -> None:
        """Write the latest iteration's timeline, unless one was written before.

        Args:
            num_batches: batches in an epoch.
        """
        executor = self._loader.executor
        if self._path is None or executor is None:
            return
        from graphbraid.collective.run.trace import write_trace

        write_trace(self._path, executor.ops, executor.plan, num_batches=num_batches)
        self._path = None


class Share(NamedTuple):
    """Which share of each mini-batch a rank trains on."""

    rank: int
    num_ranks: int


ALONE = Share(0, 1)
"""The share of a rank that is alone: all of each batch."""


def make_feed(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    plan: Plan | None = None,
    accelerator: Accelerator | None = None,
) -> SampledFeed | WholeGraphFeed[WholeGraph]:
    """Make the feed for ``config.mode`` over the training nodes."""
    if config.mode == "full":
        labels = runner.labels.y
        assert labels is not None
        seed_y = labels.index_select(0, nodes).to(runner.device)
        return WholeGraphFeed(WholeGraph(nodes=nodes.to(runner.device), seed_y=seed_y), nodes.numel())
    loader, sharing = make_loader(runner, config, nodes, plan, accelerator), None
    if plan is not None and plan.cores is not None and loader.plan is None and config.threads is None:
        sharing = follow(loader, plan.cores, plan.cbs)
    return SampledFeed(runner, config, loader, sharing)


def make_loader(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    plan: Plan | None = None,
    accelerator: Accelerator | None = None,
    *,
    share: Share = ALONE,
) -> BatchLoader:
    """Make the loader of a run's shuffled mini-batches, or of a rank's share of each.

    Without a device, a plan only determines how many threads sample, which the loader's own pipeline does
    best; if a trace is requested, the executor runs the plan.
    """
    from graphbraid.loader import LoaderSettings

    device = accelerator or runner.device
    has_device = accelerator is not None or runner.device.type != "cpu"
    follows_plan = plan is not None and (has_device or config.trace is not None)
    settings = LoaderSettings(
        num_neighbors=config.fanouts,
        batch_size=config.batch_size,
        input_nodes=nodes,
        shuffle=True,
        replace=config.replace,
        layout=config.layout,
        seed=config.seed,
        return_edge_id=False,
        src_degree=runner.uses_degrees,
        num_workers=config.workers if plan is None else plan.workers,
        device=device if follows_plan else "cpu",
        plan=plan if follows_plan else None,
        part=share.rank,
        num_parts=share.num_ranks,
    )
    return runner.loader(settings)


class LoaderFeed:
    """The part of a feed that its loader decides.

    Args:
        loader: loader of the mini-batches, or of this rank's part of each, with a plan or without.
        trace: file for the timeline of the first epoch, if the loader has a plan. If None, none is written.
    """

    def __init__(self, loader: BatchLoader, trace: Path | None) -> None:
        self._loader, self._trace = loader, FirstTrace(trace, loader)
        self._whole = loader.schedule.whole
        self.num_batches = self._whole.num_steps

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of seeds in ``count`` whole mini-batches from ``start`` on (fewer at the end)."""
        batch_size = self._whole.batch_size
        return min(count * batch_size, self._whole.seeds.numel() - start * batch_size)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of sampling and gathering since the start, summed over threads."""
        return dict(self._loader.stage_seconds)

    def explain(self) -> str:
        """Say where a device reads what it makes batches of, and what it has read; empty without one."""
        return self._loader.explain()

    def close(self) -> None:
        """Stop the threads."""
        self._loader.close()


class SampledFeed(LoaderFeed):
    """A feed of shuffled mini-batches of sampled neighbourhoods, prepared ahead by the loader's threads."""

    def __init__(
        self,
        runner: ModelRunner,
        config: TrainConfig,
        loader: BatchLoader,
        sharing: CoreSharing | None = None,
    ) -> None:
        super().__init__(loader, config.trace)
        self._runner, self._sharing = runner, sharing
        self._late_gather_seconds = 0.0

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        """Yield the epoch's mini-batches from ``start`` on."""
        try:
            for batch in self._loader.batches(epoch, start):
                started = time.perf_counter()
                self._runner.features_of(batch)  # sparse rows are gathered at this first use
                self._late_gather_seconds += time.perf_counter() - started
                if self._sharing is not None:
                    self._sharing.before_batch()
                yield batch
                del batch  # so that the threads can reuse its buffer before the next batch
        finally:
            if self._sharing is not None:
                self._sharing.after_epoch()
            self._trace.write(self.num_batches)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of sampling and gathering since the start, summed over threads."""
        seconds = super().stage_seconds()
        return seconds | {"gather": seconds["gather"] + self._late_gather_seconds}


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class BatchShare:
    """One rank's part of a mini-batch."""

    batch: Batch | None
    """The batch of this rank's seeds; None if it has none, as of a last batch with few seeds."""
    weight: float
    """Part of the whole batch's loss that this rank's mean loss makes up; 1 over all ranks together."""
    num_seeds: int
    """Number of seeds of the whole batch."""


class SharedFeed(LoaderFeed):
    """A feed of one rank's shares of shuffled mini-batches.

    Args:
        runner: the model and its graph.
        loader: loader of this rank's part of each batch, with a plan or without.
        task: loss, with its class weights, on any device.
        trace: file for the timeline of the first epoch, if the loader has a plan. If None, none is written.
    """

    def __init__(
        self, runner: ModelRunner, loader: BatchLoader, task: Task, trace: Path | None = None
    ) -> None:
        super().__init__(loader, trace)
        self._runner, self._task = runner, task

    def batches(self, epoch: int, start: int) -> Generator[BatchShare]:
        """Yield this rank's shares of the epoch's mini-batches from ``start`` on."""
        part, num_parts = self._loader.schedule.part, self._loader.schedule.num_parts
        own = self._loader.batches(epoch, min(start, len(self._loader)))
        try:
            for step in range(start, self.num_batches):
                whole = self._whole.seeds_of(epoch, step)
                begin, end = part_of(whole.numel(), part, num_parts)
                yield BatchShare(
                    batch=next(own) if begin < end else None,
                    weight=_weight(self._runner.labels, self._task, whole[begin:end], whole),
                    num_seeds=whole.numel(),
                )
        finally:
            own.close()
            self._trace.write(self.num_batches)


class WholeGraphFeed(Generic[B]):
    """A feed whose only batch per epoch is the whole graph, or one rank's part of it.

    Args:
        batch: the batch. A rank's part may have no nodes: other ranks need its rows all the same.
        num_seeds: training nodes, of all ranks together.
    """

    num_batches = 1

    def __init__(self, batch: B, num_seeds: int) -> None:
        self._batch, self._num_seeds = batch, num_seeds

    def batches(self, epoch: int, start: int) -> Generator[B]:
        """Yield the batch, unless ``start`` is past it."""
        if start == 0:
            yield self._batch

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of training nodes."""
        return self._num_seeds

    def stage_seconds(self) -> dict[str, float]:
        """Return no stages, as nothing is prepared."""
        return {}

    def explain(self) -> str:
        """Return nothing, as no device samples."""
        return ""

    def close(self) -> None:
        """Do nothing, as there are no threads."""


def shared_whole_graph(runner: ModelRunner, nodes: Tensor, task: Task) -> WholeGraphFeed[BatchShare]:
    """Return the feed of the training nodes that one rank owns.

    Args:
        runner: the model and its graph, with the engine that the ranks share.
        nodes: training nodes of all ranks, ``(num_train,)`` int64.
        task: loss, with its class weights, on any device.
    """
    engine, labels = runner.engine, runner.labels
    assert engine is not None
    assert engine.ranks is not None
    assert labels.y is not None
    own = engine.ranks.owned(nodes)
    batch = WholeGraph(nodes=own, seed_y=labels.y.index_select(0, own))
    weight = _weight(labels, task, own, nodes)
    share = BatchShare(batch=batch, weight=weight, num_seeds=nodes.numel())
    return WholeGraphFeed(share, nodes.numel())


def _weight(nodes: Graph | NodeSet, task: Task, own: Tensor, whole: Tensor) -> float:
    """Return the part of the loss of ``whole`` seeds that the mean over a rank's ``own`` makes up."""
    if task.class_weights is None:
        return own.numel() / whole.numel()
    labels = nodes.y
    assert labels is not None
    weights = task.to(labels.device)
    mass = weights.mass(labels.index_select(0, own)) if own.numel() else 0.0
    return mass / weights.mass(labels.index_select(0, whole))


Feed = SampledFeed | SharedFeed | WholeGraphFeed[WholeGraph] | WholeGraphFeed[BatchShare]
"""A source of the batches of any epoch from any position on, as a pure function of (epoch, position)."""
