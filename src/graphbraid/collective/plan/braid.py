"""Braid: lays the steps of an epoch on the two routes as a greedy dual-buffer schedule asks for them.

The paper's schedule fills the device's buffer with ``gbs`` batches of its own, then flushes both buffers
while ``cbs`` prepared batches are copied. Here a flush begins when the device holds ``stock`` untrained
batches and a prepared one is due, and goes on while there is one and the device has enough left to train
through its copy; then the device fills up again. So the overlaps follow what is ready, also at the epoch's
start and end and when all workers finish at once. Long runs of copies matter: between two kinds of transfer
the link waits for the training under way.
"""

from __future__ import annotations

import math

from graphbraid.collective.plan.dispatcher import bound_with
from graphbraid.collective.plan.routes import CPU, GPU, Routes, spread_routes
from graphbraid.collective.plan.simulator import Durations, Setting, SimulatedEpoch, Simulation
from graphbraid.collective.plan.times import StageTimes


def braid(times: StageTimes, num_batches: int, num_cpu: int, stock: int, setting: Setting) -> SimulatedEpoch:
    """The greedy schedule, whose ``routes`` are what is wanted.

    Args:
        times: mean durations.
        num_batches: steps of the epoch.
        num_cpu: of them for route 0.
        stock: untrained batches on the device at which a flush begins.
        setting: buffers and workers.
    """
    return _Braid(times, num_batches, num_cpu, stock, setting).run()


class _Braid(Simulation):
    """A simulation that decides a step's route when its transfer starts."""

    def __init__(
        self, times: StageTimes, num_batches: int, num_cpu: int, stock: int, setting: Setting
    ) -> None:
        super().__init__(bytes(num_batches), Durations.constant(times, num_batches), setting)
        self._decided = bytearray(num_batches)
        self._cpus_left, self._gpus_left = num_cpu, num_batches - num_cpu
        self._cpu_steps = list(range(num_cpu))  # which of the CPU's it is; its step is not known yet
        self._stock = min(stock, setting.gbs - 1)
        least = max(bound_with(times, num_batches, num_cpu).values())
        self._per_second = num_cpu / least if least else float(num_batches)
        self._num_cpu = num_cpu
        self._flushing = False
        dma, model = times.dma.seconds, times.model.seconds
        self._least_stock = min(math.ceil(dma / model) if model else 1, self._stock)

    def run(self) -> SimulatedEpoch:
        """The schedule; its CPU batches are given their steps at the end."""
        schedule = super().run()
        steps = [step for step, route in enumerate(self._decided) if route == CPU]
        ops = [op._replace(step=steps[op.step]) if op.stage == "cpu" else op for op in schedule.ops]
        return schedule.replace(ops=ops, routes=bytes(self._decided))

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
        """Whether the next transfer is a copy rather than the device's own batching."""
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
    times: StageTimes, num_batches: int, num_cpu: int, stock: int | None, setting: Setting
) -> Routes:
    """The routes of :func:`braid`; spread evenly without a stock or where one route takes all."""
    if stock is None or num_cpu in (0, num_batches):
        return spread_routes(num_batches, num_cpu)
    return braid(times, num_batches, num_cpu, stock, setting).routes
