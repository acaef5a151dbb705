"""Routes of batches, the lower bound of an epoch, and the search for the number of batches on each route."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from graphbraid.collective.plan.times import StageTimes

CPU, GPU = 0, 1
"""The two routes: 0 prepares on the CPU and copies, 1 prepares on the device (MorphGL, section 4.1)."""

Routes = bytes
"""Route of each step, one byte per step."""


def spread_routes(num_batches: int, num_cpu: int) -> Routes:
    """Return routes with ``num_cpu`` steps of route 0 spread evenly: ``floor(k·share)`` of the first k."""
    k = np.arange(num_batches + 1) * num_cpu // max(num_batches, 1)
    return bytes(np.where(np.diff(k) > 0, CPU, GPU).astype(np.uint8))


Resource = Literal["cpu", "link", "device"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochBound:
    """A lower bound on the time of an epoch under any schedule."""

    seconds: float
    num_cpu: int
    """Number of batches on route 0 for which the bound is least."""
    limit: Resource
    """Resource that determines the bound."""


def epoch_bound(times: StageTimes, num_batches: int) -> EpochBound:
    """Return a lower bound on the epoch's time, including the start and end that no schedule can avoid.

    It holds for stages that always take their mean time; :func:`bound_with` gives the argument.
    """
    counts: Iterable[int] = range(num_batches + 1) if times.uva is not None else (num_batches,)
    best = min(counts, key=lambda m: (max(bound_with(times, num_batches, m).values()), -m))
    ends = bound_with(times, num_batches, best)
    return EpochBound(seconds=max(ends.values()), num_cpu=best, limit=_most(ends))


def bound_with(times: StageTimes, num_batches: int, num_cpu: int) -> dict[Resource, float]:
    """Return the earliest end of an epoch by the work of each resource, with ``num_cpu`` batches on route 0.

    Device: it runs every model step and its own batching, one at a time. If every batch comes from the CPU,
    it has nothing to do before the first batch has been prepared and copied.
    Link: it carries one transfer at a time; after the last one, that batch's model step still runs. If all
    transfers are copies, the first one waits for a batch.
    CPU: within the first k rounds of ``cpu`` seconds at most k·workers batches are finished, so the other
    m - k·workers batches are ready at (k+1)·cpu at the earliest; they still have to be copied one at a time
    and trained one at a time. The expression is linear in k, so k = 0 and the last round suffice.
    """
    cpu, dma, model, uva = times.cpu.seconds, times.dma.seconds, times.model.seconds, _uva(times)
    m, rest = num_cpu, num_batches - num_cpu
    ends: dict[Resource, float] = {
        "cpu": 0.0,
        "link": m * dma + rest * uva + model + (cpu if rest == 0 else 0.0),
        "device": num_batches * model + rest * uva + (cpu + dma if rest == 0 else 0.0),
    }
    if m:
        rounds = -(-m // times.workers)
        for k in (0, rounds - 1):
            late = m - k * times.workers
            ends["cpu"] = max(ends["cpu"], (k + 1) * cpu + max(late * dma + model, dma + late * model))
    return ends


def balanced_split(
    simulate: Callable[[int], tuple[float, int]],
    num_batches: int,
    num_cpu: int,
    step: int,
    *,
    most_tries: int = 24,
) -> int:
    """Return the best number of batches on route 0: move batches until neither side waits in the schedule.

    The paper (MorphGL) moves one batch per overlap and round. Here the first move is large, and moves halve
    whenever the feedback changes sign. No count is tried twice, so the search ends.

    Args:
        simulate: function of the number of batches on route 0 that returns the seconds of the epoch and
            a feedback of -1 if the CPU was overloaded, 1 if it had time left, and 0 for neither.
        num_batches: number of steps in the epoch.
        num_cpu: number of batches on route 0 to try first.
        step: number of batches in the first move.
        most_tries: largest number of schedules to simulate.
    """
    tried: dict[int, float] = {}
    direction = 0
    while num_cpu not in tried and len(tried) < most_tries:
        tried[num_cpu], feedback = simulate(num_cpu)
        if direction and feedback not in (0, direction):
            step //= 2
        direction = feedback or direction
        while feedback and step >= 1:
            target = min(max(num_cpu + feedback * step, 0), num_batches)
            if target not in tried:
                num_cpu = target
                break
            step //= 2
    return min(tried, key=lambda m: (tried[m], m))


def _uva(times: StageTimes) -> float:
    return 0.0 if times.uva is None else times.uva.seconds


def _most(load: dict[Resource, float]) -> Resource:
    return max(load, key=lambda resource: load[resource])
