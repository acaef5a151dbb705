"""The rows that an exchange of a program moves, and what moves them."""

from __future__ import annotations

import torch

from graphbraid.fullgraph.lowering.route import Route
from graphbraid.fullgraph.program import Exchange
from graphbraid.fullgraph.step.calls.travel import HOST, Travel
from graphbraid.fullgraph.step.step_plan import StepPlan


def route_of(plan: StepPlan, op: Exchange) -> Route:
    """Return the rows that an exchange moves."""
    route = plan.host_blocks[plan.program.level(op.inputs[0])].of(None).route
    assert route is not None
    return route


def travel_of(plan: StepPlan, op: Exchange, *, once: bool = False) -> Travel:
    """Return what moves the rows of an exchange, the same for both directions, and count its memory.

    Args:
        plan: the step's plan.
        op: the exchange.
        once: whether it moves rows only when memory is allocated, which are then not rounded.
    """
    if op.out in plan.travels:
        return plan.travels[op.out]
    assert plan.comm is not None, "a program with exchanges is planned with its ranks"
    num_own = plan.num_rows(plan.program.level(op.inputs[0]))
    wire = torch.float32 if once else plan.wire
    travel = Travel(
        plan.comm,
        route_of(plan, op),
        num_own,
        plan.program.width(op.out),
        wire,
        place=HOST if plan.copies is None else plan.copies.place,
        by_host=plan.peers is not None and plan.peers.by_host,
    )
    plan.travel_bytes += travel.nbytes
    plan.travels[op.out] = travel
    return travel


__all__ = ["route_of", "travel_of"]
