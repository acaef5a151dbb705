"""Messages of a user's own layer, by one kernel or by PyTorch on blocks of edges."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from graphbraid.fullgraph.lowering.levels import computed_between
from graphbraid.fullgraph.program import Messages, Operation, ReadRows
from graphbraid.fullgraph.step.arena import FirstRows, Rows
from graphbraid.fullgraph.step.plan import PlannedClass, PlannedOperation, StepPlan
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.message_kernel import FusedMessages
from graphbraid.ops.messages import BlockedMessages, EdgeGradients, EdgeRows


class PlannedMessages(PlannedOperation[Messages]):
    """The reduction of a user's messages. Nothing is stored per edge; backward runs the messages again."""

    def __init__(self, plan: StepPlan, op: Messages) -> None:
        super().__init__(plan, op)
        self._level = plan.program.level(self.source)
        csc, self._computed = plan.blocks[self._level].of(None).csc, tuple[Tensor, ...]()
        if op.edges is not None:
            block = plan.request.blocks[self._level].of(None)
            csc, self._computed = computed_between(op.edges, plan.request.whole_edges(None), block)
        how: dict[str, Any] = {"parameters": op.used, "ties": op.ties}
        self._how: BlockedMessages | FusedMessages
        if op.steps:
            how["heads"] = op.heads
            self._how = FusedMessages(csc, op.steps, op.several or op.reduction, op.edge_width, **how)
        else:
            how |= {"by_destination": op.by_destination, "edge_width": op.edge_width}
            self._how = BlockedMessages(csc, op.run, op.reduction, op.width_out, **how)
        self._seed = plan.seeds.add() if op.draws else None
        self._drawn: dict[str, Any] = {}
        self._count: FirstRows | None = None
        self._kept: list[FirstRows] = []

    def forward(self) -> None:
        """Plan the value."""
        plan, op, out = self.plan, self.op, self.plan.result(self.op)
        has_backward = plan.training and plan.program.learns(op.out)
        if has_backward and (width := self._how.count_width):
            self._count = plan.scratch(f"{op.out}: shares", out.count, width, dtype=torch.int32)
        if isinstance(self._how, FusedMessages) and has_backward:
            self._kept = [
                plan.scratch(f"{op.out}: kept {number}", out.count, width)
                for number, width in enumerate(self._how.kept_widths)
            ]
        inputs, count = self._inputs, self._count

        def run() -> None:
            self._drawn = {} if self._seed is None else {"seed": self._seed()}
            self._how.forward(
                self._rows(), out.tensor, None if count is None else count.tensor, **self._kept_rows()
            )

        plan.do(op.out, run, out, count, *self._kept, *inputs)

    def backward(self) -> None:
        """Plan one more run of the messages, which gives the gradients of the inputs and parameters."""
        plan, op, grad = self.plan, self.op, self.grad
        learned = [value for value in dict.fromkeys(op.inputs) if plan.program.learns(value)]
        parts = {value: plan.part_of_grad(value) for value in learned}
        if not learned and not any(parameter.requires_grad for parameter in op.used):
            return
        out, count = plan.values[op.out], self._count
        targets = [target for target, _ in parts.values()]

        def run() -> None:
            for target in targets:
                target.tensor.zero_()
            lend = plan.parameters.lend
            totals = [lend(parameter).zero_() if parameter.requires_grad else None for parameter in op.used]
            tensors = {value: target.tensor for value, (target, _) in parts.items()}
            sources, destinations = (
                tuple(tensors.get(op.inputs[at]) for _, is_role, at in op.reads if is_role is role)
                for role in (ReadRows.SOURCE, ReadRows.DESTINATION)
            )
            rows = self._rows()
            into = EdgeGradients(
                sources=sources,
                destinations=destinations,
                edges=(None,) * len(rows.edges),
                parameters=tuple(totals),
            )
            kept = None if count is None else count.tensor
            self._how.backward(rows, grad.tensor, into, out=out.tensor, count=kept, **self._kept_rows())
            for parameter, total in zip(op.used, totals, strict=True):
                if total is not None:
                    plan.parameters.give(parameter, total)

        plan.do(f"gradient of {self.source}", run, grad, out, count, *self._kept, *self._inputs, *targets)
        for value, (target, total) in parts.items():
            plan.add_part(value, target, total)

    def _kept_rows(self) -> dict[str, Any]:
        """Return what forward keeps for backward beside a maximum's count."""
        return {"kept": [rows.tensor for rows in self._kept]} if self._kept else self._drawn

    @property
    def _inputs(self) -> list[Rows]:
        return [self.plan.rows(value) for value in self.op.inputs]

    def _rows(self) -> EdgeRows:
        """Return what the messages read, while a task runs."""
        inputs, reads = self._inputs, self.op.reads
        sources, destinations = (
            tuple(inputs[at].tensor for _, is_role, at in reads if is_role is role)
            for role in (ReadRows.SOURCE, ReadRows.DESTINATION)
        )
        edges = []
        for _, role, at in reads:
            if role is ReadRows.FEATURES:
                edges.append(self.plan.edge_features.rows(self._level))
            elif role is ReadRows.COMPUTED:
                edges.append(self._computed[at])
            elif role is ReadRows.WEIGHT:
                edges.append(self._weights)
        return EdgeRows(sources=sources, destinations=destinations, edges=tuple(edges))

    @cached_property
    def _weights(self) -> Tensor:
        """The weights of the level's edges."""
        whole = self.plan.request.whole_edges(None)
        found = (
            self.plan.request.blocks[self._level].of(None).bind(Aggregation(csc=whole, weight=whole.weight))
        )
        weight, copies = found.weight, self.plan.copies
        assert weight is not None
        weight = weight.detach().to(torch.float32)
        return weight if copies is None else copies.matrix(weight)


PLANNED: dict[type[Operation], PlannedClass] = {Messages: PlannedMessages}
"""The class of messages, by the operation that it plans."""
