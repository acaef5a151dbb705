"""Replanner: plans the rest of an epoch anew when measured durations have drifted from the planned ones."""

import dataclasses
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import Limits, make_plan, simulated
from graphbraid.collective.plan.simulator import STAGES, Stage, epoch_bound
from graphbraid.collective.plan.times import Duration, Profile, StageTimes

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

    def __init__(self, times: StageTimes, how: Replanning) -> None:
        self.times, self._how = times, how
        self._latest: dict[Stage, deque[float]] = {stage: deque(maxlen=how.samples) for stage in STAGES}

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
        now = dict[str, Any](measured.items()) | {"uva": uva, "gpu": gpu}
        return dataclasses.replace(times, **now)

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


LEAST_GAIN = 1.05
"""The rest of an epoch is planned anew only if it would otherwise take more than its bound times this."""
PLANNING_SWITCH_SECONDS = 2e-4
"""Python's thread switch interval while planning, in seconds; the usual 5 ms would delay other threads."""
_planning = threading.Lock()  # the switch interval is that of the whole process


class Replanner:
    """Compares durations with those of the plan, and plans anew on a thread of its own during training.

    The caller of its methods holds the executor's lock; only the planning itself runs without it. ``times``
    are those that the plan in force was made from.
    """

    def __init__(
        self,
        times: StageTimes,
        how: Replanning,
        *,
        start_thread: Callable[[str, Callable[[], None]], None],
        say: Callable[[str], None],
    ) -> None:
        self.drift = Drift(times, how)
        self._patience, self._start_thread, self._say = how.patience, start_thread, say
        self._is_planning = False
        self._decided_at = 0
        self._found: Plan | StageTimes | None = None

    def poll(self, plan: Plan, trained: int, left: int, *, step: int, limits: Limits) -> Plan | None:
        """Return a new plan if one is ready, else None; start making one if durations have drifted.

        ``left`` steps have not begun. ``step`` is the next one, for the message.
        """
        found, self._found = self._found, None
        if found is not None:
            self._decided_at, self._is_planning = trained, False
            self.drift.reset(found.times if isinstance(found, Plan) else found)
            return found if isinstance(found, Plan) else None
        if not self._is_planning and trained - self._decided_at >= self._patience and left > 1:
            changed = self.drift.changed()
            if changed:
                ratios = ", ".join(f"{stage} x{ratio:.2f}" for stage, ratio in changed.items())
                self._begin(plan, left, limits, f"durations drifted at step {step} ({ratios})")
        return None

    def _begin(self, plan: Plan, left: int, limits: Limits, why: str) -> None:
        times, self._is_planning = self.drift.current(), True

        def run() -> None:
            if simulated(plan, times, left).seconds <= LEAST_GAIN * epoch_bound(times, left).seconds:
                self._found = times  # another plan would be hardly faster
                return
            self._say(f"{why}: planning anew")
            self._found = _make_plan_beside_others(times, left, limits)

        self._start_thread("planner", run)


def _make_plan_beside_others(times: StageTimes, num_batches: int, limits: Limits) -> Plan:
    """Make a plan with a short thread switch interval, so that other threads are hardly delayed."""
    with _planning:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(PLANNING_SWITCH_SECONDS)
        try:
            return make_plan(Profile(times=(times,)), num_batches, limits)
        finally:
            sys.setswitchinterval(interval)
