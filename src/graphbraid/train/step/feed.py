"""Feeds: where the batches of a run come from, sampled mini-batches or the whole graph at once."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from graphbraid.train.config import TrainConfig
from graphbraid.train.step.batches import Batch, WholeGraph
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.sharing import CoreSharing, follow

if TYPE_CHECKING:
    from graphbraid.collective import Plan
    from graphbraid.collective.run.protocols import Accelerator
    from graphbraid.loader.batches import BatchLoader


class Feed(Protocol):
    """Gives the batches of any epoch from any position on: a pure function of (epoch, position)."""

    num_batches: int
    """Batches of an epoch."""

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        """The epoch's batches from ``start`` on."""
        ...

    def num_seeds(self, start: int, count: int) -> int:
        """Seed nodes of the ``count`` batches from ``start`` on, or of as many as the epoch has."""
        ...

    def stage_seconds(self) -> dict[str, float]:
        """Seconds per stage of the preparing threads since the start."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


def make_feed(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    plan: Plan | None = None,
    accelerator: Accelerator | None = None,
) -> Feed:
    """The feed that ``config.mode`` asks for, over the training nodes."""
    if config.mode == "full":
        return WholeGraphFeed(runner, nodes)
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
) -> BatchLoader:
    """The loader of a run's shuffled mini-batches.

    A plan without a device only says how many threads sample, which the loader's own pipeline does best;
    where a trace is wanted, the executor runs it.
    """
    from graphbraid.loader import BatchLoader, LoaderSettings

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
    )
    return BatchLoader(runner.graph, settings)


class SampledFeed:
    """Shuffled mini-batches of sampled neighbourhoods, prepared ahead by the loader's threads."""

    def __init__(
        self,
        runner: ModelRunner,
        config: TrainConfig,
        loader: BatchLoader,
        sharing: CoreSharing | None = None,
    ) -> None:
        self._runner, self._loader, self._sharing = runner, loader, sharing
        self._trace = config.trace if loader.plan is not None else None
        self.num_batches = len(self._loader)
        self._late_gather_seconds = 0.0

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        """The epoch's mini-batches from ``start`` on."""
        try:
            for batch in self._loader.batches(epoch, start):
                started = time.perf_counter()
                self._runner.features_of(batch)  # sparse rows are gathered at this first use
                self._late_gather_seconds += time.perf_counter() - started
                if self._sharing is not None:
                    self._sharing.before_batch()
                yield batch
                del batch  # its buffer goes back to the threads before the next one is asked for
        finally:
            if self._sharing is not None:
                self._sharing.after_epoch()
            self._write_trace()

    def num_seeds(self, start: int, count: int) -> int:
        """Seed nodes of the ``count`` mini-batches from ``start`` on, or of as many as the epoch has."""
        schedule = self._loader.schedule
        return min(count * schedule.batch_size, schedule.seeds.numel() - start * schedule.batch_size)

    def _write_trace(self) -> None:
        """Of the first epoch that was trained, or what was trained of it."""
        executor = self._loader.executor
        if self._trace is None or executor is None:
            return
        from graphbraid.collective.run.trace import write_trace

        write_trace(self._trace, executor.ops, executor.plan, num_batches=self.num_batches)
        self._trace = None

    def stage_seconds(self) -> dict[str, float]:
        """Seconds that sampling and gathering took, summed over threads."""
        seconds = dict(self._loader.stage_seconds)
        return seconds | {"gather": seconds["gather"] + self._late_gather_seconds}

    def close(self) -> None:
        """End the threads."""
        self._loader.close()


class WholeGraphFeed:
    """The whole graph as an epoch's one batch; its labels are taken once."""

    num_batches = 1

    def __init__(self, runner: ModelRunner, nodes: Tensor) -> None:
        assert runner.graph.y is not None
        labels = runner.graph.y.index_select(0, nodes)
        self._batch = WholeGraph(nodes=nodes.to(runner.device), seed_y=labels.to(runner.device))

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        """The whole graph, unless ``start`` is past it."""
        if start == 0:
            yield self._batch

    def num_seeds(self, start: int, count: int) -> int:
        """All training nodes."""
        return self._batch.batch_size

    def stage_seconds(self) -> dict[str, float]:
        """Nothing is prepared."""
        return {}

    def close(self) -> None:
        """Nothing to end."""
