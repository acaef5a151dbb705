"""SeedSchedule: which seeds a step trains on, without state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.sampling import rng

_ROUNDS = 4


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SeedSchedule:
    """Splits the seeds of each epoch into steps.

    The shuffle is a keyed permutation, so any step can be asked for.
    """

    seeds: Tensor
    """``(num_seeds,)`` int64 node ids; a node may stand in it more than once."""
    batch_size: int
    """Seeds per step; the last step has the rest."""
    shuffle: bool = False
    """Permute the seeds anew in each epoch."""
    drop_last: bool = False
    """Leave out a last step that is not full."""
    seed: int = 0
    """Of the shuffle and of every draw."""

    def __post_init__(self) -> None:
        if not hasattr(self.batch_size, "__index__"):
            raise ConfigError(f"batch_size must be a whole number; got {self.batch_size!r}")
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1; got {self.batch_size}")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed must be in [0, 2**63); got {self.seed}")
        if self.drop_last and self.seeds.numel() < self.batch_size:
            raise ConfigError(
                f"drop_last leaves no batch: {self.seeds.numel()} seeds are fewer than "
                f"batch_size={self.batch_size}"
            )

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        full, rest = divmod(self.seeds.numel(), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def positions_of(self, epoch: int, step: int) -> Tensor:
        """Where in ``seeds`` a step's seeds stand: ``(batch,)`` int64."""
        begin = step * self.batch_size
        at = np.arange(begin, min(begin + self.batch_size, self.seeds.numel()))
        if self.shuffle:
            at = permuted(at, self.seeds.numel(), rng.shuffle_key(self.seed, epoch))
        return torch.from_numpy(at)

    def seeds_of(self, epoch: int, step: int) -> Tensor:
        """A step's seed nodes: ``(batch,)`` int64."""
        return self.seeds[self.positions_of(epoch, step)]


def permuted(positions: npt.NDArray[np.int64], n: int, key: int) -> npt.NDArray[np.int64]:
    """The images of ``positions`` under the keyed permutation of ``[0, n)``.

    A Feistel network over the next even number of bits, walked again from every image outside ``[0, n)``;
    twin of ``csrc/schedule.h``.
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
