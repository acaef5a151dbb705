"""Routes of batches, the lower bound of an epoch, and the simulator, which runs a schedule in virtual time.

The rules of the simulator are those that the executor follows with real threads:

- Steps are transferred in order and trained in order. Link and device do one thing at a time; batching on the
  device occupies both (MorphGL, Eq. 1 to 3).
- A worker starts the next step of route 0 as soon as one of ``cbs`` host buffers is free, and the buffer is
  held until the end of the copy. A transfer starts when one of ``gbs`` device buffers is free, and the buffer
  is held until the end of that step's training. Memory is therefore exactly ``cbs`` and ``gbs`` batches,
  which include the waiting batches that Eq. 4 bounds.
- When the device is free and could either prepare a batch or train, it fills its buffer first
  (``fill_first``), so that it has batches to train on while the next copies occupy the link.

Unlike in the paper's Algorithms 1 to 4, no phase waits for the previous one to end on every resource: such a
barrier would leave the link or the device idle for one batch per overlap.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from graphbraid.collective.plan.times import ZERO, StageTimes
from graphbraid.errors import ConfigError
from graphbraid.files.schema import check_numbers

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
    return EpochBound(seconds=max(ends.values()), num_cpu=best, limit=max(ends, key=ends.__getitem__))


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
    cpu, dma, model = times.cpu.seconds, times.dma.seconds, times.model.seconds
    uva, m, rest = (times.uva or ZERO).seconds, num_cpu, num_batches - num_cpu
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
    whenever the feedback changes sign. No count is tried twice, so the search ends. ``simulate`` gives the
    seconds of the epoch with so many batches on route 0, and a feedback: -1 if the CPU was overloaded, 1 if
    it had time left, 0 for neither. ``num_cpu`` is tried first, and ``step`` is the first move.
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


Stage = Literal["cpu", "dma", "uva", "model"]
_CPU, _DMA, _UVA, _MODEL = 0, 1, 2, 3
STAGES: tuple[Stage, ...] = ("cpu", "dma", "uva", "model")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSetting:
    """Buffers, workers and rules of a schedule."""

    cbs: int
    """Number of host buffers; each holds one batch."""
    gbs: int
    """Number of device buffers; each holds one batch."""
    workers: int
    """Number of threads that prepare batches on the CPU."""
    fill_first: bool = True
    """Whether a free device prepares a batch before it trains; if False, it trains first."""
    one_at_a_time: bool = False
    """Whether each step starts only after the previous one was trained."""

    def __post_init__(self) -> None:
        check_numbers(self, ("cbs", "gbs", "workers"), positive=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Durations:
    """Seconds of each stage for each step; entries for the route that a step does not take are not read."""

    cpu: Sequence[float]
    dma: Sequence[float]
    uva: Sequence[float]
    model: Sequence[float]

    @classmethod
    def constant(cls, times: StageTimes, num_batches: int) -> Durations:
        """Make durations in which every stage takes its mean time."""
        means = {name: (getattr(times, name) or ZERO).seconds for name in STAGES}
        return cls(**{name: [seconds] * num_batches for name, seconds in means.items()})


class StageRun(NamedTuple):
    """One stage of one step, from ``start`` to ``end`` in seconds from the epoch's start."""

    stage: Stage
    step: int
    start: float
    end: float
    worker: int
    """Index of the worker for stage ``cpu``; 0 for the other stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedEpoch:
    """The result of simulating an epoch: when each stage of each step runs, and which side waits."""

    ops: list[StageRun]
    """Stages that ran, in order of their start."""
    seconds: float
    """Seconds from the start to the end of the last step's training."""
    device_waits: float
    """Seconds that the device was idle because the next step's batch from the CPU was not ready."""
    cpu_waits: float
    """Mean seconds that a worker was idle during the epoch."""
    setting: ScheduleSetting
    routes: Routes

    @property
    def feedback(self) -> int:
        """-1 if the CPU has too many batches, 1 if it has too few, 0 if moving one would not help."""
        if self.device_waits == self.cpu_waits:
            return 0
        return -1 if self.device_waits > self.cpu_waits else 1


