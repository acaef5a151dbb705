"""The maximum over in-neighbours in the arena: which edge won each element is kept for the way back."""

from __future__ import annotations

import torch

from graphbraid.fullgraph.plan import Plan
from graphbraid.fullgraph.program import Maximum
from graphbraid.ops.aggregation import backend


def forward_maximum(plan: Plan, op: Maximum) -> None:
    """Plan the task that makes the value."""
    csc = plan.steps[plan.program.level(op.inputs[0])].csc
    x = plan.read(op.inputs[0])
    out = plan.values[op.out] = plan.new(op.out, op)
    width = plan.program.width(op.out)
    winner = plan.kept[op.out] = plan.scratch(f"{op.out}: winners", out.count, width, dtype=torch.int32)

    def run() -> None:
        rows = x.get().contiguous()  # the user's features may stand in another order
        backend(rows).spmm_max(csc.indptr, csc.indices, rows, None, out.tensor, winner.tensor)

    plan.do(op.out, run, out, winner, *x.touches)


def backward_maximum(plan: Plan, op: Maximum) -> None:
    """Plan the task that gives each element's gradient to the edge that won it."""
    source, grad, winner = op.inputs[0], plan.grads[op.out], plan.kept[op.out]
    csc = plan.steps[plan.program.level(source)].csc
    target, total = plan.part_of_grad(source)

    def run() -> None:
        reverse, perm = csc.transpose()
        call = backend(grad.tensor).spmm_max_backward
        call(
            reverse.indptr,
            reverse.indices,
            perm,
            csc.indptr,
            grad.tensor,
            None,
            winner.tensor,
            target.tensor,
        )

    plan.do(f"gradient of {source}", run, grad, winner, target)
    plan.add_part(source, target, total)


__all__ = ["backward_maximum", "forward_maximum"]
