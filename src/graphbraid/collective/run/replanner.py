"""Replanner: plans the rest of an epoch anew when measured durations have drifted from the planned ones."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from graphbraid.collective.plan.dispatcher import epoch_bound
from graphbraid.collective.plan.limits import Limits
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import make_plan, simulated
from graphbraid.collective.plan.simulator import Stage
from graphbraid.collective.plan.times import Profile, StageTimes
from graphbraid.collective.run.drift import Drift, Replanning

LEAST_GAIN = 1.05
"""The rest of an epoch is planned anew only if it would otherwise take more than its bound times this."""
PLANNING_SWITCH_SECONDS = 2e-4
"""Python's thread switch interval while planning, in seconds; the usual 5 ms would delay other threads."""
_planning = threading.Lock()  # the switch interval is that of the whole process


class Replanner:
    """Compares durations with those of the plan, and plans anew on a thread of its own during training.

    The caller of its methods holds the executor's lock; only the planning itself runs without it.

    Args:
        times: stage times that the plan in force was made from.
        how: conditions for a new plan.
        start_thread: function that runs a function on a thread of a given name.
        say: function that passes a message to the user.
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

        Args:
            plan: plan in force.
            trained: number of steps trained so far.
            left: number of steps that have not begun.
            step: index of the next step, for the message.
            limits: limits on the buffers of the new plan.
        """
        found, self._found = self._found, None
        if found is not None:
            self._decided_at, self._is_planning = trained, False
            self.drift.reset(found.times if isinstance(found, Plan) else found)
            return found if isinstance(found, Plan) else None
        if not self._is_planning and trained - self._decided_at >= self._patience and left > 1:
            changed = self.drift.changed()
            if changed:
                self._begin(plan, left, limits, f"durations drifted at step {step} ({_shown(changed)})")
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


def _shown(changed: dict[Stage, float]) -> str:
    return ", ".join(f"{stage} x{ratio:.2f}" for stage, ratio in changed.items())
