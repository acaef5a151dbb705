"""Repeats: a time that was tried several times, and how far the tries lay apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

REPEATS = 3
"""Tries of what is no step, at most."""


class Repeats(NamedTuple):
    """The time of something that was tried once or several times."""

    seconds: float
    """The median of the tries."""
    spread: float | None
    """Seconds by which the farthest of them lies off; None of a single try, which says nothing about it."""


def of_tries(seconds: Sequence[float]) -> Repeats:
    """Return what tries, one at least, say together."""
    middle = statistics.median(seconds)
    if len(seconds) == 1:
        return Repeats(middle, None)
    return Repeats(middle, max(abs(taken - middle) for taken in seconds))


def repeated(run: Callable[[], float], *, most: float) -> Repeats:
    """Try something that returns its seconds, several times unless it takes longer than ``most``.

    The first try is a warm-up. One that is long counts itself, as another would cost as much again.
    """
    first = run()
    if first >= most / 2:
        return of_tries([first])
    tries = [run()]
    while len(tries) < REPEATS and sum(tries) + tries[-1] <= most:
        tries.append(run())
    return of_tries(tries)


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
