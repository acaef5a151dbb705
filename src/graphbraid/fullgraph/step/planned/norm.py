"""The tasks of layer and batch normalisation, forward and backward, in the arena.

Backward reads the input, not the output, and two numbers per row (layer) or column (batch). Keeping the input
costs one matrix per normalisation, in the usual stack the least possible: the activation that follows
overwrites the output, so its buffer is the one that the next layer reads anyway. Backward from the output
would prevent that overwriting, which costs as much memory, and would divide by a weight that may be 0. It
would save a matrix only where a linear map reads the output directly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import Normalise, Own
from graphbraid.fullgraph.step.calls.rows import FirstRows
from graphbraid.fullgraph.step.planned.columns import RankColumns
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.kernels import backend
from graphbraid.ops.norm import as_factors, batch_statistics


def plan_norm(plan: StepPlan, op: Normalise) -> PlannedNorm:
    """Plan the forward pass of ``op``; call :meth:`PlannedNorm.plan_backward` of the result later."""
    planned = (PlannedLayerNorm if op.kind == "layer" else PlannedBatchNorm)(plan, op)
    planned.plan_forward()
    return planned


class PlannedNorm(ABC):
    """One normalisation of a planned step, with what its forward pass leaves for its backward pass."""

    def __init__(self, plan: StepPlan, op: Normalise) -> None:
        self._plan, self._op = plan, op
        self._module: Any = op.module
        x = plan.read(op.inputs[0])
        self._get_x, self._touches = x.get, x.touches
        self._learns = plan.training and plan.program.learns(op.out)
        self._scratch: tuple[FirstRows, ...] = ()
        """Rows that the backward pass writes beside the gradients."""

    def _x(self) -> Tensor:
        """Return the input's rows, contiguous as kernels need them; the user's features may not be."""
        return self._get_x().contiguous()

    @abstractmethod
    def _run(self, out: Tensor) -> None:
        """Normalise the input into ``out``, which may be the input."""

    @abstractmethod
    def _run_backward(self, grad: Tensor, grad_x: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Write the input's gradient to ``grad_x``, if given, and return the weight's and the bias's."""

    def plan_forward(self) -> None:
        """Plan the task that computes the value, in place if nothing else, nor backward, reads the input."""
        plan, op, source = self._plan, self._op, self._op.inputs[0]
        alone = len(plan.program.consumers(source)) == 1 and not self._reads_own_rows
        in_place = not self._learns and alone and source in plan.values
        out = plan.values[source] if in_place else plan.new(op.out, op)
        plan.values[op.out] = out
        plan.do(op.out, lambda: self._run(out.tensor), out, *self._touches)

    def plan_backward(self) -> None:
        """Plan the task that computes the gradients."""
        plan, op, source = self._plan, self._op, self._op.inputs[0]
        grad, learns = plan.grads[op.out], plan.program.learns(source)
        target, total = self._target(grad) if learns else (None, None)

        def run() -> None:
            grads = self._run_backward(grad.tensor, None if target is None else target.tensor)
            for parameter, found in zip((self._module.weight, self._module.bias), grads, strict=True):
                if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                    assert found is not None
                    plan.give(parameter, found)

        written = (*self._scratch, *(() if target is None else (target,)))
        plan.do(f"gradient of {source}", run, grad, *self._touches, *written)
        if target is not None and total is not None:
            plan.do(f"gradient of {source}", lambda: total.tensor.add_(target.tensor), target, total)

    def _target(self, grad: FirstRows) -> tuple[FirstRows, FirstRows | None]:
        """Return the rows for the input's gradient, and the sum to add it to, if there is one.

        The rows are those of the result's gradient, unless an addition shares these with a value whose
        gradient is used later.
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
        """Whether the input, and so its gradient, is a prefix of another value's rows."""
        return isinstance(self._plan.program.producer(self._op.inputs[0]), Own)


class PlannedLayerNorm(PlannedNorm):
    """Layer normalisation; each row's mean and reciprocal deviation are stored for backward."""

    def __init__(self, plan: StepPlan, op: Normalise) -> None:
        super().__init__(plan, op)
        self._statistics: tuple[FirstRows, ...] = ()
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


def _row_numbers(plan: StepPlan, op: Normalise, name: str) -> FirstRows:
    """Return a vector with one number per row of ``op``'s value."""
    return plan.scratch(f"{op.out}: {name}", plan.count_of(op.out))


class PlannedBatchNorm(PlannedNorm):
    """Batch normalisation by the statistics of all rows or, as the module's mode says, the running ones."""

    def __init__(self, plan: StepPlan, op: Normalise) -> None:
        super().__init__(plan, op)
        self._last: tuple[Tensor, Tensor, bool] | None = None
        self._columns = None if plan.comm is None else RankColumns(plan.comm)
        if self._columns is not None and self._learns:
            self._scratch = (plan.new(f"{op.out}: coupling", op),)

    def _run(self, out: Tensor) -> None:
        x, module = self._x(), self._module
        mean, rstd, _ = self._last = self._statistics(x)
        factors = as_factors(module.weight, x.dtype), as_factors(module.bias, x.dtype)
        backend(x).batch_norm(x, mean, rstd, *factors, out)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Return the statistics that :class:`torch.nn.BatchNorm1d` would use, and update the running ones."""
        module = self._module
        tracks = module.track_running_stats or not module.training
        return batch_statistics(
            x,
            *((module.running_mean, module.running_var) if tracks else (None, None)),
            training=module.training,
            momentum=module.momentum,
            eps=module.eps,
            num_batches_tracked=module.num_batches_tracked,
            moments=None if self._columns is None else self._columns.moments,
        )

    def _run_backward(self, grad: Tensor, grad_x: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        assert self._last is not None
        mean, rstd, from_rows = self._last
        x, weight = self._x(), as_factors(self._module.weight, grad.dtype)
        grads = self._grad_of(self._module.weight, mean), self._grad_of(self._module.bias, mean)
        columns = self._columns if from_rows else None
        from_own = from_rows and columns is None
        backend(x).batch_norm_backward(grad, x, mean, rstd, weight, from_own, grad_x, *grads)
        if columns is not None and grad_x is not None:
            scratch = self._scratch[0].tensor
            columns.couple(grad_x, x, statistics=(mean, rstd), weight=weight, sums=grads, scratch=scratch)
        return grads

    def _grad_of(self, parameter: nn.Parameter | None, like: Tensor) -> Tensor:
        """Return memory for a gradient, which the kernel writes whether or not it is needed."""
        learns = parameter is not None and parameter.requires_grad
        return self._plan.lend(parameter) if parameter is not None and learns else torch.empty_like(like)


__all__ = ["PlannedNorm", "plan_norm"]
