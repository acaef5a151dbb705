"""Feeds: sources of a run's batches: sampled mini-batches, the whole graph, or one rank's shares of these.

With several ranks, the epoch's mini-batches are those of one rank: a function of seed, epoch and step. Each
rank takes a contiguous part of a batch's seeds, and of the whole batch's sample what these read.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from graphbraid.collective.plan.scheduler import REFILL
from graphbraid.collective.plan.times import Arrangement
from graphbraid.graph import Graph, NodeSet
from graphbraid.sampling.config import part_of
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.runner import Batch, ModelRunner, WholeGraph
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.collective import Plan
    from graphbraid.collective.run.stages import Accelerator
    from graphbraid.distributed import Communicator
    from graphbraid.loader.batch_loader import BatchLoader
    from graphbraid.sampling.minibatch.mini_batch import MiniBatch


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


class Share(NamedTuple):
    """Which share of each mini-batch a rank trains on."""

    rank: int
    num_ranks: int

    @classmethod
    def of(cls, comm: Communicator | None) -> Share:
        """Return the share of a rank among those that train together; None for one that is alone."""
        return ALONE if comm is None else cls(comm.rank, comm.size)


ALONE = Share(0, 1)
"""The share of a rank that is alone: all of each batch."""


def make_feed(
    runner: ModelRunner,
    config: TrainConfig,
    task: Task,
    nodes: Tensor,
    *,
    plan: Plan | None = None,
    accelerator: Accelerator | None = None,
    share: Share = ALONE,
) -> Feed:
    """Make the feed for ``config.mode`` over the training nodes, or of a rank's shares of the batches.

    Args:
        runner: the model and its graph; with the engine that several ranks share on the whole graph.
        config: options of the run.
        task: loss, with its class weights, on any device.
        nodes: training nodes of all ranks, ``(num_train,)`` int64.
        plan: plan for preparing mini-batches.
        accelerator: device that prepares them by the plan. If None, the runner's.
        share: share of each mini-batch that this rank trains on.
    """
    if config.mode == "full":
        return WholeGraphFeed(runner, task, nodes)
    loader, sharing = make_loader(runner, config, nodes, plan, accelerator, share=share), None
    divides = plan is not None and plan.cores is not None and loader.plan is None and config.threads is None
    if divides and share.num_ranks == 1:
        assert plan is not None
        assert plan.cores is not None
        sharing = follow(loader, plan.cores, plan.cbs)
    return SampledFeed(runner, config, task, loader, sharing, inputs=nodes if config.task == "edge" else None)


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
        reach=None if share.num_ranks == 1 else runner.reach(config),
    )
    return runner.loader(settings)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class BatchShare:
    """A batch, or one rank's part of it."""

    batch: Batch | None
    """The batch of this rank's seeds; None if it has none, as of a last batch with few seeds."""
    weight: float
    """Part of the whole batch's loss that this rank's mean loss makes up; 1 over all ranks together."""
    num_seeds: int
    """Number of seeds of the whole batch."""

    @classmethod
    def whole(cls, batch: Batch) -> BatchShare:
        """Return the share of a rank that is alone."""
        return cls(batch=batch, weight=1.0, num_seeds=batch.batch_size)


