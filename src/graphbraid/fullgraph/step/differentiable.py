"""A planned step as one differentiable operation on the parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from graphbraid.fullgraph.step.lending import Lender, copied
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.fullgraph.step.step_plan import WhenWhole


def run_step(
    step: PlannedStep, lender: Lender | None, rows: Tensor | None, when_whole: WhenWhole | None = None
) -> Tensor:
    """Run a step's forward pass; ``backward()`` through its outputs runs the adjoints.

    Args:
        step: an allocated step.
        lender: lends memory for the outputs. If None, new memory is allocated.
        rows: int64 rows of the output to return, in this order. If None, all.
        when_whole: see :meth:`.PlannedStep.backward`.

    Returns:
        ``(num_rows, width)`` outputs, which the caller may keep.
    """
    out: Tensor = _Run.apply(step, lender, rows, when_whole, *step.program.parameters())  # type: ignore[no-untyped-call]
    return out


class _Run(Function):
    """The autograd function of a step."""

    @staticmethod
    def forward(
        ctx: Any,
        step: PlannedStep,
        lender: Lender | None,
        rows: Tensor | None,
        when_whole: WhenWhole | None,
        *parameters: nn.Parameter,
    ) -> Tensor:
        ctx.step, ctx.rows, ctx.ids = step, rows, [id(p) for p in parameters]
        ctx.when_whole = when_whole
        out = step.forward()
        ctx.call, ctx.went_back = step.num_forwards, False
        ctx.versions = [p._version for p in parameters]
        ctx.parameters = parameters
        return copied(out, lender, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.call != ctx.step.num_forwards:
            raise RuntimeError(
                "engine() was called again before this backward pass and overwrote what it needs; call "
                "backward() before the next engine()"
            )
        if ctx.versions != [p._version for p in ctx.parameters]:
            raise RuntimeError(
                "a parameter was changed in place between engine() and this backward pass; call backward() "
                "before optimizer.step()"
            )
        if ctx.went_back:  # the first backward pass overwrote what the forward pass had left
            ctx.step.repeat_forward()
        ctx.went_back = True
        # Popped from the dict, since autograd stores without a copy what nothing else refers to.
        found = ctx.step.backward(grad, ctx.rows, ctx.when_whole)
        return None, None, None, None, *[found.pop(key, None) for key in ctx.ids]


__all__ = ["run_step"]
