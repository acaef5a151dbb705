"""Memory of a program, measured more than once where the first time it seems too much."""

from collections.abc import Callable


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
