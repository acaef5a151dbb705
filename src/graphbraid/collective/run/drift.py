"""Drift: durations measured while training runs, against those a plan was made from."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from graphbraid.collective.plan.simulator import Stage
from graphbraid.collective.plan.times import Duration, StageTimes

LEAST_SECONDS = 1e-4
"""Shorter stages are not compared: a clock's and a scheduler's noise is as long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replanning:
    """When a running epoch is planned anew."""

    threshold: float = 0.25
    """Change of a stage's duration, as a share of the planned one, from which on a new plan is made."""
    samples: int = 7
    """Latest durations of a stage that its median is taken over."""
    patience: int = 8
    """Steps between two plans, at least."""


class Drift:
    """The latest durations of each stage."""

    _FIELDS: ClassVar[tuple[Stage, ...]] = ("cpu", "dma", "uva", "model")

    def __init__(self, times: StageTimes, how: Replanning) -> None:
        self.times, self._how = times, how
        self._latest: dict[Stage, deque[float]] = {stage: deque(maxlen=how.samples) for stage in self._FIELDS}

    def note(self, stage: Stage, seconds: float) -> None:
        """Take in a measured duration."""
        self._latest[stage].append(seconds)

    def changed(self) -> dict[Stage, float]:
        """Measured over planned mean of the stages that drifted beyond the threshold."""
        found: dict[Stage, float] = {}
        for stage, seconds in self._measured().items():
            planned: Duration | None = getattr(self.times, stage)
            if planned is None or max(planned.seconds, seconds.seconds) < LEAST_SECONDS:
                continue
            ratio = seconds.seconds / max(planned.seconds, LEAST_SECONDS)
            noise = ratio * seconds.cv  # a median that moves within its stage's spread says nothing
            if abs(ratio - 1.0) > max(self._how.threshold, noise):
                found[stage] = ratio
        return found

    def current(self) -> StageTimes:
        """The planned times with what was measured since in their place."""
        times, measured = self.times, self._measured()
        uva = None if times.uva is None else measured.get("uva", times.uva)
        gpu = times.gpu
        if gpu is not None and uva is not None and gpu.seconds > uva.seconds:
            gpu = uva  # T_gpu is a part of T_uva
        return dataclasses.replace(
            times,
            cpu=measured.get("cpu", times.cpu),
            dma=measured.get("dma", times.dma),
            model=measured.get("model", times.model),
            uva=uva,
            gpu=gpu,
        )

    def reset(self, times: StageTimes) -> None:
        """Measure against new times from now on."""
        self.times = times
        for latest in self._latest.values():
            latest.clear()

    def _measured(self) -> dict[Stage, Duration]:
        """Stages with enough samples. The median, since a mean of old and new speeds is neither."""
        return {
            stage: dataclasses.replace(Duration.typical(latest), seconds=median(latest))
            for stage, latest in self._latest.items()
            if len(latest) == latest.maxlen
        }
