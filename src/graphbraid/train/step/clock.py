"""Clock: adds up the seconds of each stage of an epoch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

STAGES = ("wait", "sample", "gather", "forward", "backward", "evaluate", "checkpoint", "epoch")
"""Names of the stages. ``wait`` is the time in which the trainer waited for a batch. ``sample`` and
``gather`` are the work of the sampling threads, which runs beside the model (so they may add up to more than
the epoch). ``forward`` includes the loss, ``backward`` the optimizer's step. ``checkpoint`` is the writing of
checkpoints since the end of the epoch before, with the one that ended it. ``epoch`` is wall-clock time from
start to end, without that one."""


class Clock:
    """A clock that adds up the seconds per stage; :meth:`lap` reads and resets them."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the duration of the ``with`` block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - start

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add seconds measured elsewhere, such as by a loader."""
        for stage, value in seconds.items():
            if stage in self._seconds:
                self._seconds[stage] += value

    def lap(self) -> dict[str, float]:
        """Return the seconds per stage since the last lap, and start a new one."""
        now = time.perf_counter()
        self._seconds["epoch"] = now - self._started
        lap, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        self._started = now
        return lap

    def restart(self, *kept: str) -> None:
        """Start a new lap, into which the seconds of the stages ``kept`` since the last one go along."""
        lap = self.lap()
        self.add({stage: lap[stage] for stage in kept})
