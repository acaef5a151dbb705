"""Feeds: sources of a run's batches, either sampled mini-batches or the whole graph at once."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from graphbraid.train.config import TrainConfig
from graphbraid.train.step.batches import Batch, WholeGraph
from graphbraid.train.step.first_trace import FirstTrace
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.sharing import CoreSharing, follow

if TYPE_CHECKING:
    from graphbraid.collective import Plan
    from graphbraid.collective.run.stages import Accelerator
    from graphbraid.loader.batch_loader import BatchLoader


class Share(NamedTuple):
    """Which share of each mini-batch a rank trains on."""

    rank: int
    num_ranks: int


ALONE = Share(0, 1)
"""The share of a rank that is alone: all of each batch."""


class Feed(Protocol):
    """A source of the batches of any epoch from any position on, as a pure function of (epoch, position)."""

    num_batches: int
    """Number of batches per epoch."""

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        """Yield the epoch's batches from ``start`` on."""
        ...

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of seeds in the ``count`` batches from ``start`` on, as far as the epoch goes."""
        ...

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds that the preparing threads spent in each stage since the start."""
        ...

    def explain(self) -> str:
        """Say where a device reads what it makes batches of, and what it has read; empty without one."""
        ...

    def close(self) -> None:
        """Stop the threads."""
        ...


def make_feed(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    plan: Plan | None = None,
    accelerator: Accelerator | None = None,
) -> Feed:
    """Make the feed for ``config.mode`` over the training nodes."""
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


class SampledFeed:
    """A feed of shuffled mini-batches of sampled neighbourhoods, prepared ahead by the loader's threads."""

    def __init__(
        self,
        runner: ModelRunner,
        config: TrainConfig,
        loader: BatchLoader,
        sharing: CoreSharing | None = None,
    ) -> None:
        self._runner, self._loader, self._sharing = runner, loader, sharing
        self._trace = FirstTrace(config.trace, loader)
        self.num_batches = len(self._loader)
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

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of seeds in the ``count`` mini-batches from ``start`` on (fewer at the end)."""
        schedule = self._loader.schedule
        return min(count * schedule.batch_size, schedule.seeds.numel() - start * schedule.batch_size)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of sampling and gathering, summed over threads."""
        seconds = dict(self._loader.stage_seconds)
        return seconds | {"gather": seconds["gather"] + self._late_gather_seconds}

    def explain(self) -> str:
        """Return the loader's explanation."""
        return self._loader.explain()

    def close(self) -> None:
        """Stop the threads."""
        self._loader.close()


class WholeGraphFeed:
    """A feed whose only batch per epoch is the whole graph."""

    num_batches = 1

    def __init__(self, runner: ModelRunner, nodes: Tensor) -> None:
        assert runner.labels.y is not None
        labels = runner.labels.y.index_select(0, nodes)
        self._batch = WholeGraph(nodes=nodes.to(runner.device), seed_y=labels.to(runner.device))

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        """Yield the whole graph, unless ``start`` is past it."""
        if start == 0:
            yield self._batch

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of training nodes."""
        return self._batch.batch_size

    def stage_seconds(self) -> dict[str, float]:
        """Return no stages, as nothing is prepared."""
        return {}

    def explain(self) -> str:
        """Return nothing, as no device samples."""
        return ""

    def close(self) -> None:
        """Do nothing, as there are no threads."""
