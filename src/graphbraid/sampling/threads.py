"""What every compiled pipeline is: threads of one process that prepare mini-batches ahead of their use."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from graphbraid.arguments import MOST_THREADS, as_count
from graphbraid.sampling import rng
from graphbraid.sampling.schedule import SeedSchedule

MOST_AHEAD = 1 << 20
"""Largest number of mini-batches prepared ahead of their use."""
COUNTED = ("sample", "gather", "batches")
"""What pipelines count."""


def checked_threads(num_threads: int, depth: int, refill: int | None) -> dict[str, int]:
    """Return the options of a pipeline's threads.

    Args:
        num_threads: number of threads that prepare batches.
        depth: largest number of batches in preparation or waiting to be used.
        refill: once ``depth`` batches are ready, the threads rest until only this many are left. If None,
            they start the next batch as soon as there is room for one.

    Raises:
        ConfigError: a number is out of range.
    """
    num_threads = as_count(num_threads, "the number of sampling threads", least=1, most=MOST_THREADS)
    depth = as_count(depth, "the batches prepared ahead", least=1, most=MOST_AHEAD)
    refill = depth - 1 if refill is None else as_count(refill, "refill", most=depth)
    return {"num_threads": num_threads, "depth": depth, "refill": refill}


class NativeThreads(ABC):
    """Threads of this process that read arrays where they lie; made anew when either is no longer so.

    A fork leaves the threads in the parent process, and sending a tensor to another process moves its memory.
    """

    def __init__(self, kernels: Any) -> None:
        self._native = kernels
        self._process, self._places, self._pipeline = os.getpid(), self._places_now(), self._make()
        self._seconds_before = dict.fromkeys(COUNTED, 0.0)

    @abstractmethod
    def _make(self) -> Any:
        """Start the threads."""

    @abstractmethod
    def _arrays(self) -> Iterable[Tensor | None]:
        """Return the arrays that the threads read."""

    def _run_of(self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int) -> Any:
        """Start preparing the batches of the steps ``[first_step, last_step)``."""
        return self._native.Run(
            pipeline=self._own_pipeline(),
            seeds=schedule.seeds,
            batch_size=schedule.batch_size,
            shuffle=schedule.shuffle,
            seed=schedule.seed,
            epoch=epoch,
            first_step=first_step,
            last_step=last_step,
            part=schedule.part,
            num_parts=schedule.num_parts,
        )

    def _run_of_seeds(self, seeds: Tensor, seed: int, epoch: int, step: int, **limits: Any) -> Any:
        """Start preparing the batch of some seeds, at least one, with the random numbers of a step."""
        return self._native.Run(
            pipeline=self._own_pipeline(),
            seeds=seeds,
            batch_size=seeds.numel(),
            shuffle=False,
            seed=rng.seed_with_key(seed, epoch, step),
            epoch=0,
            first_step=0,
            last_step=1,
            **limits,
        )

    def _own_pipeline(self) -> Any:
        if (self._process, self._places) != (os.getpid(), self._places_now()):
            if self._process == os.getpid():
                self._seconds_before = self.stage_seconds()
            self._process, self._places, self._pipeline = os.getpid(), self._places_now(), self._make()
        return self._pipeline

    def _places_now(self) -> tuple[int, ...]:
        return tuple(array.data_ptr() for array in self._arrays() if array is not None)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds spent in each stage since the start, summed over threads."""
        if self._process != os.getpid():
            return dict.fromkeys(COUNTED, 0.0)
        now = zip(COUNTED, self._pipeline.stage_seconds(), strict=True)
        return {name: self._seconds_before[name] + float(seconds) for name, seconds in now}

    def busy_threads(self) -> int:
        """Return the number of threads that are preparing batches or are about to."""
        return 0 if self._process != os.getpid() else int(self._pipeline.busy_threads())
