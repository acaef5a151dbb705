"""Operations on rows of one level by PyTorch's kernels, and those that compute nothing in a step."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from graphbraid.fullgraph.program import (
    Add,
    Combine,
    Concat,
    DestinationRows,
    Largest,
    Learned,
    Operation,
    Prelu,
    RowFunction,
    Scale,
    UnitRows,
)
from graphbraid.fullgraph.step.arena import FirstRows
from graphbraid.fullgraph.step.plan import PlannedClass, PlannedOperation, StepPlan
from graphbraid.fullgraph.step.row_functions import FUNCTIONS
from graphbraid.ops.kernels import recorded_whole


class PlannedDestinationRows(PlannedOperation[DestinationRows]):
    """The first rows of a value, as a view. Consumers write the gradient into the value's own."""

    def forward(self) -> None:
        """Plan no task."""
        plan, op, source = self.plan, self.op, self.source
        if plan.streams is not None and op.out in plan.streams:
            return
        count = plan.count_of(op.out)
        if source in plan.program.inputs:
            plan.constants[op.out] = plan.features[source].rows_of(plan.program.level(op.out))
        elif source in plan.constants:
            plan.constants[op.out] = plan.constants[source].first(count)
        else:
            plan.values[op.out] = FirstRows(plan.values[source].buffer, count)


class PlannedLearned(PlannedOperation[Learned]):
    """Learned rows of nodes: the level's rows are copied, and their gradients given."""

    def forward(self) -> None:
        """Plan to copy the rows of the value's nodes."""
        plan, op, out = self.plan, self.op, self.plan.result(self.op)
        nodes = plan.nodes_of(op.out)

        def run() -> None:
            rows = op.table.detach()
            out.tensor.copy_(rows if nodes is None else rows.index_select(0, nodes))

        plan.do(op.out, run, out)

    def backward(self) -> None:
        """Plan the table's gradient, which is 0 for nodes that the level does not hold."""
        plan, op = self.plan, self.op
        if not op.table.requires_grad:
            return
        grad, nodes = self.grad, plan.nodes_of(op.out)

        def run() -> None:
            whole = plan.parameters.lend(op.table)
            if nodes is None:
                whole.copy_(grad.tensor)
            else:
                whole.zero_().index_copy_(0, nodes, grad.tensor)
            plan.parameters.give(op.table, whole)

        plan.do(f"gradient of {op.out}'s rows", run, grad)


class PlannedAdd(PlannedOperation[Add]):
    """A sum of two values, in place of the second one if nothing else reads that."""

    def forward(self) -> None:
        """Plan the sum."""
        plan, out = self.plan, self.plan.rows_to_add_into(self.op)
        first = plan.rows(self.source)
        plan.do(self.op.out, lambda: out.tensor.add_(first.tensor), out, first)

    def backward(self) -> None:
        """Pass the gradient on to both."""
        for value in self.op.inputs:
            self.plan.pass_on(self.op, value)


class PlannedCombine(PlannedOperation[Combine]):
    """A linear combination, in place of the first input if nothing else reads that."""

    def forward(self) -> None:
        """Plan the value."""
        plan, op = self.plan, self.op
        reads = [plan.rows(value) for value in op.inputs]
        out = plan.result(op, overwrites=self.source if plan.may_overwrite(self.source) else None)

        def run() -> None:
            torch.mul(reads[0].tensor, op.factors[0], out=out.tensor)
            for read, factor in zip(reads[1:], op.factors[1:], strict=True):
                out.tensor.add_(read.tensor, alpha=factor)

        plan.do(op.out, run, out, *reads)

    def backward(self) -> None:
        """Plan the inputs' gradients: the result's gradient times their factors."""
        plan, op, grad = self.plan, self.op, self.grad
        pairs = list(zip(op.inputs, op.factors, strict=True))
        for value, factor in sorted(pairs, key=lambda pair: pair[1] == 1):  # a shared buffer comes last
            if factor == 1:
                plan.pass_on(op, value)
            else:
                plan.accumulate(value, partial(_add_times, grad, factor), grad)


def _add_times(grad: FirstRows, factor: float, out: Tensor, add: bool) -> None:
    out.add_(grad.tensor, alpha=factor) if add else torch.mul(grad.tensor, factor, out=out)


class PlannedConcat(PlannedOperation[Concat]):
    """The inputs' columns side by side."""

    def __init__(self, plan: StepPlan, op: Concat) -> None:
        super().__init__(plan, op)
        self._columns: list[slice] = []
        start = 0
        for value in op.inputs:
            self._columns.append(slice(start, start := start + plan.program.width(value)))

    def forward(self) -> None:
        """Plan to copy the columns."""
        plan, reads = self.plan, [self.plan.rows(value) for value in self.op.inputs]
        out = plan.result(self.op)

        def run() -> None:
            for read, part in zip(reads, self._columns, strict=True):
                out.tensor[:, part].copy_(read.tensor)

        plan.do(self.op.out, run, out, *reads)

    def backward(self) -> None:
        """Plan the inputs' gradients: each its columns of the result's gradient."""
        plan, grad = self.plan, self.grad
        for value, part in zip(self.op.inputs, self._columns, strict=True):
            plan.accumulate(value, partial(_add_columns, grad, part), grad)


