"""Drift: compares the durations measured during training with those that the plan was made from."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from graphbraid.collective.plan.simulator import Stage
from graphbraid.collective.plan.times import Duration, StageTimes

LEAST_SECONDS = 1e-4
"""Seconds below which stages are not compared, as clock and scheduler noise is of that size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replanning:
    """Conditions under which a running epoch is planned anew."""

    threshold: float = 0.25
    """Relative change of a stage's duration above which a new plan is made."""
    samples: int = 7
    """Number of latest durations of a stage over which the median is taken."""
    patience: int = 8
    """Smallest number of steps between two plans."""


class Drift:
    """The latest durations of each stage."""

    _FIELDS: ClassVar[tuple[Stage, ...]] = ("cpu", "dma", "uva", "model")

    def __init__(self, times: StageTimes, how: Replanning) -> None:
        self.times, self._how = times, how
        self._latest: dict[Stage, deque[float]] = {stage: deque(maxlen=how.samples) for stage in self._FIELDS}

    def note(self, stage: Stage, seconds: float) -> None:
        """Record a measured duration."""
        self._latest[stage].append(seconds)

    def changed(self) -> dict[Stage, float]:
        """Return the ratio of measured to planned seconds of each stage that drifted beyond the threshold."""
        found: dict[Stage, float] = {}
        for stage, seconds in self._measured().items():
            planned: Duration | None = getattr(self.times, stage)
            if planned is None or max(planned.seconds, seconds.seconds) < LEAST_SECONDS:
                continue
            ratio = seconds.seconds / max(planned.seconds, LEAST_SECONDS)
            noise = ratio * seconds.cv  # a shift within the stage's spread is no evidence of drift
            if abs(ratio - 1.0) > max(self._how.threshold, noise):
                found[stage] = ratio
        return found

    def current(self) -> StageTimes:
        """Return the planned times, replaced by measured ones where there are enough samples."""
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
        """Discard the samples and compare with ``times`` from now on."""
        self.times = times
        for latest in self._latest.values():
            latest.clear()

    def _measured(self) -> dict[Stage, Duration]:
        """Return the median of each stage with enough samples; a mean would blend old and new speeds."""
        return {
            stage: dataclasses.replace(Duration.typical(latest), seconds=median(latest))
            for stage, latest in self._latest.items()
            if len(latest) == latest.maxlen
        }
