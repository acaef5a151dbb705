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
        ctx.step, ctx.rows, ctx.when_whole, ctx.parameters = step, rows, when_whole, parameters
        ctx.versions = [p._version for p in parameters]
        with step.lock:
            out = step.forward()
            ctx.was = step.last_pass()
            return copied(out, lender, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.versions != [p._version for p in ctx.parameters]:
            raise RuntimeError(
                "a parameter was changed in place between engine() and this backward pass; call backward() "
                "before optimizer.step()"
            )
        step: PlannedStep = ctx.step
        with step.lock:
            step.bring_back(ctx.was)
            found = step.backward(grad, ctx.rows, ctx.when_whole)
        # Popped from the dict, since autograd stores without a copy what nothing else refers to.
        return None, None, None, None, *[found.pop(id(p), None) for p in ctx.parameters]


__all__ = ["run_step"]
