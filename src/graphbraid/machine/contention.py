"""OtherPrograms: how much of the cores others had while something was measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

LEAST_SECONDS = 0.5
"""In less the system's clock, which counts hundredths, says little."""
MOST_OTHERS = 0.1
"""A measurement is believed if other programs had no more than this share of the cores."""


def is_disturbed(others: float | None) -> bool:
    """Whether other programs had too large a share of the cores for a measurement to be believed."""
    return others is not None and others > MOST_OTHERS


class OtherPrograms:
    """What else runs on the cores that this process may use, from now on; Linux's ``/proc/stat`` says it.

    Args:
        root: where ``proc`` is found; tests hand in another.
    """

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._stat = root / "proc/stat"
        self._began, self._own = time.perf_counter(), time.process_time()
        self._busy = self._busy_seconds()

    def share(self) -> float | None:
        """Their share of these cores' time so far, from 0 to 1; None where it is not known or too early."""
        seconds, own, busy = time.perf_counter() - self._began, time.process_time(), self._busy_seconds()
        if seconds < LEAST_SECONDS or busy is None or self._busy is None:
            return None
        others = (busy[0] - self._busy[0]) - (own - self._own)
        return min(1.0, max(0.0, others / (busy[1] * seconds)))

    def _busy_seconds(self) -> tuple[float, int] | None:
        """Seconds that the usable cores were not idle since the system began, and how many they are."""
        try:
            lines = [line.split() for line in self._stat.read_text(encoding="ascii").splitlines()]
            per_second = os.sysconf("SC_CLK_TCK")
            usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
            cores = [[int(ticks) for ticks in line[1:9]] for line in lines if line and line[0] in usable]
        except (OSError, ValueError, AttributeError):  # no such file, another form, another system
            return None
        if not cores or any(len(ticks) < 8 for ticks in cores):
            return None
        # user, nice, system, idle, waiting for a disk, interrupts (2), stolen by other machines
        busy = sum(sum(ticks) - ticks[3] - ticks[4] for ticks in cores)
        return busy / per_second, len(cores)
