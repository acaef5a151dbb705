"""Replanner: a plan for the rest of an epoch when its durations are no longer those it was planned with."""

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
"""The rest of an epoch is planned anew where it would else take this much longer than its bound."""
PLANNING_SWITCH_SECONDS = 2e-4
"""How long the planning thread may keep Python's lock from the others; usually they would wait for 5 ms."""
_planning = threading.Lock()  # the interval is the whole process's


class Replanner:
    """Compares durations with a plan's, and plans in a thread of its own, beside the training.

    All calls but the planning itself come from under the executor's lock.

    Args:
        times: what the plan in force was made from.
        how: when to plan anew.
        start_thread: runs a function in a named thread.
        say: tells the user.
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
        """A new plan, once one is ready; begins to make one where durations drifted.

        Args:
            plan: in force.
            trained: steps so far.
            left: steps that nobody has begun.
            step: the step that is next, for the message.
            limits: buffers the new plan may use.
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
                self._found = times  # the plan serves them as well as another would
                return
            self._say(f"{why}: planning anew")
            self._found = _make_plan_beside_others(times, left, limits)

        self._start_thread("planner", run)


def _make_plan_beside_others(times: StageTimes, num_batches: int, limits: Limits) -> Plan:
    """Plan while other threads run, which get Python's lock soon."""
    with _planning:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(PLANNING_SWITCH_SECONDS)
        try:
            return make_plan(Profile(times=(times,)), num_batches, limits)
        finally:
            sys.setswitchinterval(interval)


def _shown(changed: dict[Stage, float]) -> str:
    return ", ".join(f"{stage} x{ratio:.2f}" for stage, ratio in changed.items())
