"""The tasks of the maximum over in-neighbours, in the arena; the winning edges are stored for backward."""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphbraid.fullgraph.program import Maximum
from graphbraid.fullgraph.step.calls.rows import FirstRows
from graphbraid.fullgraph.step.planned.exchanges.source_split import (
    SourcePart,
    exchange_before,
    plan_by_source,
    source_split,
    whole_part,
)
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.kernels import backend
from graphbraid.ops.spmm import TIES


def forward_maximum(plan: StepPlan, op: Maximum) -> None:
    """Plan the task that computes the value."""
    csc = plan.blocks[plan.program.level(op.inputs[0])].of(op.relation).csc
    x = plan.read(op.inputs[0])
    out = plan.values[op.out] = plan.new(op.out, op)
    width = plan.program.width(op.out)
    found = plan.kept[op.out] = plan.scratch(f"{op.out}: winners", out.count, width, dtype=torch.int32)
    ties = TIES.index(op.ties)

    def run() -> None:
        rows = x.get().contiguous()  # the user's features may have another memory layout
        backend(rows).spmm_max(csc.indptr, csc.indices, rows, None, ties, out.tensor, found.tensor)

    plan.do(op.out, run, out, found, *x.touches)


def backward_maximum(plan: StepPlan, op: Maximum) -> None:
    """Plan the tasks that give each element's gradient to the edge that won it, or to all that tie."""
    source = op.inputs[0]
    csc = plan.blocks[plan.program.level(source)].of(op.relation).csc
    maker = exchange_before(plan, source)
    target, total = plan.part_of_grad(source)
    run, touches = (_to_the_first if op.ties == "first" else _to_all)(plan, op, target)
    if maker is not None:
        plan_by_source(plan, maker, source_split(plan, csc, maker), run, target, *touches)
        return
    plan.do(f"gradient of {source}", lambda: run(whole_part(csc)), target, *touches)
    plan.add_part(source, target, total)


_PartRun = tuple[Callable[[SourcePart], None], tuple[FirstRows, ...]]
"""What computes the gradients of a part's rows, and the other rows in the arena that it touches."""


def _to_the_first(plan: StepPlan, op: Maximum, target: FirstRows) -> _PartRun:
    grad, winner = plan.grads[op.out], plan.kept[op.out]

    def run(part: SourcePart) -> None:
        backend(grad.tensor).spmm_max_backward(
            part.indptr,
            part.indices,
            part.perm,
            part.forward_indptr,
            grad.tensor,
            None,
            winner.tensor,
            target.tensor[part.rows],
        )

    return run, (grad, winner)


def _to_all(plan: StepPlan, op: Maximum, target: FirstRows) -> _PartRun:
    source, grad, count = op.inputs[0], plan.grads[op.out], plan.kept[op.out]
    x, largest = plan.read(source), plan.values[op.out]
    share = plan.scratch(f"{op.out}: shares", grad.count, grad.buffer.shape[1])

    def divide() -> None:
        share.tensor.copy_(count.tensor)  # of the same dtype, or PyTorch would make a copy
        torch.div(grad.tensor, share.tensor, out=share.tensor)

    def run(part: SourcePart) -> None:
        backend(grad.tensor).spmm_max_shared_backward(
            part.indptr,
            part.indices,
            share.tensor,
            None,
            largest.tensor,
            x.get()[part.rows],
            target.tensor[part.rows],
        )

    plan.do(f"{op.out}: shares", divide, grad, count, share)
    return run, (share, largest, *x.touches)


__all__ = ["backward_maximum", "forward_maximum"]
