"""A planned step as one differentiable operation of the parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from graphbraid.fullgraph.step.lending import Lender, copied
from graphbraid.fullgraph.step.planned_step import PlannedStep


def run_step(step: PlannedStep, lender: Lender | None, rows: Tensor | None) -> Tensor:
    """Outputs of a step's forward pass; ``backward()`` through them runs the adjoints.

    Args:
        step: allocated.
        lender: of memory for the outputs; None: new memory.
        rows: int64 rows of the output that are given, in their order; None: all.

    Returns:
        ``(num_rows, width)``, the caller's to keep.
    """
    out: Tensor = _Run.apply(step, lender, rows, *step.program.parameters())  # type: ignore[no-untyped-call]
    return out


class _Run(Function):
    """The step as one differentiable operation of the parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        step: PlannedStep,
        lender: Lender | None,
        rows: Tensor | None,
        *parameters: nn.Parameter,
    ) -> Tensor:
        ctx.step, ctx.rows, ctx.ids = step, rows, [id(p) for p in parameters]
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
                "engine() was called again before this backward pass, and what it needs is overwritten; call "
                "backward() before the next engine()"
            )
        if ctx.versions != [p._version for p in ctx.parameters]:
            raise RuntimeError(
                "a parameter was changed in place between engine() and this backward pass; call backward() "
                "before optimizer.step()"
            )
        if ctx.went_back:  # that wrote over what the forward pass had left
            ctx.step.repeat_forward()
        ctx.went_back = True
        # Out of the dict: autograd stores what nothing else refers to without a copy.
        found = ctx.step.backward(grad, ctx.rows)
        return None, None, None, *[found.pop(key, None) for key in ctx.ids]


__all__ = ["run_step"]
