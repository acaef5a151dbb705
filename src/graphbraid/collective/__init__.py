"""Collective batching: CPU and device prepare mini-batches together by a plan found by simulation."""

from typing import TYPE_CHECKING

from graphbraid.lazy import names_of

if TYPE_CHECKING:
    from graphbraid.collective.plan.plan import Plan
    from graphbraid.collective.plan.scheduler import Limits, fixed_plan, make_plan, simulated
    from graphbraid.collective.plan.times import Duration, Profile, StageTimes
    from graphbraid.collective.run.stages import DeviceMemoryError, WorkerDiedError, register

__all__ = [
    "DeviceMemoryError",
    "Duration",
    "Limits",
    "Plan",
    "Profile",
    "StageTimes",
    "WorkerDiedError",
    "fixed_plan",
    "make_plan",
    "register",
    "simulated",
]

__getattr__ = names_of(
    __name__,
    {
        "plan.plan": "Plan",
        "plan.scheduler": "Limits fixed_plan make_plan simulated",
        "plan.times": "Duration Profile StageTimes",
        "run.stages": "DeviceMemoryError WorkerDiedError register",
    },
)
