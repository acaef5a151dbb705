"""Graph breaks: the calls that PyTorch runs, with a graph of their own from forward to backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.batches.operations import run_layer
from graphbraid.fullgraph.program import Break, FromBreak, Operation, maker_of
from graphbraid.fullgraph.step.arena import FirstRows
from graphbraid.fullgraph.step.plan import PlannedClass, PlannedOperation, StepPlan


class PlannedBreak(PlannedOperation[Break]):
    """The calls of a break, made by PyTorch; their graph lives until the backward tasks.

    Its memory comes from torch's allocator, beside the arena, and so does that of results which later breaks
    read. These are leaves of the later break's graph; backward hands their gradients to the earlier one.
    """

    def __init__(self, plan: StepPlan, op: Break) -> None:
        super().__init__(plan, op)
        used = op.used_inputs
        self._read = [number for number in range(len(op.inputs)) if number in used]
        self._learning = [number for number in self._read if plan.program.learns(op.inputs[number])]
        self._parameters = [p for p in op.parameters() if p.requires_grad]
        self._leaves: list[Tensor] = []
        self._result: Tensor | None = None
        self._earlier = {one: self._planned(one) for one in op.read_breaks}
        self._kept: dict[int, Any] = {}
        """Results for later breaks, by the number of the call."""
        self._read_kept: list[tuple[PlannedBreak, Tensor, Tensor]] = []
        """The earlier break, its result and the leaf in its place, for each one that requires a gradient."""
        self._handed: list[tuple[Tensor, Tensor]] = []
        """Kept results and their gradients, from later breaks."""

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
            known = (leaf for by, of, leaf in self._read_kept if of is kept and by is maker)
            if (found := next(known, None)) is None:
                found = kept.detach().requires_grad_()
                self._read_kept.append((maker, kept, found))
            return found

        return tree_map_only(Tensor, leaf, maker._kept[one.call])

    def forward(self) -> None:
        """Plan the calls; the result is copied to its buffer."""
        plan, op = self.plan, self.op
        rows = {number: plan.rows(op.inputs[number]) for number in self._read}
        out, keeps = plan.result(op), plan.training and plan.program.learns(op.out)

        def run() -> None:
            # .data, since other buffers of the arena may be written before backward, which autograd would
            # take for a change of these.
            inputs = {number: one.tensor.data for number, one in rows.items()}
            self._kept, self._read_kept, self._handed = {}, [], []
            with torch.set_grad_enabled(keeps):
                if keeps:
                    self._leaves = [inputs[number].requires_grad_() for number in self._learning]
                result = op.run(
                    [inputs.get(number, out.tensor) for number in range(len(op.inputs))],
                    run_layer=run_layer,
                    earlier=self._of_earlier,
                    keep=self._kept,
                )
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
        for one in self._earlier:  # whose own gradient may come from nothing but what it has kept
            value = op.inputs[one.number]
            rows, is_there = plan.grad_of(value) if plan.program.learns(value) else (grad, True)
            if not is_there:
                plan.do(f"gradient of {value}: zero", _zeroed(rows), rows)

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
        """Return the gradients of the inputs that learn and of the parameters, and free the graph.

        Those of results that earlier breaks have kept are handed to them.
        """
        result, wanted = self._result, [*self._leaves, *self._parameters]
        read, handed = self._read_kept, self._handed
        self._result, self._leaves, self._read_kept, self._handed = None, [], [], []
        self._kept = {}
        assert result is not None
        # A copy: autograd may return the gradient itself, and other tasks write to its buffer.
        given = [*([(result, grad.clone())] if result.requires_grad else []), *handed]
        leaves = [*wanted, *(leaf for *_, leaf in read)]
        if not given or not leaves:
            return [None] * len(wanted)
        outputs, grads = zip(*given, strict=True)
        found: list[Tensor | None] = [*torch.autograd.grad(outputs, leaves, grads, allow_unused=True)]
        for (maker, kept, _), gradient in zip(read, found[len(wanted) :], strict=True):
            if gradient is not None:
                maker._handed.append((kept, gradient))
        return found[: len(wanted)]


def _zeroed(rows: FirstRows) -> Callable[[], object]:
    """Return a task that fills rows with zeros."""
    return lambda: rows.tensor.zero_()  # noqa: PLW0108 - memory comes later


PLANNED: dict[type[Operation], PlannedClass] = {Break: PlannedBreak}
"""The class of this module, by the operation that it plans."""

__all__ = ["PLANNED"]
