"""Shares: the part of each mini-batch of an epoch that one of several ranks trains on.

The epoch's mini-batches are those of one rank: a function of seed, epoch and step. Each rank samples for a
contiguous part of a batch's seeds, with the random numbers that these have in the whole batch.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from graphbraid.graph import Graph, NodeSet
from graphbraid.sampling.schedule import part_of
from graphbraid.train.step.batches import Batch, WholeGraph
from graphbraid.train.step.first_trace import FirstTrace
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.loader.batch_loader import BatchLoader


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class BatchShare:
    """One rank's part of a mini-batch."""

    batch: Batch | None
    """The batch of this rank's seeds; None if it has none, as of a last batch with few seeds."""
    weight: float
    """Part of the whole batch's loss that this rank's mean loss makes up; 1 over all ranks together."""
    num_seeds: int
    """Number of seeds of the whole batch."""


class SharedFeed:
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
        self._runner, self._loader, self._task = runner, loader, task
        self._whole, self._trace = loader.schedule.whole, FirstTrace(trace, loader)
        self.num_batches = self._whole.num_steps

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

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of seeds in the ``count`` whole mini-batches from ``start`` on."""
        batch_size = self._whole.batch_size
        return min(count * batch_size, self._whole.seeds.numel() - start * batch_size)

    def stage_seconds(self) -> dict[str, float]:
        """Return this rank's seconds of sampling and gathering, summed over threads."""
        return dict(self._loader.stage_seconds)

    def explain(self) -> str:
        """Return the loader's explanation."""
        return self._loader.explain()

    def close(self) -> None:
        """Stop the threads."""
        self._loader.close()


class SharedWholeGraph:
    """A feed whose only batch per epoch is one rank's part of the whole graph: the training nodes it owns.

    Args:
        runner: the model and its graph, with the engine that the ranks share.
        nodes: training nodes of all ranks, ``(num_train,)`` int64.
        task: loss, with its class weights, on any device.
    """

    num_batches = 1

    def __init__(self, runner: ModelRunner, nodes: Tensor, task: Task) -> None:
        engine, labels = runner.engine, runner.labels
        assert engine is not None
        assert engine.ranks is not None
        assert labels.y is not None
        own = engine.ranks.owned(nodes)
        batch = WholeGraph(nodes=own, seed_y=labels.y.index_select(0, own))
        weight = _weight(labels, task, own, nodes)
        self._share = BatchShare(batch=batch, weight=weight, num_seeds=nodes.numel())

    def batches(self, epoch: int, start: int) -> Generator[BatchShare]:
        """Yield the rank's part, unless ``start`` is past it; also without nodes, as others need its rows."""
        if start == 0:
            yield self._share

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of training nodes of all ranks."""
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
    if task.class_weights is None:
        return own.numel() / whole.numel()
    labels = nodes.y
    assert labels is not None
    weights = task.to(labels.device)
    mass = weights.mass(labels.index_select(0, own)) if own.numel() else 0.0
    return mass / weights.mass(labels.index_select(0, whole))
