"""The rows that an exchange of a program moves, and what moves them."""

from __future__ import annotations

from graphbraid.fullgraph.lowering.route import Route
from graphbraid.fullgraph.program import Exchange
from graphbraid.fullgraph.step.calls.travel import Travel
from graphbraid.fullgraph.step.step_plan import StepPlan


def route_of(plan: StepPlan, op: Exchange) -> Route:
    """Return the rows that an exchange moves."""
    route = plan.host_blocks[plan.program.level(op.inputs[0])].route
    assert route is not None
    return route


def travel_of(plan: StepPlan, op: Exchange) -> Travel:
    """Return what moves the rows of an exchange."""
    assert plan.comm is not None, "a program with exchanges is planned with its ranks"
    return Travel(plan.comm, route_of(plan, op), plan.num_rows(plan.program.level(op.inputs[0])))


__all__ = ["route_of", "travel_of"]