def _add_columns(grad: FirstRows, part: slice, out: Tensor, add: bool) -> None:
    columns = grad.tensor[:, part]
    out.add_(columns) if add else out.copy_(columns)


class PlannedLargest(PlannedOperation[Largest]):
    """The largest input, element by element. The number of the winner is stored for backward."""

    def forward(self) -> None:
        """Plan the value."""
        plan, op = self.plan, self.op
        reads = [plan.rows(value) for value in op.inputs]
        out, width = plan.result(op), plan.program.width(op.out)
        winner = self._winner = plan.scratch(f"{op.out}: winners", out.count, width, dtype=torch.uint8)
        is_more = plan.scratch(f"{op.out}: is more", out.count, width, dtype=torch.bool)

        def run() -> None:
            out.tensor.copy_(reads[0].tensor)
            winner.tensor.zero_()
            for number, read in enumerate(reads[1:], 1):
                x = read.tensor
                torch.gt(x, out.tensor, out=is_more.tensor)
                winner.tensor.masked_fill_(is_more.tensor, number)
                torch.maximum(x, out.tensor, out=out.tensor)

        plan.do(op.out, run, out, winner, is_more, *reads)

    def backward(self) -> None:
        """Plan the inputs' gradients: the result's gradient where they were the largest."""
        plan, op, grad, winner = self.plan, self.op, self.grad, self._winner
        for number, value in enumerate(op.inputs):
            is_won = plan.scratch(f"{op.out}: is {value}", grad.count, plan.program.width(op.out))
            plan.accumulate(value, partial(self._add_won, number, is_won), grad, winner, is_won)

    def _add_won(self, number: int, is_won: FirstRows, out: Tensor, add: bool) -> None:
        grad = self.grad.tensor
        torch.eq(self._winner.tensor, number, out=is_won.tensor)
        out.addcmul_(grad, is_won.tensor) if add else torch.mul(grad, is_won.tensor, out=out)


class PlannedFunction(PlannedOperation[RowFunction]):
    """A function of each row without parameters."""

    def forward(self) -> None:
        """Plan the value, in place if nothing else, nor backward, reads the input."""
        plan, op, function = self.plan, self.op, FUNCTIONS[self.op.kind]
        x = plan.rows(self.source)
        in_place = plan.may_overwrite(self.source) and (function.reads_result or not plan.training)
        out = plan.result(op, overwrites=self.source if in_place else None)
        plan.do(op.out, lambda: function.forward(x.tensor, op.arguments, out.tensor), out, x)

    def backward(self) -> None:
        """Plan the input's gradient."""
        plan, op, grad, function = self.plan, self.op, self.grad, FUNCTIONS[self.op.kind]
        if not plan.program.learns(self.source):
            return
        kept = plan.rows(op.out if function.reads_result else self.source)

        def run(out: Tensor) -> None:
            function.backward(grad.tensor, kept.tensor, op.arguments, out)

        plan.write_grad(self.source, run, grad, kept)


class PlannedPrelu(PlannedOperation[Prelu]):
    """PReLU, with one learned slope or one per column."""

    def forward(self) -> None:
        """Plan the value; backward reads the input."""
        plan, op, x = self.plan, self.op, self.plan.rows(self.source)
        out = plan.result(op)
        is_above = self._is_above(out.count)

        def run() -> None:
            rows = x.tensor
            torch.gt(rows, 0, out=is_above.tensor)
            torch.mul(rows, op.slope.detach(), out=out.tensor)
            torch.where(is_above.tensor, rows, out.tensor, out=out.tensor)

        plan.do(op.out, run, out, is_above, x)

    def backward(self) -> None:
        """Plan the gradients of the slope, ``sum(grad * min(x, 0))``, and of the input."""
        plan, op, grad, x = self.plan, self.op, self.grad, self.plan.rows(self.source)
        if op.slope.requires_grad:
            products = plan.scratch(f"{op.out}: products", grad.count, plan.program.width(op.out))

            def give() -> None:
                torch.clamp(x.tensor, max=0, out=products.tensor)
                rows, given = products.tensor.mul_(grad.tensor), plan.parameters.lend(op.slope)
                torch.sum(rows if given.numel() > 1 else rows.view(-1, 1), 0, out=given)
                plan.parameters.give(op.slope, given)

            plan.do(f"gradient of {op.out}'s slope", give, grad, products, x)
        if not plan.program.learns(self.source):
            return
        is_above = self._is_above(grad.count)

        def run(out: Tensor) -> None:
            torch.gt(x.tensor, 0, out=is_above.tensor)
            torch.mul(grad.tensor, op.slope.detach(), out=out)
            torch.where(is_above.tensor, grad.tensor, out, out=out)

        plan.write_grad(self.source, run, grad, is_above, x)

    def _is_above(self, count: int) -> FirstRows:
        width = self.plan.program.width(self.op.out)
        return self.plan.scratch(f"{self.op.out}: is above 0", count, width, dtype=torch.bool)


