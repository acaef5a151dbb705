"""Graph breaks: the calls that PyTorch runs, with a graph of their own from forward to backward."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.program import Break, Operation
from graphbraid.fullgraph.step.plan import PlannedClass, PlannedOperation, StepPlan


class PlannedBreak(PlannedOperation[Break]):
    """The calls of a break, made by PyTorch; their graph lives until the backward tasks.

    Its memory comes from torch's allocator, beside the arena.
    """

    def __init__(self, plan: StepPlan, op: Break) -> None:
        super().__init__(plan, op)
        used = op.used_inputs
        self._read = [number for number in range(len(op.inputs)) if number in used]
        self._learning = [number for number in self._read if plan.program.learns(op.inputs[number])]
        self._parameters = [p for p in op.parameters() if p.requires_grad]
        self._leaves: list[Tensor] = []
        self._result: Tensor | None = None

    def forward(self) -> None:
        """Plan the calls; the result is copied to its buffer."""
        plan, op = self.plan, self.op
        rows = {number: plan.rows(op.inputs[number]) for number in self._read}
        out, keeps = plan.result(op), plan.training and plan.program.learns(op.out)

        def run() -> None:
            # .data, since other buffers of the arena may be written before backward, which autograd would
            # take for a change of these.
            inputs = {number: one.tensor.data for number, one in rows.items()}
            with torch.set_grad_enabled(keeps):
                if keeps:
                    self._leaves = [inputs[number].requires_grad_() for number in self._learning]
                result = op.run([inputs.get(number, out.tensor) for number in range(len(op.inputs))])
            if result.shape != out.tensor.shape:  # a copy would repeat a single row
                what = f"it returned {tuple(result.shape)} where {tuple(out.tensor.shape)} is expected"
                raise ConfigError(f"{op.details()} cannot be a graph break: {what}")
            out.tensor.copy_(result.detach())
            self._result = result if keeps else None

        plan.do(op.out, run, out, *rows.values())

    def backward(self) -> None:
        """Plan the gradients of the inputs and of the parameters."""
        plan, op, grad = self.plan, self.op, self.grad
        targets = [plan.grad_of(op.inputs[number]) for number in self._learning]
        reads = (plan.rows(op.inputs[number]) for number in self._read)

        def run() -> None:
            found = self._gradients(grad.tensor)
            for (rows, adds), gradient in zip(targets, found, strict=False):
                if gradient is not None:
                    rows.tensor.add_(gradient) if adds else rows.tensor.copy_(gradient)
                elif not adds:
                    rows.tensor.zero_()
            for parameter, gradient in zip(self._parameters, found[len(targets) :], strict=True):
                if gradient is not None:  # as PyTorch, which leaves p.grad of an unused parameter alone
                    plan.parameters.give(parameter, gradient)

        plan.do(f"gradient through {op.out}", run, grad, *reads, *(rows for rows, _ in targets))

    def _gradients(self, grad: Tensor) -> list[Tensor | None]:
        """Return the gradients of the inputs that learn and of the parameters, and free the graph."""
        result, wanted = self._result, [*self._leaves, *self._parameters]
        self._result, self._leaves = None, []
        assert result is not None
        if not result.requires_grad or not wanted:
            return [None] * len(wanted)
        # A copy: autograd may return the gradient itself, and other tasks write to its buffer.
        return list(torch.autograd.grad(result, wanted, grad.clone(), allow_unused=True))


PLANNED: dict[type[Operation], PlannedClass] = {Break: PlannedBreak}
"""The class of this module, by the operation that it plans."""

__all__ = ["PLANNED"]
