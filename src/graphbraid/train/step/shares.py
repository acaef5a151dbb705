"""Shares: the part of each mini-batch of an epoch that one of several ranks trains on.

The epoch's mini-batches are those of one rank: a function of seed, epoch and step. Each rank samples for a
contiguous part of a batch's seeds, with the random numbers that these have in the whole batch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from graphbraid.graph import Graph, NodeSet
from graphbraid.train.step.batches import Batch, WholeGraph
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.loader.batches.batch_loader import BatchLoader


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class BatchShare:
    """One rank's part of a mini-batch."""

    batch: Batch | None
    """The batch of this rank's seeds; None if it has none, as of a last batch with few seeds."""
    weight: float
    """Part of the whole batch's loss that this rank's mean loss makes up; 1 over all ranks together."""
    num_seeds: int
    """Number of seeds of the whole batch."""


def part_of(count: int, rank: int, size: int) -> tuple[int, int]:
    """Return begin and end of a rank's contiguous part of ``count`` things; sizes differ by one at most."""
    return count * rank // size, count * (rank + 1) // size


class SharedFeed:
    """A feed of one rank's shares of shuffled mini-batches.

    Args:
        runner: the model and its graph.
        loader: loader of the whole batches' seeds, without a plan.
        task: loss, with its class weights, on any device.
        rank: number of this rank.
        size: number of ranks.
    """

    def __init__(self, runner: ModelRunner, loader: BatchLoader, task: Task, rank: int, size: int) -> None:
        self._runner, self._loader, self._task = runner, loader, task
        self._rank, self._size = rank, size
        self.num_batches = len(loader)

    def batches(self, epoch: int, start: int) -> Generator[BatchShare]:
        """Yield this rank's shares of the epoch's mini-batches from ``start`` on."""
        schedule = self._loader.schedule
        first_without = self._first_without_seeds()

        def parts() -> Iterator[Tensor]:
            for step in range(start, first_without):
                positions = schedule.positions_of(epoch, step)
                begin, end = part_of(positions.numel(), self._rank, self._size)
                yield positions[begin:end]

        with closing(self._loader.batches_of(parts(), epoch, start)) as batches:
            for step in range(start, self.num_batches):
                whole = schedule.seeds_of(epoch, step)
                begin, end = part_of(whole.numel(), self._rank, self._size)
                yield BatchShare(
                    batch=next(batches) if begin < end else None,
                    weight=_weight(self._runner.labels, self._task, whole[begin:end], whole),
                    num_seeds=whole.numel(),
                )

    def _first_without_seeds(self) -> int:
        """Return the step from which on this rank has no seeds: the last one, or none."""
        last = self.num_seeds(self.num_batches - 1, 1)
        begin, end = part_of(last, self._rank, self._size)
        return self.num_batches - (begin == end)

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of seeds in the ``count`` whole mini-batches from ``start`` on."""
        schedule = self._loader.schedule
        return min(count * schedule.batch_size, schedule.seeds.numel() - start * schedule.batch_size)

    def stage_seconds(self) -> dict[str, float]:
        """Return this rank's seconds of sampling and gathering, summed over threads."""
        return dict(self._loader.stage_seconds)

    def explain(self) -> str:
        """Return nothing, as no device samples."""
        return ""

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
