"""Dispatcher: how many of an epoch's batches the CPU prepares, from bounds and from a schedule's feedback."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from graphbraid.collective.plan.times import StageTimes

Resource = Literal["cpu", "link", "device"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochBound:
    """No schedule of an epoch is faster."""

    seconds: float
    num_cpu: int
    """Batches of route 0 with which the bound is least."""
    limit: Resource


def epoch_bound(times: StageTimes, num_batches: int) -> EpochBound:
    """The least seconds any schedule of an epoch takes, with the start and end that none can avoid.

    For stages that always take their mean; see :func:`bound_with` for why it holds.
    """
    counts: Iterable[int] = range(num_batches + 1) if times.uva is not None else (num_batches,)
    best = min(counts, key=lambda m: (max(bound_with(times, num_batches, m).values()), -m))
    ends = bound_with(times, num_batches, best)
    return EpochBound(seconds=max(ends.values()), num_cpu=best, limit=_most(ends))


def bound_with(times: StageTimes, num_batches: int, num_cpu: int) -> dict[Resource, float]:
    """Earliest end of an epoch by what each resource must do, with ``num_cpu`` batches on route 0.

    Device: it does all models and the GPU's batching, one at a time. If every batch comes from the CPU it
    has nothing to do before the first was prepared and copied.
    Link: one transfer at a time; after the last, that batch's model still runs. If all are copies, the first
    waits for a batch.
    CPU: within the first k rounds of ``cpu`` seconds at most k·workers batches are finished, so the others,
    m - k·workers of them, are ready at (k+1)·cpu at the earliest; they still have to be copied one at a time
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


@dataclass(kw_only=True, slots=True)
class Dispatcher:
    """Moves batches between the routes until a schedule's feedback says that neither side waits.

    The paper moves one batch per overlap and round; here the first move is large and halves whenever the
    feedback turns. No count is tried twice, so it ends.
    """

    num_batches: int
    num_cpu: int
    """The count to try next."""
    step: int
    """Batches the next move takes."""
    tried: dict[int, float] = field(default_factory=dict)
    """Seconds of each count tried."""
    _direction: int = 0

    def tune(self, simulate: Callable[[int], tuple[float, int]], most_tries: int = 24) -> int:
        """The best count found.

        Args:
            simulate: seconds of the epoch with a count of route 0, and the feedback: -1 if the CPU was
                overloaded, 1 if it had time left, 0 for neither.
            most_tries: schedules simulated, at most.
        """
        while self.num_cpu not in self.tried and len(self.tried) < most_tries:
            seconds, feedback = simulate(self.num_cpu)
            self.tried[self.num_cpu] = seconds
            self._move(feedback)
        return min(self.tried, key=lambda m: (self.tried[m], m))

    def _move(self, feedback: int) -> None:
        if feedback == 0:
            return
        if self._direction and feedback != self._direction:
            self.step //= 2
        self._direction = feedback
        while self.step >= 1:
            target = min(max(self.num_cpu + feedback * self.step, 0), self.num_batches)
            if target not in self.tried:
                self.num_cpu = target
                return
            self.step //= 2


def _uva(times: StageTimes) -> float:
    return 0.0 if times.uva is None else times.uva.seconds


def _most(load: dict[Resource, float]) -> Resource:
    return max(load, key=lambda resource: load[resource])
