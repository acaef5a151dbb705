"""The gradients of a linear map whose rows were exchanged: own rows' while the others' travel, then theirs.

With the gradients G of own edges and R of the rows that were sent, ``(G + R) W`` and ``(G + R)ᵀ X`` are sums
of two products, of which the first needs nothing from other ranks. Where the map's input is what a first
layer makes of constants, row by row, so is all that follows: slopes and masks are known, and the gradient of
a weight is a sum over rows. The first layer then goes back in two parts as well, and waits for nothing else.
"""

from __future__ import annotations

from torch import Tensor

from graphbraid.fullgraph.program import Linear
from graphbraid.fullgraph.program.chains import first_before
from graphbraid.fullgraph.step.calls.rows import FirstRows
from graphbraid.fullgraph.step.calls.travel import Travel
from graphbraid.fullgraph.step.planned.epilogues import plan_epilogue_backward
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.linear import tall_gram, tall_product


def plan_linear_backward(
    plan: StepPlan, op: Linear, travel: Travel, grad: FirstRows, away: tuple[FirstRows, ...]
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
    first = first_before(plan.program, op)
    if first is not None and plan.factor_of(first.inputs[0]) is not None:  # read in another form
        first = None
    if first is not None and target is not None:
        plan.ahead.first_back.add(first.out)
        _plan_first(plan, first, target)
    plan.do(f"gradient of {op.out}: wait", travel.wait, *away)
    if learns:
        plan.repeat(name, sent_weight, returned, *x.touches, gradient_of=op.weight)
    if target is not None:
        _plan_sent_input(plan, op, travel, returned, target, first)
    plan.planning = planning


def _plan_sent_input(  # noqa: PLR0917 - what is known of one map
    plan: StepPlan, op: Linear, travel: Travel, returned: FirstRows, target: FirstRows, first: Linear | None
) -> None:
    """Plan the input's gradient in the rows that were sent, and to add it, or to go back by the first map."""
    width = plan.program.width(op.inputs[0])
    sent = plan.scratch(f"{op.out}: gradient of the rows sent", returned.count, width)

    def multiply() -> None:
        tall_product(returned.tensor, op.matrix(), out=sent.tensor)

    plan.repeat(f"{op.out}: gradient of the rows sent", multiply, returned, sent)
    if first is None:
        plan.do(f"gradient of {op.inputs[0]}", lambda: travel.add(sent.tensor, target.tensor), sent, target)
    else:
        _plan_first(plan, first, sent, travel.route.send)


def _plan_first(plan: StepPlan, op: Linear, grad: FirstRows, ids: Tensor | None = None) -> None:
    """Plan the gradients of the parameters of a map of constants, by ``grad`` of all rows or of ``ids``."""
    planning, plan.planning = plan.planning, op.out
    if op.after is not None:
        plan_epilogue_backward(plan, op.after, grad, grad, ids)
    x = plan.read(op.inputs[0])

    def weight(out: Tensor) -> None:
        tall_gram(grad.tensor, x.get(), out=out, ids=ids)

    if op.weight.requires_grad:
        name = f"gradient of {op.out}'s weight"
        plan.repeat(
            name if ids is not None else f"{name}: own", weight, grad, *x.touches, gradient_of=op.weight
        )
    plan.planning = planning


__all__ = ["plan_linear_backward"]
