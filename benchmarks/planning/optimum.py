"""The true optimum of small epochs by exhaustive search: what the scheduler is measured against."""

from __future__ import annotations

import math

from graphbraid.collective.plan.simulator import bound_with
from graphbraid.collective.plan.times import StageTimes


def optimal_seconds(times: StageTimes, num_batches: int) -> float:
    """The shortest epoch over all routes, orders and start times, with buffers without limit.

    Batches are alike, so an order is a word of copies, device batchings and trainings. For a regular measure
    such as the makespan there is an optimal semi-active schedule: every stage starts as soon as the order on
    its resources allows. The search walks all interleavings of the three kinds and leaves a branch when what
    it still must do cannot beat the best; for about ten batches.
    """
    counts = range(num_batches + 1) if times.uva is not None else [num_batches]
    best = math.inf
    for num_cpu in sorted(counts, key=lambda m: max(bound_with(times, num_batches, m).values())):
        best = _Walk(times, num_batches, num_cpu, best).run()
    return best


class _Walk:
    """Depth first over the orders of one count of CPU batches."""

    def __init__(self, times: StageTimes, num_batches: int, num_cpu: int, best: float) -> None:
        self._n, self._m, self._best = num_batches, num_cpu, best
        self._dma, self._model = times.dma.seconds, times.model.seconds
        self._uva = 0.0 if times.uva is None else times.uva.seconds
        # CPU batches are alike and nothing holds them back: all start as early as they can.
        self._ready = [(i // times.workers + 1) * times.cpu.seconds for i in range(num_cpu)]
        self._seen: dict[tuple[int, int, int], list[tuple[float, ...]]] = {}

    def run(self) -> float:
        self._walk(0, 0, 0, 0.0, 0.0, ())
        return self._best

    def _walk(
        self, copied: int, batched: int, trained: int, link: float, device: float, waiting: tuple[float, ...]
    ) -> None:
        """``link`` and ``device`` are when each is free; ``waiting`` when each untrained batch arrived."""
        if trained == self._n:
            self._best = min(self._best, device)
            return
        copies, batchings = self._m - copied, self._n - self._m - batched
        device_left = (self._n - trained) * self._model + batchings * self._uva
        link_left = copies * self._dma + batchings * self._uva
        at_least = max(device + device_left, link + link_left + (self._model if copies + batchings else 0.0))
        if at_least >= self._best or self._is_dominated(copied, batched, trained, link, device, waiting):
            return
        if waiting:
            end = max(device, waiting[0]) + self._model
            self._walk(copied, batched, trained + 1, link, end, waiting[1:])
        if copies:
            end = max(link, self._ready[copied]) + self._dma
            self._walk(copied + 1, batched, trained, end, device, (*waiting, end))
        if batchings:
            end = max(link, device) + self._uva
            self._walk(copied, batched + 1, trained, end, end, (*waiting, end))

    def _is_dominated(
        self, copied: int, batched: int, trained: int, link: float, device: float, waiting: tuple[float, ...]
    ) -> bool:
        """Whether the same work was done before with everything free at least as early."""
        state = (link, device, *waiting)
        known = self._seen.setdefault((copied, batched, trained), [])
        if any(all(a <= b for a, b in zip(other, state, strict=True)) for other in known):
            return True
        known.append(state)
        return False
