"""Clock: seconds per stage of an epoch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

STAGES = ("wait", "sample", "gather", "forward", "backward", "evaluate", "checkpoint", "epoch")
"""``wait``: the trainer waited for a batch. ``sample``, ``gather``: work of the sampling threads, beside
the model's (so they may sum to more than the epoch). ``forward`` includes the loss, ``backward`` the
optimizer's step.
``epoch``: from its start to its end on the wall."""


class Clock:
    """Adds up seconds per stage; :meth:`lap` reads and resets them."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the body's duration to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - start

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add seconds measured elsewhere, such as a loader's."""
        for stage, value in seconds.items():
            if stage in self._seconds:
                self._seconds[stage] += value

    def lap(self) -> dict[str, float]:
        """Seconds per stage since the last lap."""
        now = time.perf_counter()
        self._seconds["epoch"] = now - self._started
        lap, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        self._started = now
        return lap
