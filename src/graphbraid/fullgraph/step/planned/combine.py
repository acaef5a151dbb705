"""The tasks of operations on several values of one level: linear combination, concatenation, maximum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from graphbraid.fullgraph.program import Combine, Concat, Largest, Operation
from graphbraid.fullgraph.step.calls.rows import FirstRows, Read
from graphbraid.fullgraph.step.step_plan import StepPlan


def forward_combine(plan: StepPlan, op: Combine) -> None:
    """Plan the task that computes the value, in place of its first input if nothing else reads that."""
    reads, first = _reads(plan, op), op.inputs[0]
    out = plan.values[first] if plan.may_overwrite(first) else plan.new(op.out, op)
    plan.values[op.out] = out

    def run() -> None:
        torch.mul(reads[0].get(), op.factors[0], out=out.tensor)
        for read, factor in zip(reads[1:], op.factors[1:], strict=True):
            out.tensor.add_(read.get(), alpha=factor)

    plan.do(op.out, run, out, *_touches(reads))


def backward_combine(plan: StepPlan, op: Combine) -> None:
    """Plan the inputs' gradients: the result's gradient times their factors."""
    grad = plan.grads[op.out]
    pairs = list(zip(op.inputs, op.factors, strict=True))
    for value, factor in sorted(pairs, key=lambda pair: pair[1] == 1):  # what shares the buffer comes last
        if factor == 1:
            plan.pass_on(op, value)
        elif plan.program.learns(value):
            target, is_there = plan.grad_of(value)
            plan.do(f"gradient of {value}", partial(_add_times, grad, factor, target, is_there), grad, target)


def _add_times(grad: FirstRows, factor: float, target: FirstRows, is_there: bool) -> None:
    if is_there:
        target.tensor.add_(grad.tensor, alpha=factor)
    else:
        torch.mul(grad.tensor, factor, out=target.tensor)


def forward_concat(plan: StepPlan, op: Concat) -> None:
    """Plan the task that concatenates the inputs' columns."""
    reads, parts = _reads(plan, op), _columns(plan, op)
    out = plan.values[op.out] = plan.new(op.out, op)

    def run() -> None:
        for read, part in zip(reads, parts, strict=True):
            out.tensor[:, part].copy_(read.get())

    plan.do(op.out, run, out, *_touches(reads))


def backward_concat(plan: StepPlan, op: Concat) -> None:
    """Plan the inputs' gradients: each its columns of the result's gradient."""
    grad = plan.grads[op.out]
    for value, part in zip(op.inputs, _columns(plan, op), strict=True):
        if plan.program.learns(value):
            target, is_there = plan.grad_of(value)
            plan.do(f"gradient of {value}", partial(_add_columns, grad, part, target, is_there), grad, target)


def _add_columns(grad: FirstRows, part: slice, target: FirstRows, is_there: bool) -> None:
    columns = grad.tensor[:, part]
    target.tensor.add_(columns) if is_there else target.tensor.copy_(columns)


def forward_largest(plan: StepPlan, op: Largest) -> None:
    """Plan the task that computes the value, and stores which input each element comes from."""
    reads = _reads(plan, op)
    out = plan.values[op.out] = plan.new(op.out, op)
    width = plan.program.width(op.out)
    winner = plan.kept[op.out] = plan.scratch(f"{op.out}: winners", out.count, width, dtype=torch.uint8)
    is_more = plan.scratch(f"{op.out}: is more", out.count, width, dtype=torch.bool)

    def run() -> None:
        out.tensor.copy_(reads[0].get())
        winner.tensor.zero_()
        for number, read in enumerate(reads[1:], 1):
            x = read.get()
            torch.gt(x, out.tensor, out=is_more.tensor)
            winner.tensor.masked_fill_(is_more.tensor, number)
            torch.maximum(x, out.tensor, out=out.tensor)

    plan.do(op.out, run, out, winner, is_more, *_touches(reads))


def backward_largest(plan: StepPlan, op: Largest) -> None:
    """Plan the inputs' gradients: the result's gradient where they were the largest."""
    grad, winner = plan.grads[op.out], plan.kept[op.out]
    width = plan.program.width(op.out)
    for number, value in enumerate(op.inputs):
        if not plan.program.learns(value):
            continue
        target, is_there = plan.grad_of(value)
        is_won = plan.scratch(f"{op.out}: is {value}", grad.count, width)
        run = partial(_add_won, grad, winner, number, is_won, target, is_there)
        plan.do(f"gradient of {value}", run, grad, winner, is_won, target)


def _add_won(  # noqa: PLR0917 - what a task holds
    grad: FirstRows, winner: FirstRows, number: int, is_won: FirstRows, target: FirstRows, is_there: bool
) -> None:
    torch.eq(winner.tensor, number, out=is_won.tensor)
    if is_there:
        target.tensor.addcmul_(grad.tensor, is_won.tensor)
    else:
        torch.mul(grad.tensor, is_won.tensor, out=target.tensor)


def _reads(plan: StepPlan, op: Operation) -> list[Read]:
    return [plan.read(value) for value in op.inputs]


def _touches(reads: Sequence[Read]) -> list[FirstRows]:
    return [rows for read in reads for rows in read.touches]


def _columns(plan: StepPlan, op: Concat) -> list[slice]:
    """Return the columns of each input in the result."""
    parts, start = [], 0
    for value in op.inputs:
        width = plan.program.width(value)
        parts.append(slice(start, start + width))
        start += width
    return parts


__all__ = [
    "backward_combine",
    "backward_concat",
    "backward_largest",
    "forward_combine",
    "forward_concat",
    "forward_largest",
]
