"""Times: how long a rank takes for its shares of a run's mini-batches, for one number of ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphbraid.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Gradients whose sum over the ranks is one message."""

    nbytes: int
    ready: float
    """When all of them are there: the part of the pass, forward and backward, that is over then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareTimes:
    """How long a rank takes for its share of a whole batch.

    Raises:
        ConfigError: a number is negative or not finite, or buckets are not in the order in which they go off.
    """

    num_ranks: int
    prepare_seconds: float
    """Time between two shares that the preparing threads have ready, at their fastest beside a step."""
    first_seconds: float
    """Time from the start of an epoch until its first share is ready."""
    pass_seconds: float
    """Forward and backward of a mean share, with nothing beside it."""
    slowest_seconds: float
    """The same of the rank that takes longest, in the mean over the steps; the others wait for it."""
    hindered_seconds: float
    """How much longer a step takes while a later share is prepared."""
    update_seconds: float
    """What comes once all sums have arrived: clipping and the optimizer, and of several ranks also copying
    gradients for the sums, adding them up and copying these back."""
    buckets: tuple[Bucket, ...]
    """Messages by ascending :attr:`Bucket.ready`."""
    tail_bytes: int
    """Bytes of the last sum of a step: the loss, and which gradients there are."""

    def __post_init__(self) -> None:
        for name in ("prepare", "first", "pass", "slowest", "hindered", "update"):
            seconds = getattr(self, f"{name}_seconds")
            if not (math.isfinite(seconds) and seconds >= 0):
                raise ConfigError(f"{name}_seconds must be finite and not negative; got {seconds!r}")
        if self.slowest_seconds < self.pass_seconds:
            raise ConfigError(
                f"slowest_seconds must be at least pass_seconds={self.pass_seconds}; "
                f"got {self.slowest_seconds}"
            )
        ready = [0.0, *(bucket.ready for bucket in self.buckets), 1.0]
        if ready != sorted(ready):
            raise ConfigError(f"buckets must be ready from 0 to 1, in their order; got {ready[1:-1]}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationTimes:
    """How long the ranks take to validate together."""

    outputs_seconds: float
    """Outputs of the largest part of the nodes that a rank has."""
    score_seconds: float
    """Loss and metrics of all nodes, which the first rank computes."""
    row_bytes: int
    """Bytes of the outputs of all nodes."""
    every: int = 1
    """Epochs from one validation to the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochSize:
    """How many steps an epoch has."""

    num_seeds: int
    batch_size: int
    """Seeds of a whole batch, at most ``num_seeds``."""
    accumulate: int = 1
    """Batches in a step."""

    def steps(self) -> list[tuple[int, float]]:
        """Return how many steps there are of how many batches each; fewer seeds are a part of a batch."""
        whole, seeds = divmod(self.num_seeds, self.batch_size)
        full, left = divmod(whole, self.accumulate)
        last = left + seeds / self.batch_size
        return [
            (count, batches) for count, batches in ((full, self.accumulate), (1, last)) if count * batches
        ]


__all__ = ["Bucket", "EpochSize", "ShareTimes", "ValidationTimes"]
