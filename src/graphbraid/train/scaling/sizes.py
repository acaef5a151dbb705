"""Sizes of the ranks' shares of mini-batches, found by sampling every share of some batches.

Neighbourhoods of seeds overlap, and less so the fewer seeds a share has: the shares of a batch have more
nodes together than the batch. By how much depends on the graph, so they are sampled, not computed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from torch import Tensor

from graphbraid.loader.batches.batch_loader import BatchLoader
from graphbraid.sampling import MiniBatch
from graphbraid.sampling.schedule import SeedSchedule, part_of

MOST_BATCHES = 4
"""Whole batches of which every share is sampled, spread over the first epoch, if time permits."""


class Size(NamedTuple):
    """The size of a share."""

    nodes: int
    edges: int

    @property
    def work(self) -> int:
        """What a rank's time for it goes by: the rows it gathers and those it sums."""
        return self.nodes + self.edges


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareSizes:
    """The sizes of all shares of some whole batches, for one number of ranks."""

    num_ranks: int
    steps: tuple[int, ...]
    """Steps of the first epoch whose batches these are."""
    sizes: tuple[tuple[Size, ...], ...]
    """The shares of each of these batches, by rank."""

    @property
    def mean_nodes(self) -> float:
        """Nodes of a share."""
        return fmean(size.nodes for shares in self.sizes for size in shares)

    @property
    def mean_edges(self) -> float:
        """Edges of a share."""
        return fmean(size.edges for shares in self.sizes for size in shares)

    @property
    def most(self) -> Size:
        """Most nodes and most edges of a share."""
        every = [size for shares in self.sizes for size in shares]
        return Size(max(size.nodes for size in every), max(size.edges for size in every))

    @property
    def imbalance(self) -> float:
        """Work of a batch's largest share by that of a mean one, the mean over the batches."""
        works = [[size.work for size in shares] for shares in self.sizes]
        return fmean(max(shares) / fmean(shares) for shares in works)

    def heaviest(self, batch: int) -> int:
        """Return the rank with the largest share of a batch, by its index among :attr:`steps`."""
        works = [size.work for size in self.sizes[batch]]
        return works.index(max(works))

    def middle(self, batch: int) -> int:
        """Return the rank whose share of a batch is the median one."""
        works = [size.work for size in self.sizes[batch]]
        return sorted(range(len(works)), key=works.__getitem__)[len(works) // 2]


def whole_steps(schedule: SeedSchedule) -> int:
    """Return how many steps of an epoch have a whole batch; one if all seeds are fewer than that."""
    return max(1, schedule.seeds.numel() // schedule.batch_size)


def part_at(schedule: SeedSchedule, epoch: int, step: int, rank: int, num_ranks: int) -> Tensor:
    """Return the positions of a rank's seeds of a step, as :class:`.SharedFeed` divides them."""
    positions = schedule.positions_of(epoch, step)
    begin, end = part_of(positions.numel(), rank, num_ranks)
    return positions[begin:end]


def share_at(loader: BatchLoader, step: int, rank: int, num_ranks: int) -> MiniBatch:
    """Return the batch of a rank's share of a step of the first epoch."""
    part = part_at(loader.schedule, 0, step, rank, num_ranks)
    with closing(loader.batches_of([part], 0, step)) as batches:
        return next(batches)


def shares_of(loader: BatchLoader, rank: int, num_ranks: int, epoch: int) -> Iterator[Tensor]:
    """Yield the positions of a rank's shares of an epoch's whole batches, in order."""
    for step in range(whole_steps(loader.schedule)):
        yield part_at(loader.schedule, epoch, step, rank, num_ranks)


def sampled_sizes(loader: BatchLoader, counts: Sequence[int], *, seconds: float) -> list[ShareSizes]:
    """Sample every share of some whole batches.

    Args:
        loader: loader of the whole batches, which need not gather features.
        counts: numbers of ranks, none larger than a batch.
        seconds: for each of them, after which no other batch is begun; the first one is sampled in any case.
    """
    found = []
    whole = whole_steps(loader.schedule)
    wanted = min(MOST_BATCHES, whole)
    for num_ranks in counts:
        steps: list[int] = []
        sizes: list[tuple[Size, ...]] = []
        until = time.perf_counter() + seconds
        while len(steps) < wanted and (not steps or time.perf_counter() < until):
            step = whole * len(steps) // wanted
            sizes.append(tuple(_size(loader, step, rank, num_ranks) for rank in range(num_ranks)))
            steps.append(step)
        found.append(ShareSizes(num_ranks=num_ranks, steps=tuple(steps), sizes=tuple(sizes)))
    return found


def _size(loader: BatchLoader, step: int, rank: int, num_ranks: int) -> Size:
    batch = share_at(loader, step, rank, num_ranks)
    return Size(batch.num_nodes, batch.num_edges)


__all__ = [
    "ShareSizes",
    "Size",
    "part_at",
    "sampled_sizes",
    "share_at",
    "shares_of",
    "whole_steps",
]
