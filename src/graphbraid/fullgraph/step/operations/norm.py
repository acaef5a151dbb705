"""Layer and batch normalisation. Several ranks normalise by the statistics of all ranks' rows.

Backward reads the input, not the output, and two numbers per row (layer) or column (batch). Keeping the input
costs one matrix per normalisation, in the usual stack the least possible: the activation that follows
overwrites the output, so its buffer is the one that the next layer reads anyway. Backward from the output
would prevent that overwriting, which costs as much memory, and would divide by a weight that may be 0. It
would save a matrix only where a linear map reads the output directly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import DestinationRows, Normalise
from graphbraid.fullgraph.step.plan import PlannedOperation, StepPlan
from graphbraid.fullgraph.step.tasks import FirstRows
from graphbraid.ops.kernels import backend, recorded_whole, sum_dtype
from graphbraid.ops.norm import Moments, as_factors, batch_statistics, column_moments, settings_of

if TYPE_CHECKING:
    from graphbraid.distributed.ranks.communicator import Communicator


_Gradients = tuple[Tensor | None, Tensor | None]
"""Gradients of a normalisation's weight and bias; None for one that it does not have or learn."""


class _Norm(PlannedOperation[Normalise]):
    """One normalisation of a planned step, with its statistics from forward to backward."""

    def __init__(self, plan: StepPlan, op: Normalise) -> None:
        super().__init__(plan, op)
        self._module: Any = op.module
        self._learns = plan.training and plan.program.learns(op.out)
        self._statistics: tuple[FirstRows, ...] = ()
        """Rows that the forward pass writes for the backward pass."""
        self._scratch: tuple[FirstRows, ...] = ()
        """Rows that the backward pass writes beside the gradients."""

    @abstractmethod
    def _run(self, x: Tensor, out: Tensor) -> None:
        """Normalise ``x`` into ``out``, which may be ``x``."""

    @abstractmethod
    def _run_backward(self, grad: Tensor, x: Tensor, grad_x: Tensor | None) -> _Gradients:
        """Write the input's gradient to ``grad_x``, if given, and return the weight's and the bias's."""

    def forward(self) -> None:
        """Plan the value, in place if nothing else, nor backward, reads the input."""
        plan, op, source = self.plan, self.op, self.source
        x = self._x = plan.rows(source)
        alone = len(plan.program.consumers(source)) == 1 and not self._reads_own_rows
        in_place = not self._learns and alone and source in plan.values
        out = plan.result(op, overwrites=source if in_place else None)

        def run() -> None:
            self._run(x.tensor.contiguous(), out.tensor)  # the user's features may have another layout

        plan.do(op.out, run, out, x, *self._statistics)

    def backward(self) -> None:
        """Plan the gradients."""
        plan, source, grad, x = self.plan, self.source, self.grad, self._x
        target, total = self._target(grad) if plan.program.learns(source) else (None, None)

        def run() -> None:
            into = None if target is None else target.tensor
            grads = self._run_backward(grad.tensor, x.tensor.contiguous(), into)
            for parameter, found in zip((self._module.weight, self._module.bias), grads, strict=True):
                if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                    assert found is not None
                    plan.parameters.give(parameter, found)

        plan.do(f"gradient of {source}", run, grad, x, *self._statistics, *self._scratch, target)
        if target is not None:
            plan.add_part(source, target, total)

    def _target(self, grad: FirstRows) -> tuple[FirstRows, FirstRows | None]:
        """Return the rows for the input's gradient, and the sum to add it to, if there is one.

        The rows of the result's gradient are used, unless an addition shares them with a value whose
        gradient is used later.
        """
        plan, op, source = self.plan, self.op, self.source
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
        return isinstance(self.plan.program.producer(self.source), DestinationRows)


class PlannedLayerNorm(_Norm):
    """Layer normalisation; each row's mean and reciprocal deviation are stored for backward."""

    def __init__(self, plan: StepPlan, op: Normalise) -> None:
        super().__init__(plan, op)
        if self._learns:
            count = plan.count_of(op.out)
            self._statistics = tuple(plan.scratch(f"{op.out}: {name}", count) for name in ("mean", "rstd"))

    def _run(self, x: Tensor, out: Tensor) -> None:
        module = self._module
        mean, rstd = (rows.tensor for rows in self._statistics) if self._statistics else (None, None)
        factors = as_factors(module.weight, x.dtype), as_factors(module.bias, x.dtype)
        backend(x).layer_norm(x, *factors, module.eps, out, mean, rstd)

    def _run_backward(self, grad: Tensor, x: Tensor, grad_x: Tensor | None) -> _Gradients:
        weight = as_factors(self._module.weight, grad.dtype)
        mean, rstd = (rows.tensor for rows in self._statistics)
        grads = tuple(
            None if parameter is None or not parameter.requires_grad else self.plan.parameters.lend(parameter)
            for parameter in (self._module.weight, self._module.bias)
        )
        backend(x).layer_norm_backward(grad, x, weight, mean, rstd, grad_x, *grads)
        return grads[0], grads[1]


