"""Normalisation in the arena: the tasks of layer and batch normalisation, forward and backward.

Backward reads the input, not the output, beside two numbers per row (layer) or column (batch). The input is
one matrix per normalisation, and in the usual stack the least there can be: the activation that follows
writes over the output, so its buffer is the one the next layer reads anyway. Going back from the output
instead would keep the output from being written over, which is as much memory, and would divide by a weight
that may be 0. Only an output that a linear map reads directly would come out one matrix smaller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import Normalise, Own
from graphbraid.fullgraph.step.calls.rows import Rows
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.aggregation import backend
from graphbraid.ops.norm import as_factors, batch_statistics


def plan_norm(plan: StepPlan, op: Normalise) -> PlannedNorm:
    """Plan the forward of ``op``; its :meth:`PlannedNorm.plan_backward` comes later."""
    planned = (PlannedLayerNorm if op.kind == "layer" else PlannedBatchNorm)(plan, op)
    planned.plan_forward()
    return planned


class PlannedNorm(ABC):
    """One normalisation of a planned step, and what its forward leaves for its backward."""

    def __init__(self, plan: StepPlan, op: Normalise) -> None:
        self._plan, self._op = plan, op
        self._module: Any = op.module
        x = plan.read(op.inputs[0])
        self._get_x, self._touches = x.get, x.touches
        self._learns = plan.training and plan.program.learns(op.out)

    def _x(self) -> Tensor:
        """The input's rows; the user's features may stand in another order, which the kernels do not take."""
        return self._get_x().contiguous()

    @abstractmethod
    def _run(self, out: Tensor) -> None:
        """Normalise the input into ``out``, which may be the input."""

    @abstractmethod
    def _run_backward(self, grad: Tensor, grad_x: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Write the input's gradient, if asked for, maybe over ``grad``; give the weight's and the bias's."""

    def plan_forward(self) -> None:
        """Plan the task that makes the value: over the input where neither backward nor another reads it."""
        plan, op, source = self._plan, self._op, self._op.inputs[0]
        alone = len(plan.program.consumers(source)) == 1 and not self._reads_own_rows
        in_place = not self._learns and alone and source in plan.values
        out = plan.values[source] if in_place else plan.new(op.out, op)
        plan.values[op.out] = out
        plan.do(op.out, lambda: self._run(out.tensor), out, *self._touches)

    def plan_backward(self) -> None:
        """Plan the task of the gradients."""
        plan, op, source = self._plan, self._op, self._op.inputs[0]
        grad, learns = plan.grads[op.out], plan.program.learns(source)
        target, total = self._target(grad) if learns else (None, None)

        def run() -> None:
            grads = self._run_backward(grad.tensor, None if target is None else target.tensor)
            for parameter, found in zip((self._module.weight, self._module.bias), grads, strict=True):
                if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                    assert found is not None
                    plan.give(parameter, found)

        written = () if target is None else (target,)
        plan.do(f"gradient of {source}", run, grad, *self._touches, *written)
        if target is not None and total is not None:
            plan.do(f"gradient of {source}", lambda: total.tensor.add_(target.tensor), target, total)

    def _target(self, grad: Rows) -> tuple[Rows, Rows | None]:
        """Where the input's gradient is written, and the sum it is then added to where others are in it.

        Over the result's gradient, unless an addition shares that with a value whose turn comes later.
        """
        plan, op, source = self._plan, self._op, self._op.inputs[0]
        earlier = {before.out for before in plan.program.ops[: plan.program.ops.index(op)]}
        shared = any(plan.grads[v].buffer is grad.buffer for v in earlier & plan.grads.keys())
        if not shared and not self._reads_own_rows and source not in plan.grads:
            plan.grads[source] = grad
            return grad, None
        total, is_there = plan.grad_of(source)
        if not is_there:
            return total, None
        return (plan.new(f"gradient through {op.out}", op) if shared else grad), total

    @property
    def _reads_own_rows(self) -> bool:
        """Whether the input, and so its gradient, is the start of another value's."""
        return isinstance(self._plan.program.producer(self._op.inputs[0]), Own)


class PlannedLayerNorm(PlannedNorm):
    """Rows by their own mean and variance, which backward needs again: two vectors in the arena."""

    def __init__(self, plan: StepPlan, op: Normalise) -> None:
        super().__init__(plan, op)
        self._statistics: tuple[Rows, ...] = ()
        if self._learns:
            self._statistics = tuple(_row_numbers(plan, op, name) for name in ("mean", "rstd"))
        self._touches = (*self._touches, *self._statistics)

    def _run(self, out: Tensor) -> None:
        x, module = self._x(), self._module
        mean, rstd = (rows.tensor for rows in self._statistics) if self._statistics else (None, None)
        factors = as_factors(module.weight, x.dtype), as_factors(module.bias, x.dtype)
        backend(x).layer_norm(x, *factors, module.eps, out, mean, rstd)

    def _run_backward(self, grad: Tensor, grad_x: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        x, weight = self._x(), as_factors(self._module.weight, grad.dtype)
        mean, rstd = (rows.tensor for rows in self._statistics)
        grads = tuple(
            None if parameter is None or not parameter.requires_grad else self._plan.lend(parameter)
            for parameter in (self._module.weight, self._module.bias)
        )
        backend(x).layer_norm_backward(grad, x, weight, mean, rstd, grad_x, *grads)
        return grads[0], grads[1]


def _row_numbers(plan: StepPlan, op: Normalise, name: str) -> Rows:
    """A number for each row of ``op``'s value."""
    return plan.scratch(f"{op.out}: {name}", plan.num_rows(plan.program.level(op.out)))


class PlannedBatchNorm(PlannedNorm):
    """Columns by the mean and variance of all rows, or by the running ones: as the module's mode says."""

    def __init__(self, plan: StepPlan, op: Normalise) -> None:
        super().__init__(plan, op)
        self._last: tuple[Tensor, Tensor, bool] | None = None
        self._tracked_at = 0

    def _run(self, out: Tensor) -> None:
        x, module = self._x(), self._module
        mean, rstd, _ = self._last = self._statistics(x)
        factors = as_factors(module.weight, x.dtype), as_factors(module.bias, x.dtype)
        backend(x).batch_norm(x, mean, rstd, *factors, out)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Those of the rows, tracked, or the running ones: what :class:`torch.nn.BatchNorm1d` takes."""
        module, call = self._module, self._plan.num_forwards
        # Looking for what is not finite runs the last forward again, which moves nothing a second time.
        tracks = module.track_running_stats and call > self._tracked_at
        running = (module.running_mean, module.running_var) if not module.training or tracks else (None, None)
        self._tracked_at = call
        return batch_statistics(
            x,
            *running,
            training=module.training,
            momentum=module.momentum,
            eps=module.eps,
            num_batches_tracked=module.num_batches_tracked,
        )

    def _run_backward(self, grad: Tensor, grad_x: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        assert self._last is not None
        mean, rstd, from_rows = self._last
        x, weight = self._x(), as_factors(self._module.weight, grad.dtype)
        grads = self._grad_of(self._module.weight, mean), self._grad_of(self._module.bias, mean)
        backend(x).batch_norm_backward(grad, x, mean, rstd, weight, from_rows, grad_x, *grads)
        return grads

    def _grad_of(self, parameter: nn.Parameter | None, like: Tensor) -> Tensor:
        """Memory for a gradient, which the kernel writes whether or not anything learns it."""
        learns = parameter is not None and parameter.requires_grad
        return self._plan.lend(parameter) if parameter is not None and learns else torch.empty_like(like)


__all__ = ["PlannedNorm", "plan_norm"]