def simulate(routes: Routes, durations: Durations, setting: ScheduleSetting) -> SimulatedEpoch:
    """Simulate an epoch in virtual time; ConfigError if ``routes`` is empty."""
    if not routes:
        raise ConfigError("an epoch needs at least one step")
    return Simulation(routes, durations, setting).run()


class Simulation:
    """The state of one simulated epoch: what runs, what is ready, and each resource's next step.

    Call :func:`simulate` to run one; :func:`braid` builds on this class.
    """

    def __init__(self, routes: Routes, durations: Durations, setting: ScheduleSetting) -> None:
        self._routes, self._setting = routes, setting
        self._seconds = (durations.cpu, durations.dma, durations.uva, durations.model)
        self._cpu_steps = [step for step, route in enumerate(routes) if route == CPU]
        self._events: list[tuple[float, int, int, int]] = []  # end, stage, step, worker
        self._ops: list[StageRun] = []
        self._idle_workers = list(range(setting.workers))  # a heap, so that the lowest index starts first
        self._next_cpu = 0  # position in _cpu_steps
        self._held = 0  # host buffers
        self._prepared = bytearray(len(routes))
        self._on_device = bytearray(len(routes))
        self._next_transfer = 0
        self._next_model = 0
        self._trained = 0
        self._link_free = self._device_free = True
        self._now = 0.0
        self._device_waits = self._worker_waits = 0.0

    def run(self) -> SimulatedEpoch:
        """Run the simulation to its end and return the epoch."""
        events = self._events
        self._dispatch(0.0)
        while events:
            now = events[0][0]
            self._account(now)
            while events and events[0][0] == now:
                self._finish(*heapq.heappop(events)[1:])
            self._dispatch(now)
        assert self._trained == len(self._routes), "the schedule stood still"
        return SimulatedEpoch(
            ops=self._ops,
            seconds=self._now,
            device_waits=self._device_waits,
            cpu_waits=self._worker_waits / self._setting.workers,
            setting=self._setting,
            routes=self._routes,
        )

    def _account(self, now: float) -> None:
        """Add the time since the last event to the waits of those who were idle."""
        passed, self._now = now - self._now, now
        if self._idle_workers:
            self._worker_waits += passed * len(self._idle_workers)
        if self._device_free and self._link_free and self._waits_for_cpu():
            self._device_waits += passed

    def _waits_for_cpu(self) -> bool:
        step = self._next_transfer
        return step < len(self._routes) and self._routes[step] == CPU and not self._prepared[step]

    def _finish(self, stage: int, step: int, worker: int) -> None:
        if stage == _CPU:
            self._prepared[step] = 1
            heapq.heappush(self._idle_workers, worker)
        elif stage == _MODEL:
            self._trained += 1
            self._device_free = True
        else:
            self._on_device[step] = 1
            self._link_free = True
            if stage == _DMA:
                self._held -= 1
            else:
                self._device_free = True

    def _dispatch(self, now: float) -> None:
        self._start_workers(now)
        if self._setting.fill_first:
            self._start_transfer(now)
            self._start_model(now)
        else:
            self._start_model(now)
            self._start_transfer(now)

    def _start(self, now: float, stage: int, step: int, worker: int = 0) -> None:
        end = now + self._seconds[stage][step]
        self._ops.append(StageRun(STAGES[stage], step, now, end, worker))
        heapq.heappush(self._events, (end, stage, step, worker))

    def _start_workers(self, now: float) -> None:
        setting = self._setting
        while self._idle_workers and self._held < setting.cbs and self._next_cpu < len(self._cpu_steps):
            step = self._cpu_steps[self._next_cpu]
            if setting.one_at_a_time and step > self._trained:
                return
            self._next_cpu += 1
            self._held += 1
            self._start(now, _CPU, step, heapq.heappop(self._idle_workers))

    def _start_transfer(self, now: float) -> None:
        step = self._next_transfer
        if not self._link_free or step >= len(self._routes) or step - self._trained >= self._setting.gbs:
            return
        if self._setting.one_at_a_time and step > self._trained:
            return
        if self._routes[step] == GPU:
            if not self._device_free:
                return
            self._begin_batching(now, step)
        elif self._prepared[step]:
            self._begin_copy(now, step)

    def _begin_batching(self, now: float, step: int) -> None:
        self._start(now, _UVA, step)
        self._device_free = self._link_free = False
        self._next_transfer += 1

    def _begin_copy(self, now: float, step: int) -> None:
        self._start(now, _DMA, step)
        self._link_free = False
        self._next_transfer += 1

    def _start_model(self, now: float) -> None:
        step = self._next_model
        if self._device_free and step < len(self._routes) and self._on_device[step]:
            self._device_free = False
            self._next_model += 1
            self._start(now, _MODEL, step)