class PlannedBatchNorm(_Norm):
    """Batch normalisation by the statistics of all rows or, as the module's mode says, the running ones."""

    def __init__(self, plan: StepPlan, op: Normalise) -> None:
        super().__init__(plan, op)
        self._last: tuple[Tensor, Tensor, bool] | None = None
        self._columns = None if plan.comm is None else RankColumns(plan.comm)
        if self._columns is not None and self._learns:
            self._scratch = (plan.new(f"{op.out}: coupling", op),)

    def _run(self, x: Tensor, out: Tensor) -> None:
        module, moments = self._module, None if self._columns is None else self._columns.moments
        mean, rstd, _ = self._last = batch_statistics(x, **settings_of(module), moments=moments)
        factors = as_factors(module.weight, x.dtype), as_factors(module.bias, x.dtype)
        backend(x).batch_norm(x, mean, rstd, *factors, out)

    def _run_backward(self, grad: Tensor, x: Tensor, grad_x: Tensor | None) -> _Gradients:
        assert self._last is not None
        mean, rstd, from_rows = self._last
        weight = as_factors(self._module.weight, grad.dtype)
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
        if parameter is not None and parameter.requires_grad:
            return self.plan.parameters.lend(parameter)
        return torch.empty_like(like)


class RankColumns:
    """The columns of a matrix whose rows are divided among ranks.

    ``counted``, ``(num_rows,)`` bool, is False for rows that another rank counts; without it, all count here.
    ``gathered`` gives all ranks' lines of numbers, by rank, from this one's; without it, they are added up
    here.
    """

    def __init__(
        self,
        comm: Communicator,
        counted: Tensor | None = None,
        gathered: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._comm, self._counted, self._gathered = comm, counted, gathered or self._added_up
        self._num_rows = 0

    def moments(self, x: Tensor) -> Moments:
        """Return the mean and biased variance of each column, and the number of rows, over all ranks."""
        width, dtype = x.shape[1], sum_dtype(x.dtype)
        x = x if self._counted is None else x[self._counted]
        line = torch.zeros(2 * width + 1, dtype=torch.float64)
        if x.shape[0]:
            mean, var, line[-1] = column_moments(x)
            line[:-1] = torch.cat((mean.double(), var.double())).cpu()
        table = self._gathered(line)
        means, variances, counts = table[:, :width], table[:, width:-1], table[:, -1:]
        self._num_rows = int(counts.sum())
        share = counts / max(self._num_rows, 1)
        mean = (share * means).sum(0)
        var = (share * (variances + (means - mean).square())).sum(0)
        return mean.to(x.device, dtype), var.to(x.device, dtype), self._num_rows

    def _added_up(self, line: Tensor) -> Tensor:
        table = torch.zeros(self._comm.size, line.numel(), dtype=line.dtype)
        table[self._comm.rank] = line
        return self._comm.all_reduce(table).wait()

    @recorded_whole
    def couple(
        self,
        grad_x: Tensor,
        x: Tensor,
        *,
        statistics: tuple[Tensor, Tensor],
        weight: Tensor | None,
        sums: tuple[Tensor, Tensor],
        scratch: Tensor,
    ) -> None:
        """Complete the gradient of the rows, which depend on each other through their statistics.

        ``grad_x`` becomes ``rstd (h - average(h) - y average(h y))``, with ``h = weight grad``, normalised
        rows ``y`` and averages over all ranks' rows; see ``csrc/rowwise/norm.inl``. All ranks call it.

        Args:
            grad_x: ``(num_rows, width)``: ``rstd h``; written.
            x: ``(num_rows, width)`` rows before they were normalised.
            statistics: ``(width,)`` mean and ``rstd`` of each column, by :meth:`moments`.
            weight: ``(width,)``. If None, ones.
            sums: ``(width,)`` sums of ``grad y`` and of ``grad`` over this rank's rows.
            scratch: ``(num_rows, width)``, written.
        """
        mean, rstd = statistics
        averages = torch.stack(sums).double().cpu()
        self._comm.all_reduce(averages).wait()
        averages /= max(self._num_rows, 1)
        scale = rstd if weight is None else rstd * weight
        along, average = (scale * part.to(rstd) for part in averages)
        if x.shape[0]:
            backend(x).batch_norm(x, mean, rstd, along, average, scratch)  # y along + average
            if self._counted is not None:
                scratch[~self._counted] = 0
            grad_x.sub_(scratch)
