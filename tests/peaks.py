"""Memory of a program, measured more than once where the first time it seems too much."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import warm


def held(name: str) -> int:
    """Return bytes of this process: 'VmRSS' now, 'VmHWM' at most; getrusage's peak is inherited."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def rise(run: Callable[[], object]) -> int:
    """Return by how many bytes the peak of a call is above what this process held before it."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts from here
    before = held("VmRSS")
    run()
    return held("VmHWM") - before


def printed(program: str, *arguments: object, **options: Any) -> float:
    """Return the number that a program prints, in a process of its own."""
    done = warm.run(["-c", program, *arguments], **options)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def least_peak(measure: Callable[[], float], enough: float, most_runs: int = 3) -> float:
    """Return the first of some measurements that is at most ``enough``, or the least of all of them.

    What a program itself needs is in each of its runs. What comes on top differs: memory that the C library
    keeps of threads, pages that the system maps ahead, and a count of pages that lags behind by some.
    """
    found: list[float] = []
    while len(found) < most_runs:
        found.append(measure())
        if found[-1] <= enough:
            break
    return min(found)
