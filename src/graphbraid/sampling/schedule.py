"""SeedSchedule: the seeds of each step of each epoch, computed without state."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.arguments import MOST_COUNT, as_count, as_flag, check_tensor
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.scans import first_below
from graphbraid.sampling import rng

_ROUNDS = 4


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SeedSchedule:
    """A division of the seeds of each epoch into steps.

    The shuffle is a keyed permutation, so the seeds of any step can be computed directly.
    """

    seeds: Tensor
    """Node ids, ``(num_seeds,)`` int64; a node may occur more than once."""
    batch_size: int
    """Number of seeds per step; the last step has those that remain."""
    shuffle: bool = False
    """Whether to permute the seeds anew in each epoch."""
    drop_last: bool = False
    """Whether to leave out a last step that is not full."""
    seed: int = 0
    """Random seed of the shuffle and of every draw."""
    part: int = 0
    """Index of the part of each step's seeds that this schedule gives, below ``num_parts``."""
    num_parts: int = 1
    """Number of contiguous parts of each step's seeds, for ranks that share batches. A seed keeps the random
    numbers that it has in the whole batch."""
    reach: int | None = None
    """With several parts: samplers sample the whole step and keep the nodes within so many edges of the
    part's seeds (:mod:`graphbraid.sampling.share`). If None, they sample for these seeds alone, which gives
    the same draws in layout ``blocks``."""

    def __post_init__(self) -> None:
        seeds = check_tensor(self.seeds, "seeds", ndim=1)
        if seeds.dtype != torch.int64:
            raise DataError(f"seeds must be int64 node ids; got {seeds.dtype}")
        lowest = first_below(seeds, 0)
        if lowest >= 0:
            raise DataError(f"seeds must be node ids from 0; seeds[{lowest}] is {int(seeds[lowest])}")
        for name, least, most in (("batch_size", 1, MOST_COUNT), ("seed", 0, (1 << 63) - 1)):
            object.__setattr__(self, name, as_count(getattr(self, name), name, least=least, most=most))
        num_parts = as_count(self.num_parts, "num_parts", least=1, most=min(self.batch_size, MOST_PARTS))
        object.__setattr__(self, "num_parts", num_parts)
        object.__setattr__(self, "part", as_count(self.part, "part", most=num_parts - 1))
        for name in ("shuffle", "drop_last"):
            object.__setattr__(self, name, as_flag(getattr(self, name), name))
        if self.reach is not None:
            object.__setattr__(self, "reach", as_count(self.reach, "reach", least=1, most=MOST_REACH))
        if self.drop_last and 0 < self.seeds.numel() < self.batch_size:
            raise ConfigError(
                f"drop_last leaves no batch: {self.seeds.numel()} seeds are fewer than "
                f"batch_size={self.batch_size}"
            )

    @property
    def num_steps(self) -> int:
        """Number of steps in an epoch in which this part has seeds; a short last step may give it none."""
        num_steps = self._num_whole_steps
        if not num_steps:
            return 0
        begin, end = self._bounds_of(num_steps - 1)
        return num_steps - (begin == end)

    @property
    def _num_whole_steps(self) -> int:
        full, rest = divmod(self.seeds.numel(), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    @property
    def num_used(self) -> int:
        """Number of seeds that this part has in an epoch."""
        num_steps = self._num_whole_steps
        if not num_steps:
            return 0
        first, last = self._bounds_of(0), self._bounds_of(num_steps - 1)
        return (num_steps - 1) * (first[1] - first[0]) + last[1] - last[0]

    @property
    def most_seeds(self) -> int:
        """Largest number of seeds that this part has in a step."""
        begin, end = part_of(min(self.batch_size, self.seeds.numel()), self.part, self.num_parts)
        return end - begin

    @property
    def whole(self) -> SeedSchedule:
        """The schedule of all parts together."""
        return self if self.num_parts == 1 else dataclasses.replace(self, part=0, num_parts=1, reach=None)

    @property
    def sampled(self) -> SeedSchedule:
        """The schedule of the seeds that samplers draw for: with a reach, those of all parts."""
        return self if self.reach is None else self.whole

    def own_of(self, step: int) -> Tensor:
        """Return the positions of this part's seeds among those of the whole step, ``(num_own,)`` int64."""
        begin, end = self.bounds_of(step)
        return torch.arange(begin, end) - step * self.batch_size

    def bounds_of(self, step: int) -> tuple[int, int]:
        """Return begin and end of a step's seeds in the order of an epoch.

        Raises:
            ConfigError: there is no such step.
        """
        return self._bounds_of(as_count(step, "step", most=max(self.num_steps - 1, 0)))

    def _bounds_of(self, step: int) -> tuple[int, int]:
        first = step * self.batch_size
        count = min(self.batch_size, self.seeds.numel() - first)
        begin, end = part_of(count, self.part, self.num_parts)
        return first + begin, first + end

    def positions_of(self, epoch: int, step: int) -> Tensor:
        """Return the positions in ``seeds`` of a step's seeds, ``(batch,)`` int64.

        Raises:
            ConfigError: there is no such epoch or step.
        """
        epoch = as_epoch(epoch)
        at = np.arange(*self.bounds_of(step))
        if self.shuffle:
            at = permuted(at, self.seeds.numel(), rng.shuffle_key(self.seed, epoch))
        return torch.from_numpy(at)

    def seeds_of(self, epoch: int, step: int) -> Tensor:
        """Return the seed nodes of a step, ``(batch,)`` int64."""
        return self.seeds[self.positions_of(epoch, step)]


def part_of(count: int, part: int, num_parts: int) -> tuple[int, int]:
    """Return begin and end of a contiguous part of ``count`` items; sizes differ by one at most.

    Twin of ``csrc/pipeline/schedule.h``.
    """
    return count * part // num_parts, count * (part + 1) // num_parts


MOST_PARTS = 1 << 16
"""Largest number of parts that steps are cut into."""
MOST_REACH = 1 << 10
"""Largest number of hops that a part keeps of a whole step."""
MOST_EPOCHS = 1 << 31
"""Largest number of epochs under one random seed; beyond it, keys of different steps would collide."""


def as_epoch(epoch: Any) -> int:
    """Return ``epoch`` as a valid epoch number.

    Raises:
        ConfigError: it is not an integer in ``[0, MOST_EPOCHS)``.
    """
    return as_count(epoch, "epoch", most=MOST_EPOCHS - 1)


def permuted(positions: npt.NDArray[np.int64], n: int, key: int) -> npt.NDArray[np.int64]:
    """Return the images of ``positions`` under the keyed permutation of ``[0, n)``.

    The permutation is a Feistel network over the next even number of bits, applied again to every image
    outside ``[0, n)`` (cycle walking). Twin of ``csrc/pipeline/schedule.h``.
    """
    bits = (n - 1).bit_length() if n > 1 else 1
    half = np.uint64((bits + 1) // 2)
    values = positions.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = _feistel(values[outside], half, key)
        outside = outside[values[outside] >= n]
    return values.astype(np.int64)


def _feistel(x: rng.U64, half: np.uint64, key: int) -> rng.U64:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = x >> half, x & mask
    for round_ in range(_ROUNDS):
        mixed = rng.mix_array(np.uint64(key) ^ rng.mix_array(right + np.uint64(round_ << 56))) & mask
        left, right = right, left ^ mixed
    return (left << half) | right
