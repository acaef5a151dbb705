"""Batches at given positions in a loader's inputs: begun a few ahead of their use, finished in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Protocol, TypeVar

from torch import Tensor

from graphbraid.sampling.batch_seeds import BatchSeeds, SeedSource
from graphbraid.sampling.constraints import Constraints
from graphbraid.sampling.schedule import SeedSchedule

Made_co = TypeVar("Made_co", covariant=True)
Batch = TypeVar("Batch")


class Begins(Protocol[Made_co]):
    """A pipeline that begins single batches, of a graph with types or without."""

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, constraints: Constraints | None = None
    ) -> Iterator[Made_co]:
        """Begin the batch of ``seeds`` at a step, and return an iterator that yields this one batch."""
        ...


def batches_at(
    positions: Iterable[Tensor],
    pipeline: Begins[Made_co],
    schedule: SeedSchedule,
    given: SeedSource | None,
    *,
    epoch: int,
    first_step: int,
    depth: int,
    finish: Callable[[Tensor, BatchSeeds, Iterator[Made_co]], Batch],
) -> Generator[Batch]:
    """Yield a batch for each of ``positions``, in their order; the n-th draws as ``first_step + n`` does.

    Args:
        positions: int64 positions in the inputs, for each batch; read up to ``depth`` batches ahead.
        pipeline: what prepares the batches.
        schedule: the seeds, and the random seed of the draws.
        given: inputs that are more than nodes. If None, the nodes of the schedule.
        epoch: index of the epoch.
        first_step: step of the first batch.
        depth: number of batches that are begun ahead.
        finish: makes a batch of its positions, its seeds and what :meth:`Begins.begin` returned.
    """
    begun: deque[tuple[Tensor, BatchSeeds, Iterator[Made_co]]] = deque()
    for step, part in enumerate(positions, start=first_step):
        seeds = seeds_of_step(part, schedule, given, epoch, step)
        prepared = pipeline.begin(seeds.nodes, schedule.seed, epoch, step, seeds.constraints)
        begun.append((part, seeds, prepared))
        if len(begun) > depth:
            yield finish(*begun.popleft())
    while begun:
        yield finish(*begun.popleft())


def seeds_of_step(
    positions: Tensor, schedule: SeedSchedule, given: SeedSource | None, epoch: int, step: int
) -> BatchSeeds:
    """Return what a step's batch starts from: the inputs at ``positions``, ``(num,)`` int64."""
    if given is None:
        return BatchSeeds(nodes=schedule.seeds[positions])
    return given.seeds_of(positions, epoch, step)
