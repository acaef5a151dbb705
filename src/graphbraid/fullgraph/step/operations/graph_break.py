"""Operations that PyTorch runs, with a graph of their own from forward to backward, such as graph breaks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.batches.operations import run_layer
from graphbraid.fullgraph.program import Break, FromBreak, Operation, maker_of
from graphbraid.fullgraph.step.arena import FirstRows
from graphbraid.fullgraph.step.plan import Op, PlannedClass, PlannedOperation, StepPlan


class PlannedByPyTorch(PlannedOperation[Op]):
    """An operation that PyTorch runs with autograd; its graph lives until the backward tasks.

    Its memory comes from torch's allocator, beside the arena.

    Args:
        plan: the step's plan.
        op: the operation.
        read: numbers of the inputs that it reads.
    """

    def __init__(self, plan: StepPlan, op: Op, read: Collection[int]) -> None:
        super().__init__(plan, op)
        self._read = [number for number in range(len(op.inputs)) if number in read]
        self._learning = [number for number in self._read if plan.program.learns(op.inputs[number])]
        self._parameters = [p for p in op.parameters() if p.requires_grad]
        self._leaves: list[Tensor] = []
        self._result: Tensor | None = None
        self._more: list[Tensor] = []
        """Leaves beside the inputs and parameters."""
        self._handed: list[tuple[Tensor, Tensor]] = []
        """Results beside the operation's own, and their gradients."""

    @abstractmethod
    def computed(self, rows: list[Tensor]) -> Tensor:
        """Return the result; ``rows`` has one matrix per input, any values for an input that is not read."""

    def forward(self) -> None:
        """Plan the call; the result is copied to its buffer."""
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
                result = self.computed([inputs.get(number, out.tensor) for number in range(len(op.inputs))])
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
            found = self.gradients(grad.tensor)
            for (rows, adds), gradient in zip(targets, found, strict=False):
                if gradient is not None:
                    rows.tensor.add_(gradient) if adds else rows.tensor.copy_(gradient)
                elif not adds:
                    rows.tensor.zero_()
            for parameter, gradient in zip(self._parameters, found[len(targets) :], strict=False):
                if gradient is not None:  # as PyTorch, which leaves p.grad of an unused parameter alone
                    plan.parameters.give(parameter, gradient)

        plan.do(f"gradient through {op.out}", run, grad, *reads, *(rows for rows, _ in targets))

    def gradients(self, grad: Tensor) -> list[Tensor | None]:
        """Return the gradients of the inputs that learn, of the parameters and of more leaves.

        The graph is freed. ``grad`` is the gradient of the result.
        """
        result, leaves, handed = self._result, [*self._leaves, *self._parameters, *self._more], self._handed
        self._result, self._leaves, self._more, self._handed = None, [], [], []
        assert result is not None
        # A copy: autograd may return the gradient itself, and other tasks write to its buffer.
        given = [*([(result, grad.clone())] if result.requires_grad else []), *handed]
        if not given or not leaves:
            return [None] * len(leaves)
        outputs, grads = zip(*given, strict=True)
        return [*torch.autograd.grad(outputs, leaves, grads, allow_unused=True)]


class PlannedBreak(PlannedByPyTorch[Break]):
    """The calls of a break.

    Results that later breaks read are leaves of the later break's graph; backward hands their gradients to
    the earlier one.
    """

    def __init__(self, plan: StepPlan, op: Break) -> None:
        super().__init__(plan, op, op.used_inputs)
        self._earlier = {one: self._planned(one) for one in op.read_breaks}
        self._kept: dict[int, Any] = {}
        """Results for later breaks, by the number of the call."""
        self._read_kept: list[tuple[PlannedBreak, Tensor]] = []
        """For each leaf beside the inputs and parameters, the earlier break and the result that it is."""

    def _planned(self, one: FromBreak) -> PlannedBreak:
        maker = maker_of(self.plan.program.producer, self.op.inputs[one.number])
        assert maker is not None
        found = self.plan.planned[maker.out]
        assert isinstance(found, PlannedBreak)
        return found

    def _of_earlier(self, one: FromBreak) -> Any:
        """Return a result that an earlier break has kept, without its graph."""
        maker = self._earlier[one]

        def leaf(kept: Tensor) -> Tensor:
            if not kept.requires_grad or not torch.is_grad_enabled():
                return kept.detach() if kept.requires_grad else kept
            of = zip(self._read_kept, self._more, strict=True)
            if (found := next((leaf for (by, one), leaf in of if one is kept and by is maker), None)) is None:
                found = kept.detach().requires_grad_()
                self._read_kept.append((maker, kept))
                self._more.append(found)
            return found

        return tree_map_only(Tensor, leaf, maker._kept[one.call])

    def computed(self, rows: list[Tensor]) -> Tensor:
        """Make the calls."""
        self._kept, self._read_kept, self._more, self._handed = {}, [], [], []
        return self.op.run(rows, run_layer=run_layer, earlier=self._of_earlier, keep=self._kept)

    def backward(self) -> None:
        """Plan the gradients of the inputs and of the parameters."""
        super().backward()
        plan = self.plan
        for one in self._earlier:  # an earlier break's gradient may come from its kept results alone
            value = self.op.inputs[one.number]
            rows, is_there = plan.grad_of(value) if plan.program.learns(value) else (self.grad, True)
            if not is_there:
                plan.do(f"gradient of {value}: zero", _zeroed(rows), rows)

    def gradients(self, grad: Tensor) -> list[Tensor | None]:
        """Hand the gradients of results that earlier breaks have kept to them, and return all."""
        read, self._read_kept, self._kept = self._read_kept, [], {}
        found = super().gradients(grad)
        for (maker, kept), gradient in zip(read, found[len(found) - len(read) :], strict=True):
            if gradient is not None:
                maker._handed.append((kept, gradient))
        return found


def _zeroed(rows: FirstRows) -> Callable[[], object]:
    """Return a task that fills rows with zeros."""
    return lambda: rows.tensor.zero_()  # noqa: PLW0108 - memory comes later


PLANNED: dict[type[Operation], PlannedClass] = {Break: PlannedBreak}
"""The class of this module, by the operation that it plans."""