class PlannedScale(PlannedOperation[Scale]):
    """A product of rows and ``1 + factor``, a learned number."""

    def forward(self) -> None:
        """Plan the value; backward reads the input."""
        plan, op, x = self.plan, self.op, self.plan.rows(self.source)
        out = plan.result(op)
        plan.do(op.out, lambda: _scale(x.tensor, op.factor.detach(), out.tensor, False), out, x)

    def backward(self) -> None:
        """Plan the gradients of the rows, ``(1 + factor) grad``, and of the factor, ``sum(grad * x)``."""
        plan, op, grad = self.plan, self.op, self.grad
        if op.factor.requires_grad:
            x = plan.rows(self.source)
            products = plan.scratch(f"{op.out}: products", grad.count, plan.program.width(op.out))

            def run() -> None:
                given = plan.parameters.lend(op.factor)
                _factor_gradient(grad.tensor, x.tensor, products.tensor, given)
                plan.parameters.give(op.factor, given)

            plan.do(f"gradient of {op.out}'s factor", run, grad, products, x)

        def spread(out: Tensor, add: bool) -> None:
            _scale(grad.tensor, op.factor.detach(), out, add)

        plan.accumulate(self.source, spread, grad)


@recorded_whole
def _scale(x: Tensor, factor: Tensor, out: Tensor, add: bool) -> None:
    """Compute ``out (+)= (1 + factor) x``."""
    if add:
        out.addcmul_(x, 1 + factor)
    else:
        torch.mul(x, 1 + factor, out=out)


@recorded_whole
def _factor_gradient(grad: Tensor, x: Tensor, products: Tensor, out: Tensor) -> None:
    """Compute ``out = sum(grad * x)`` by way of ``products``."""
    torch.mul(grad, x, out=products)
    torch.sum(products.view(1, -1), 1, out=out)


class PlannedUnitRows(PlannedOperation[UnitRows]):
    """Rows of length 1, in place of the input if nothing else reads that; the lengths are stored."""

    def forward(self) -> None:
        """Plan the value."""
        plan, op, x = self.plan, self.op, self.plan.rows(self.source)
        out = plan.result(op, overwrites=self.source if plan.may_overwrite(self.source) else None)
        lengths = self._lengths = plan.scratch(f"{op.out}: lengths", out.count, 1)

        def run() -> None:
            rows = x.tensor
            torch.linalg.vector_norm(rows, dim=1, keepdim=True, out=lengths.tensor)
            torch.div(rows, lengths.tensor.clamp_(min=op.eps), out=out.tensor)

        plan.do(op.out, run, out, lengths, x)

    def backward(self) -> None:
        """Plan the input's gradient, ``(grad - out * (grad . out)) / length``.

        The second term is missing for a row shorter than ``eps``, which was divided by ``eps``.
        """
        plan, op, grad, out, lengths = (
            self.plan,
            self.op,
            self.grad,
            self.plan.values[self.op.out],
            self._lengths,
        )
        along = plan.scratch(f"{op.out}: along", grad.count, 1)
        is_long = plan.scratch(f"{op.out}: is long", grad.count, 1)

        def run(into: Tensor) -> None:
            y, length = out.tensor, lengths.tensor
            torch.mul(grad.tensor, y, out=into)
            torch.sum(into, 1, keepdim=True, out=along.tensor)
            along.tensor.mul_(torch.gt(length, op.eps, out=is_long.tensor))
            torch.mul(y, along.tensor, out=into)
            torch.sub(grad.tensor, into, out=into).div_(length)

        plan.write_grad(self.source, run, grad, out, lengths, along, is_long)


PLANNED: dict[type[Operation], PlannedClass] = {
    Add: PlannedAdd,
    Combine: PlannedCombine,
    Concat: PlannedConcat,
    Largest: PlannedLargest,
    Learned: PlannedLearned,
    DestinationRows: PlannedDestinationRows,
    RowFunction: PlannedFunction,
    Prelu: PlannedPrelu,
    Scale: PlannedScale,
    UnitRows: PlannedUnitRows,
}
"""The classes of this module, by the operation that they plan."""
