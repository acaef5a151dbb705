"""The tasks of functions of each row, in the arena: those without parameters, and PReLU."""

from __future__ import annotations

import torch

from graphbraid.fullgraph.program import Prelu, RowFunction
from graphbraid.fullgraph.step.planned.row_functions import FUNCTIONS
from graphbraid.fullgraph.step.step_plan import StepPlan


def forward_function(plan: StepPlan, op: RowFunction) -> None:
    """Plan the task that computes the value, in place if nothing else, nor backward, reads its input."""
    function, source = FUNCTIONS[op.kind], op.inputs[0]
    x = plan.read(source)
    in_place = plan.may_overwrite(source) and (function.reads_result or not plan.training)
    out = plan.values[op.out] = plan.values[source] if in_place else plan.new(op.out, op)
    plan.do(op.out, lambda: function.forward(x.get(), op.arguments, out.tensor), out, *x.touches)


def backward_function(plan: StepPlan, op: RowFunction) -> None:
    """Plan the input's gradient."""
    function, source, grad = FUNCTIONS[op.kind], op.inputs[0], plan.grads[op.out]
    if not plan.program.learns(source):
        return
    kept = plan.read(op.out if function.reads_result else source)
    target, total = plan.part_of_grad(source)

    def run() -> None:
        function.backward(grad.tensor, kept.get(), op.arguments, target.tensor)

    plan.do(f"gradient of {source}", run, grad, target, *kept.touches)
    plan.add_part(source, target, total)


def forward_prelu(plan: StepPlan, op: Prelu) -> None:
    """Plan the task that computes the value; backward reads the input."""
    x = plan.read(op.inputs[0])
    out = plan.values[op.out] = plan.new(op.out, op)
    width = plan.program.width(op.out)
    is_above = plan.scratch(f"{op.out}: is above 0", out.count, width, dtype=torch.bool)

    def run() -> None:
        rows = x.get()
        torch.gt(rows, 0, out=is_above.tensor)
        torch.mul(rows, op.slope.detach(), out=out.tensor)
        torch.where(is_above.tensor, rows, out.tensor, out=out.tensor)

    plan.do(op.out, run, out, is_above, *x.touches)


def backward_prelu(plan: StepPlan, op: Prelu) -> None:
    """Plan the gradients of the slope, ``sum(grad * min(x, 0))``, and of the input."""
    source, grad = op.inputs[0], plan.grads[op.out]
    x, width = plan.read(source), plan.program.width(op.out)
    if op.slope.requires_grad:
        products = plan.scratch(f"{op.out}: products", grad.count, width)

        def give() -> None:
            torch.clamp(x.get(), max=0, out=products.tensor)
            rows = products.tensor.mul_(grad.tensor)
            given = plan.lend(op.slope)
            plan.give(op.slope, torch.sum(rows if given.numel() > 1 else rows.view(-1, 1), 0, out=given))

        plan.do(f"gradient of {op.out}'s slope", give, grad, products, *x.touches)
    if not plan.program.learns(source):
        return
    is_above = plan.scratch(f"{op.out}: is above 0", grad.count, width, dtype=torch.bool)
    target, total = plan.part_of_grad(source)

    def run() -> None:
        torch.gt(x.get(), 0, out=is_above.tensor)
        torch.mul(grad.tensor, op.slope.detach(), out=target.tensor)
        torch.where(is_above.tensor, grad.tensor, target.tensor, out=target.tensor)

    plan.do(f"gradient of {source}", run, grad, is_above, target, *x.touches)
    plan.add_part(source, target, total)


__all__ = ["backward_function", "backward_prelu", "forward_function", "forward_prelu"]