class SampledFeed:
    """A feed of shuffled mini-batches of sampled neighbourhoods, prepared ahead by the loader's threads.

    Args:
        runner: the model and its graph.
        config: options of the run; with a plan, the timeline of the first epoch is written to ``trace``.
        task: loss, with its class weights, on any device.
        loader: loader of the mini-batches, or of this rank's part of each, with a plan or without.
        sharing: setter of the number of the model's threads. If None, that is not set.
        inputs: ``(num,)`` int64 edges that the loader's seeds stand for. If None, the seeds are nodes.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: TrainConfig,
        task: Task,
        loader: BatchLoader,
        sharing: CoreSharing | None = None,
        *,
        inputs: Tensor | None = None,
    ) -> None:
        self._inputs = inputs
        self._runner, self._task, self._loader, self._sharing = runner, task, loader, sharing
        self._trace = config.trace if loader.plan is not None else None
        self._whole = loader.schedule.whole
        self._late_gather_seconds = 0.0
        self._begun: dict[int, Generator[MiniBatch]] = {}  # the next epoch's batches, if ranks begin it early
        self.num_batches = self._whole.num_steps

    def batches(self, epoch: int, start: int, then: int = 0) -> Generator[BatchShare]:
        """Yield the epoch's mini-batches, or this rank's share of each, from ``start`` on.

        Args:
            epoch: index of the epoch.
            start: index of the first mini-batch.
            then: number of epochs that follow without an evaluation. Ranks that draw from parts begin the
                next one meanwhile. It stays open until it is trained or the feed is closed.
        """
        schedule = self._loader.schedule
        has_all = min(schedule.batch_size, schedule.seeds.numel()) >= schedule.num_parts
        then = then if has_all and start == 0 and not self._runner.graph.is_whole else 0
        own = self._begun.pop(epoch, None)
        own = own or self._loader.batches(epoch, min(start, len(self._loader)), then=then)
        if start >= len(self._loader):
            next(own, None)  # where batches are drawn by all ranks together, others need this one's answers
        try:
            for step in range(start, self.num_batches):
                share = self._next_share(own, epoch, step)
                if self._sharing is not None:
                    self._sharing.before_batch()
                yield share
                del share  # so that the threads can reuse its buffer before the next batch
            if then:
                self._begun[epoch + 1] = own
        finally:
            if self._begun.get(epoch + 1) is not own:
                own.close()
            if self._sharing is not None:
                self._sharing.after_epoch()
            self._write_trace()

    def _next_share(self, own: Iterator[MiniBatch], epoch: int, step: int) -> BatchShare:
        part, num_parts = self._loader.schedule.part, self._loader.schedule.num_parts
        if num_parts == 1:
            return BatchShare.whole(self._gathered(next(own)))
        whole = self._whole.seeds_of(epoch, step)
        whole = whole if self._inputs is None else self._inputs[whole]
        begin, end = part_of(whole.numel(), part, num_parts)
        return BatchShare(
            batch=self._gathered(next(own)) if begin < end else None,
            weight=_weight(self._runner.labels, self._task, whole[begin:end], whole),
            num_seeds=whole.numel(),
        )

    def _gathered(self, batch: MiniBatch) -> MiniBatch:
        """Return a batch with its features; sparse rows are gathered at this first use."""
        started = time.perf_counter()
        self._runner.features_of(batch)
        self._late_gather_seconds += time.perf_counter() - started
        return batch

    def _write_trace(self) -> None:
        """Write the timeline of the epoch that ended, or of its part that was run, unless one was written."""
        executor = self._loader.executor
        if self._trace is not None and executor is not None:
            from graphbraid.collective.run.trace import write_trace

            write_trace(self._trace, executor.ops, executor.plan, num_batches=self.num_batches)
            self._trace = None

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of seeds in ``count`` whole mini-batches from ``start`` on (fewer at the end)."""
        batch_size = self._whole.batch_size
        return min(count * batch_size, self._whole.seeds.numel() - start * batch_size)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of sampling and gathering since the start, summed over threads."""
        seconds = dict(self._loader.stage_seconds)
        return seconds | {"gather": seconds["gather"] + self._late_gather_seconds}

    def explain(self) -> str:
        """Say from where a sampling device reads, and how much it has read; empty without one."""
        return self._loader.explain()

    def close(self) -> None:
        """Stop the threads."""
        self._loader.close()


class WholeGraphFeed:
    """A feed whose only batch per epoch is the whole graph, or the part of it that one rank owns.

    Args:
        runner: the model and its graph, with the engine that ranks share.
        task: loss, with its class weights, on any device.
        nodes: training nodes of all ranks, ``(num_train,)`` int64. A rank may own none of them: others need
            its rows all the same.
    """

    num_batches = 1

    def __init__(self, runner: ModelRunner, task: Task, nodes: Tensor) -> None:
        ranks = None if runner.engine is None else runner.engine.ranks
        own = nodes if ranks is None else ranks.owned(nodes)
        labels = runner.labels
        assert labels.y is not None
        seed_y = labels.y.index_select(0, own).to(runner.device)
        self._share = BatchShare(
            batch=WholeGraph(nodes=own.to(runner.device), seed_y=seed_y),
            weight=1.0 if ranks is None else _weight(labels, task, own, nodes),
            num_seeds=nodes.numel(),
        )

    def batches(self, epoch: int, start: int, then: int = 0) -> Generator[BatchShare]:
        """Yield the batch, unless ``start`` is past it. ``then`` has no effect."""
        if start == 0:
            yield self._share

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of training nodes."""
        return self._share.num_seeds

    def stage_seconds(self) -> dict[str, float]:
        """Return no stages, as nothing is prepared."""
        return {}

    def explain(self) -> str:
        """Return nothing, as no device samples."""
        return ""

    def close(self) -> None:
        """Do nothing, as there are no threads."""


def _weight(nodes: Graph | NodeSet, task: Task, own: Tensor, whole: Tensor) -> float:
    """Return the part of the loss of ``whole`` seeds that the mean over a rank's ``own`` makes up."""
    if task.class_weights is None and not task.misses_cells:
        return own.numel() / whole.numel()
    labels = nodes.y
    assert labels is not None
    # The mean over a rank's own rows counts by its divisor: weights of classes, or cells that are known.
    weights = task.to(labels.device)
    mass = weights.mass(labels.index_select(0, own)) if own.numel() else 0.0
    return mass / weights.mass(labels.index_select(0, whole))


Feed = SampledFeed | WholeGraphFeed
"""A source of the batches of any epoch from any position on, as a pure function of (epoch, position)."""
