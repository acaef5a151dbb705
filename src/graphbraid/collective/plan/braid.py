"""Braid: assigns the steps of an epoch to the two routes by a greedy dual-buffer schedule.

In the paper's schedule (MorphGL) the device fills its buffer with ``gbs`` batches that it prepares itself,
then both buffers are flushed while ``cbs`` batches from the CPU are copied. Here a flush begins when the
device holds ``stock`` untrained batches and a batch from the CPU is due. It continues while such a batch is
ready and the device has enough batches left to train on during the copy; then the device fills its buffer
again. The overlaps thus follow what is ready, also at the start and the end of an epoch and when all workers
finish at once. Long runs of copies matter, since between two kinds of transfer the link waits for the
training under way.
"""

from __future__ import annotations

import dataclasses
import math

from graphbraid.collective.plan.dispatcher import CPU, GPU, Routes, bound_with, spread_routes
from graphbraid.collective.plan.simulator import Durations, ScheduleSetting, SimulatedEpoch, Simulation
from graphbraid.collective.plan.times import StageTimes


def braid(
    times: StageTimes, num_batches: int, num_cpu: int, stock: int, setting: ScheduleSetting
) -> SimulatedEpoch:
    """Return the greedy schedule; its ``routes`` are the assignment of steps to routes.

    Args:
        times: mean durations of the stages.
        num_batches: number of steps in the epoch.
        num_cpu: number of steps on route 0.
        stock: number of untrained batches on the device at which a flush begins.
        setting: buffers and workers.
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
