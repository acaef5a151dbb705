"""Timing of a training step, task by task, on copies so that the caller's state does not change."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from graphbraid.fullgraph.step.buffer_pool import copied
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.fullgraph.step.request import StepRequest

REPEATS = 7
"""Number of timed steps, after one warm-up step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskTime:
    """Time of one task of a step: of one kernel call."""

    name: str
    operation: str
    """Name of the value whose operation it belongs to; empty for returning outputs or taking in gradients."""
    backward: bool
    seconds: float
    """Median over the timed steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Times of a step's tasks, and of whole steps run without timing each task."""

    tasks: tuple[TaskTime, ...]
    seconds: float


class TimedStep(PlannedStep):
    """A training step that can read the clock between its tasks.

    Args:
        request: what the step is planned from, with copies of the parameters and modules.
        wait: waits until the device has done all work given to it.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        request: StepRequest,
        *,
        wait: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(request)
        self._wait, self._clock = wait, clock
        self._looks = False
        self._seconds: dict[int, list[float]] = {}
        self._plan.tasks = [
            replace(task, run=partial(self._timed, place, task.run))
            for place, task in enumerate(self._plan.tasks)
        ]

    def measured(self, rows: Tensor | None, num_nodes: int, repeats: int = REPEATS) -> StepTimes:
        """Time the tasks of ``repeats`` steps and, in turn with them, ``repeats`` whole steps.

        Args:
            rows: int64 rows of the output to return. If None, all of them.
            num_nodes: number of returned rows.
            repeats: number of steps of each kind, at least 1.
        """
        devices = [] if self.output.tensor.device.type == "cpu" else [self.output.tensor.device]
        with torch.random.fork_rng(devices):
            grad = self.output.tensor.new_full((num_nodes, self.output.tensor.shape[1]), 1 / num_nodes)
            self._step(grad, rows)
            whole = []
            for _ in range(repeats):
                whole.append(self._step(grad, rows))
                self._looks = True
                self._step(grad, rows)
                self._looks = False
        return StepTimes(tasks=tuple(self._times()), seconds=statistics.median(whole))

    def _step(self, grad: Tensor, rows: Tensor | None) -> float:
        started = self._clock()
        self._timed(-1, lambda: copied(self.forward(), None, rows))
        self._timed(-2, lambda: self.backward(grad, rows))
        self._wait()
        return self._clock() - started

    def _timed(self, place: int, run: Callable[[], object]) -> None:
        if not self._looks:
            run()
            return
        self._wait()
        started = self._clock()
        run()
        self._wait()
        self._seconds.setdefault(place, []).append(self._clock() - started)

    def _times(self) -> list[TaskTime]:
        tasks, first_back = self._plan.tasks, self._backward_tasks
        found = {place: statistics.median(seconds) for place, seconds in self._seconds.items()}
        times = [
            TaskTime(name=task.name, operation=task.operation, backward=at >= first_back, seconds=found[at])
            for at, task in enumerate(tasks)
            if at in found
        ]
        passes = [sum(t.seconds for t in times if t.backward == backward) for backward in (False, True)]
        handing = [
            TaskTime(name=name, operation="", backward=backward, seconds=max(0.0, found[key] - inside))
            for name, backward, key, inside in (
                ("outputs", False, -1, passes[0]),
                ("gradient of the outputs", True, -2, passes[1]),
            )
        ]
        return [*times, *handing]
