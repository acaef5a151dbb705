"""OtherPrograms: the share of the cores that other programs used while something was measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

LEAST_SECONDS = 0.5
"""Shortest time that gives an answer: the system's clock counts hundredths of a second."""
MOST_OTHERS = 0.1
"""Largest share of the cores that other programs may use for a measurement to be trusted."""


def is_disturbed(others: float | None) -> bool:
    """Return whether other programs used too large a share of the cores for a measurement to be trusted."""
    return others is not None and others > MOST_OTHERS


class OtherPrograms:
    """The load of other programs, from now on, on the cores this process may use; read from ``/proc/stat``.

    Args:
        root: folder that holds ``proc``; tests pass another.
    """

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._stat = root / "proc/stat"
        self._began, self._own = time.perf_counter(), time.process_time()
        self._busy = self._busy_seconds()

    def share(self) -> float | None:
        """Return their share of these cores' time so far, from 0 to 1, or None if unknown or too early."""
        seconds, own, busy = time.perf_counter() - self._began, time.process_time(), self._busy_seconds()
        if seconds < LEAST_SECONDS or busy is None or self._busy is None:
            return None
        others = (busy[0] - self._busy[0]) - (own - self._own)
        return min(1.0, max(0.0, others / (busy[1] * seconds)))

    def _busy_seconds(self) -> tuple[float, int] | None:
        """Return the seconds the usable cores were busy since the system started, and their number."""
        try:
            lines = [line.split() for line in self._stat.read_text(encoding="ascii").splitlines()]
            per_second = os.sysconf("SC_CLK_TCK")
            usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
            cores = [[int(ticks) for ticks in line[1:9]] for line in lines if line and line[0] in usable]
        except (OSError, ValueError, AttributeError):  # no such file, an unknown format, or not Linux
            return None
        if not cores or any(len(ticks) < 8 for ticks in cores):
            return None
        # user, nice, system, idle, iowait, irq, softirq, steal
        busy = sum(sum(ticks) - ticks[3] - ticks[4] for ticks in cores)
        return busy / per_second, len(cores)
