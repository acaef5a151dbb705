"""How long ranks wait for the one that is latest, which one that is changing from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


def expected_largest(values: Sequence[float], count: int) -> float:
    """Return the mean over all choices of ``count`` of the values of the largest one chosen.

    That is the expected maximum of as many independent draws from where the values come from, without bias;
    of more draws than there are values it is taken to be the largest value, which is too little.

    Args:
        values: at least one.
        count: at least 1.
    """
    ordered = sorted(values)
    drawn = min(count, len(ordered))
    chance, expected = drawn / len(ordered), 0.0  # that the largest value is chosen, so is the largest chosen
    for place in range(len(ordered), drawn - 1, -1):
        expected += chance * ordered[place - 1]
        chance *= (place - drawn) / max(1, place - 1)
    return expected


def late_seconds(steps: Sequence[float], num_ranks: int, accumulate: int = 1) -> float:
    """Return how much longer than in the mean a batch takes on the latest of some ranks.

    Ranks meet at the sums of a step, and there alone: of the batches whose gradients it adds up, those that
    took long and those that did not even out.

    Args:
        steps: seconds of one rank's batches, in their order, at least one.
        num_ranks: ranks that wait for each other, each of which is late by itself.
        accumulate: batches between two meetings.
    """
    size = min(accumulate, len(steps))
    means = [fmean(steps[first : first + size]) for first in range(len(steps) - size + 1)]
    return max(0.0, expected_largest(means, num_ranks) - fmean(means))


__all__ = ["expected_largest", "late_seconds"]