# ---- the braid: steps take their routes as the simulation goes on


def braid(
    times: StageTimes, num_batches: int, num_cpu: int, stock: int, setting: ScheduleSetting
) -> SimulatedEpoch:
    """Return a greedy dual-buffer schedule; its ``routes`` are the assignment of steps to routes.

    In the paper's schedule (MorphGL) the device fills its buffer with ``gbs`` batches that it prepares, then
    both buffers are flushed while ``cbs`` batches from the CPU are copied. Here a flush begins when the
    device holds ``stock`` untrained batches and a batch from the CPU is due. It continues while such a batch
    is ready and the device has enough batches left to train on during the copy; then the device fills its
    buffer again. The overlaps thus follow what is ready, also at the start and the end of an epoch and when
    all workers finish at once. Long runs of copies matter, since between two kinds of transfer the link waits
    for the training under way.
    """
    return _Braid(times, num_batches, num_cpu, stock, setting).run()


class _Braid(Simulation):
    """A simulation that decides a step's route when its transfer starts."""

    def __init__(
        self, times: StageTimes, num_batches: int, num_cpu: int, stock: int, setting: ScheduleSetting
    ) -> None:
        super().__init__(bytes(num_batches), Durations.constant(times, num_batches), setting)
        self._decided = bytearray(num_batches)
        self._cpus_left, self._gpus_left = num_cpu, num_batches - num_cpu
        self._cpu_steps = list(range(num_cpu))  # numbered among the CPU's batches only
        self._stock = min(stock, setting.gbs - 1)
        least = max(bound_with(times, num_batches, num_cpu).values())
        self._per_second = num_cpu / least if least else float(num_batches)
        self._num_cpu = num_cpu
        self._flushing = False
        dma, model = times.dma.seconds, times.model.seconds
        self._least_stock = min(math.ceil(dma / model) if model else 1, self._stock)

    def run(self) -> SimulatedEpoch:
        """Return the schedule; the batches of the CPU receive their steps at the end."""
        schedule = super().run()
        steps = [step for step, route in enumerate(self._decided) if route == CPU]
        ops = [op._replace(step=steps[op.step]) if op.stage == "cpu" else op for op in schedule.ops]
        return dataclasses.replace(schedule, ops=ops, routes=bytes(self._decided))

    def _waits_for_cpu(self) -> bool:
        return self._cpus_left > 0 and not self._is_prepared()

    def _is_prepared(self) -> bool:
        return bool(self._prepared[self._num_cpu - self._cpus_left])

    def _start_transfer(self, now: float) -> None:
        step = self._next_transfer
        if not self._link_free or step >= len(self._routes) or step - self._trained >= self._setting.gbs:
            return
        if self._wants_copy(now):
            self._decided[step] = CPU
            self._cpus_left -= 1
            self._begin_copy(now, step)
        elif self._gpus_left and self._device_free:
            self._decided[step] = GPU
            self._gpus_left -= 1
            self._begin_batching(now, step)

    def _wants_copy(self, now: float) -> bool:
        """Return whether the next transfer is a copy rather than batching on the device."""
        if not self._cpus_left or not self._is_prepared():
            return False
        if not self._gpus_left:
            return True
        stock, copied = self._next_transfer - self._trained, self._num_cpu - self._cpus_left
        if self._flushing:
            self._flushing = stock >= self._least_stock
        else:
            self._flushing = stock >= self._stock and copied <= now * self._per_second
        return self._flushing


def braid_routes(
    times: StageTimes, num_batches: int, num_cpu: int, stock: int | None, setting: ScheduleSetting
) -> Routes:
    """Return the routes of :func:`braid`; spread evenly if ``stock`` is None or one route takes all steps."""
    if stock is None or num_cpu in (0, num_batches):
        return spread_routes(num_batches, num_cpu)
    return braid(times, num_batches, num_cpu, stock, setting).routes
