"""A planned step as one differentiable operation on the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import Function

from graphbraid.fullgraph.step.buffer_pool import BufferPool, copied
from graphbraid.fullgraph.step.plan import WhenWhole
from graphbraid.fullgraph.step.planned_step import PlannedStep

_AGREES = 0.02
"""Largest difference between two ways to compute the same outputs, as a share of the largest of them."""


@dataclass(frozen=True, slots=True)
class Behind:
    """Questions of a backward pass about the call that gave its outputs."""

    has_changed: Callable[[], bool]
    """Returns whether the graph's tensors were written to after the call."""
    written: Callable[[Sequence[int]], Tensor]
    """Runs the model as it is written, with these seeds of dropout masks, and returns its outputs."""


def _no_model(_: Sequence[int]) -> Tensor:
    raise RuntimeError("only an engine gives gradients that can be differentiated again")


UNCHANGED = Behind(has_changed=lambda: False, written=_no_model)
"""For a lowered program that is run without an engine."""


def run_step(
    step: PlannedStep,
    pool: BufferPool | None,
    rows: Tensor | None,
    behind: Behind,
    when_whole: WhenWhole | None = None,
) -> Tensor:
    """Run a step's forward pass; ``backward()`` through its outputs runs the adjoints.

    Args:
        step: an allocated step.
        pool: lends memory for the outputs. If None, new memory is allocated.
        rows: int64 rows of the output to return, in this order. If None, all.
        behind: answers for backward about this call.
        when_whole: see :meth:`.PlannedStep.backward`.

    Returns:
        ``(num_rows, width)`` outputs, which the caller may keep.
    """
    out: Tensor = _Run.apply(step, pool, rows, behind, when_whole, *step.program.parameters())  # type: ignore[no-untyped-call]
    return out


class _Run(Function):
    """The autograd function of a step."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes all by position
        ctx: Any,
        step: PlannedStep,
        pool: BufferPool | None,
        rows: Tensor | None,
        behind: Behind,
        when_whole: WhenWhole | None,
        *parameters: nn.Parameter,
    ) -> Tensor:
        ctx.step, ctx.rows, ctx.when_whole, ctx.parameters = step, rows, when_whole, parameters
        ctx.behind = behind
        ctx.versions = [p._version for p in parameters]
        with step.lock:
            out = step.forward()
            ctx.was = step.last_pass()
            return copied(out, pool, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.versions != [p._version for p in ctx.parameters]:
            raise RuntimeError(
                "a parameter was changed in place between engine() and this backward pass; call backward() "
                "before optimizer.step()"
            )
        if ctx.behind.has_changed():
            raise RuntimeError(
                "features or edges were changed in place between engine() and this backward pass; call "
                "backward() before changing them"
            )
        batched = is_legacy_batchedtensor(grad) or peek_interpreter_stack() is not None
        if batched or torch.is_grad_enabled():  # several gradients at once, or create_graph=True
            return None, None, None, None, None, *_differentiable(ctx, grad)
        step: PlannedStep = ctx.step
        with step.lock:
            step.bring_back(ctx.was)
            found = step.backward(grad, ctx.rows, ctx.when_whole)
        # Popped from the dict, since autograd stores a tensor without a copy if nothing else refers to it.
        return None, None, None, None, None, *[found.pop(id(p), None) for p in ctx.parameters]


def _differentiable(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients by PyTorch's operations of the model as it is written, which have derivatives."""
    step, twice = ctx.step, torch.is_grad_enabled()
    with step.lock, torch.no_grad():
        outputs = step.bring_back(ctx.was)
        outputs = outputs.clone() if ctx.rows is None else outputs.index_select(0, ctx.rows)
    with torch.enable_grad():
        written = ctx.behind.written(ctx.was.seeds)
    if ((written - outputs).abs() > _AGREES * outputs.abs().max()).any():
        raise RuntimeError(
            "gradients of this engine() call cannot be differentiated again: the model as it is written "
            "gives other outputs, since it was changed after the call or drops attention coefficients. Later "
            "calls of this engine run the model as it is written, and their gradients can be"
        )
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        written, ctx.parameters, grad, create_graph=twice, allow_unused=True
    )
    return found
