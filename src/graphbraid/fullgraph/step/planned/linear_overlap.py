"""The gradients of a linear map whose rows were exchanged: own rows' while the others' travel, then theirs.

With the gradients G of own edges and R of the rows that were sent, ``(G + R) W`` and ``(G + R)ᵀ X`` are sums
of two products, of which the first needs nothing from other ranks.
"""

from __future__ import annotations

from torch import Tensor

from graphbraid.fullgraph.program import Linear
from graphbraid.fullgraph.step.calls.rows import Rows
from graphbraid.fullgraph.step.calls.travel import Travel
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.dense import tall_gram, tall_product


def plan_linear_backward(
    plan: StepPlan, op: Linear, travel: Travel, grad: Rows, away: tuple[Rows, ...]
) -> None:
    """Plan a linear map's gradients while others' travel, then the wait, and what these add.

    Args:
        plan: the step's plan.
        op: the linear map.
        travel: what brings the gradients of the rows that were sent.
        grad: gradient of own rows, by own edges.
        away: the gradients of the halo that have departed, the memory for those that come back, and other
            rows that these touch.
    """
    plan.ahead.gone_back.add(op.out)
    planning, plan.planning = plan.planning, op.out
    returned = away[1]
    x, source, name = plan.read(op.inputs[0]), op.inputs[0], f"gradient of {op.out}'s weight"

    def own_weight(out: Tensor) -> None:
        tall_gram(grad.tensor, x.get(), out=out)

    def sent_weight(out: Tensor) -> None:
        tall_gram(returned.tensor, x.get(), out=out, ids=travel.route.send)

    learns, target = op.weight.requires_grad, None
    if plan.program.learns(source):
        target, is_there = plan.grad_of(source)
        whole = target

        def own_input() -> None:
            tall_product(grad.tensor, op.matrix(), out=whole.tensor, add=is_there)

        plan.repeat(f"gradient of {source}: own", own_input, grad, whole)
    if learns:
        plan.repeat(f"{name}: own", own_weight, grad, *x.touches, gradient_of=op.weight)
    plan.do(f"gradient of {op.out}: wait", travel.wait, *away)
    if learns:
        plan.repeat(name, sent_weight, returned, *x.touches, gradient_of=op.weight)
    if target is not None:
        _plan_sent_input(plan, op, travel, returned, target)
    plan.planning = planning


def _plan_sent_input(plan: StepPlan, op: Linear, travel: Travel, returned: Rows, target: Rows) -> None:
    width = plan.program.width(op.inputs[0])
    sent = plan.scratch(f"{op.out}: gradient of the rows sent", returned.count, width)

    def multiply() -> None:
        tall_product(returned.tensor, op.matrix(), out=sent.tensor)

    plan.repeat(f"{op.out}: gradient of the rows sent", multiply, returned, sent)
    plan.do(f"gradient of {op.inputs[0]}", lambda: travel.add(sent.tensor, target.tensor), sent, target)


__all__ = ["plan_linear_backward"]
