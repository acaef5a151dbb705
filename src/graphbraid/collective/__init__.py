"""Collective batching: CPU and device prepare mini-batches together, as a plan found by simulation says."""

from graphbraid.collective.plan import Plan
from graphbraid.collective.scheduler import Limits, fixed_plan, make_plan, simulated
from graphbraid.collective.stages import register
from graphbraid.collective.times import Duration, Profile, StageTimes

__all__ = [
    "Duration",
    "Limits",
    "Plan",
    "Profile",
    "StageTimes",
    "fixed_plan",
    "make_plan",
    "register",
    "simulated",
]
