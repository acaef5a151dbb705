"""The tasks of small row-wise operations by PyTorch's kernels, in the arena: a learned factor, unit rows."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Scale, UnitRows
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.kernels import recorded_whole


def forward_scale(plan: StepPlan, op: Scale) -> None:
    """Plan the task that computes the value; backward reads the input."""
    x = plan.read(op.inputs[0])
    out = plan.values[op.out] = plan.new(op.out, op)
    plan.do(op.out, lambda: _scale(x.get(), op.factor.detach(), out.tensor, False), out, *x.touches)


def backward_scale(plan: StepPlan, op: Scale) -> None:
    """Plan the gradients of the rows, ``(1 + factor) grad``, and of the factor, ``sum(grad * x)``."""
    source, grad = op.inputs[0], plan.grads[op.out]
    if op.factor.requires_grad:
        x = plan.read(source)
        products = plan.scratch(f"{op.out}: products", grad.count, plan.program.width(op.out))

        def run() -> None:
            given = plan.lend(op.factor)
            _factor_gradient(grad.tensor, x.get(), products.tensor, given)
            plan.give(op.factor, given)

        plan.do(f"gradient of {op.out}'s factor", run, grad, products, *x.touches)
    if plan.program.learns(source):
        target, is_there = plan.grad_of(source)

        def spread() -> None:
            _scale(grad.tensor, op.factor.detach(), target.tensor, is_there)

        plan.do(f"gradient of {source}", spread, grad, target)


@recorded_whole
def _scale(x: Tensor, factor: Tensor, out: Tensor, add: bool) -> None:
    """Compute ``out (+)= (1 + factor) x``."""
    if add:
        out.addcmul_(x, 1 + factor)
    else:
        torch.mul(x, 1 + factor, out=out)


@recorded_whole
def _factor_gradient(grad: Tensor, x: Tensor, products: Tensor, out: Tensor) -> None:
    """Compute ``out = sum(grad * x)`` by way of ``products``."""
    torch.mul(grad, x, out=products)
    torch.sum(products.view(1, -1), 1, out=out)


def forward_unit_rows(plan: StepPlan, op: UnitRows) -> None:
    """Plan the task that computes the value, in place of its input if nothing else reads that."""
    source = op.inputs[0]
    x = plan.read(source)
    out = plan.values[source] if plan.may_overwrite(source) else plan.new(op.out, op)
    plan.values[op.out] = out
    lengths = plan.kept[op.out] = plan.scratch(f"{op.out}: lengths", out.count, 1)

    def run() -> None:
        rows = x.get()
        torch.linalg.vector_norm(rows, dim=1, keepdim=True, out=lengths.tensor)
        torch.div(rows, lengths.tensor.clamp_(min=op.eps), out=out.tensor)

    plan.do(op.out, run, out, lengths, *x.touches)


def backward_unit_rows(plan: StepPlan, op: UnitRows) -> None:
    """Plan the input's gradient, ``(grad - out * (grad . out)) / length``.

    The second term is missing for a row shorter than ``eps``, which was divided by ``eps``.
    """
    source, grad, out = op.inputs[0], plan.grads[op.out], plan.values[op.out]
    lengths = plan.kept[op.out]
    along = plan.scratch(f"{op.out}: along", grad.count, 1)
    is_long = plan.scratch(f"{op.out}: is long", grad.count, 1)
    target, total = plan.part_of_grad(source)

    def run() -> None:
        into, y, length = target.tensor, out.tensor, lengths.tensor
        torch.mul(grad.tensor, y, out=into)
        torch.sum(into, 1, keepdim=True, out=along.tensor)
        along.tensor.mul_(torch.gt(length, op.eps, out=is_long.tensor))
        torch.mul(y, along.tensor, out=into)
        torch.sub(grad.tensor, into, out=into).div_(length)

    plan.do(f"gradient of {source}", run, grad, out, lengths, along, is_long, target)
    plan.add_part(source, target, total)


__all__ = ["backward_scale", "backward_unit_rows", "forward_scale", "forward_unit_rows"]
