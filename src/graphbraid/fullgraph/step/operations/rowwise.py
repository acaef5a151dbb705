"""Operations on rows of one level by PyTorch's kernels, and those that compute nothing in a step."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

import torch
from torch import Tensor

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.step.plan import Op, PlannedOperation, StepPlan
from graphbraid.fullgraph.step.tasks import FirstRows, Rows
from graphbraid.ops.kernels import recorded_whole
from graphbraid.ops.messages import as_learned


class PlannedDestinationRows(PlannedOperation[ir.DestinationRows]):
    """The first rows of a value, as a view. Consumers write the gradient into the value's own."""

    keeps_result = True

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


class PlannedLearned(PlannedOperation[ir.Learned]):
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

        def run(whole: Tensor) -> None:
            if nodes is None:
                whole.copy_(grad.tensor)
            else:
                whole.zero_().index_copy_(0, nodes, grad.tensor)

        plan.repeat(f"gradient of {op.out}'s rows", run, grad, gradient_of=op.table)


class PlannedAdd(PlannedOperation[ir.Add]):
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


class PlannedRows(PlannedOperation[Op]):
    """An operation with one forward task, :meth:`compute`, and rows of scratch that the task writes, too."""

    in_place = False
    """Whether it may write over its first input."""

    def __init__(self, plan: StepPlan, op: Op) -> None:
        super().__init__(plan, op)
        self.scratch: tuple[FirstRows, ...] = ()

    @abstractmethod
    def compute(self, out: Tensor, rows: list[Tensor]) -> object:
        """Write the value to ``out``; ``rows`` has those of each input."""

    def forward(self) -> None:
        """Plan the value, in place of the first input if that may be and nothing else reads it."""
        plan, op = self.plan, self.op
        reads = [plan.rows(value) for value in op.inputs]
        in_place = self.in_place and plan.may_overwrite(self.source)
        out = plan.result(op, overwrites=self.source if in_place else None)
        plan.do(
            op.out, lambda: self.compute(out.tensor, [r.tensor for r in reads]), out, *self.scratch, *reads
        )

    def like_result(self, name: str, dtype: torch.dtype = torch.float32, *, width: int = 0) -> FirstRows:
        """Return scratch rows, as many as the value has, and as wide if ``width`` is 0."""
        plan, out = self.plan, self.op.out
        columns = width or plan.program.width(out)
        return plan.scratch(f"{out}: {name}", plan.count_of(out), columns, dtype=dtype)


def _add_product(rows: Tensor, factor: Tensor | float, out: Tensor, add: bool) -> None:
    """Compute ``out (+)= rows * factor``."""
    if not add:
        torch.mul(rows, factor, out=out)
    elif isinstance(factor, Tensor):
        out.addcmul_(rows, factor)
    else:
        out.add_(rows, alpha=factor)


class PlannedCombine(PlannedRows[ir.Combine]):
    """A linear combination, in place of the first input if nothing else reads that."""

    in_place = True

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Add the products up, in order."""
        torch.mul(rows[0], self.op.factors[0], out=out)
        for x, factor in zip(rows[1:], self.op.factors[1:], strict=True):
            out.add_(x, alpha=factor)

    def backward(self) -> None:
        """Plan the inputs' gradients: the result's gradient times their factors."""
        plan, op, grad = self.plan, self.op, self.grad
        pairs = list(zip(op.inputs, op.factors, strict=True))
        for value, factor in sorted(pairs, key=lambda pair: pair[1] == 1):  # a shared buffer comes last
            if factor == 1:
                plan.pass_on(op, value)
            else:
                plan.accumulate(value, partial(self._spread, factor), grad)

    def _spread(self, factor: float, out: Tensor, add: bool) -> None:
        _add_product(self.grad.tensor, factor, out, add)


class PlannedConcat(PlannedRows[ir.Concat]):
    """The inputs' columns side by side."""

    def __init__(self, plan: StepPlan, op: ir.Concat) -> None:
        super().__init__(plan, op)
        self._columns: list[slice] = []
        start = 0
        for value in op.inputs:
            self._columns.append(slice(start, start := start + plan.program.width(value)))

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Copy the columns."""
        for x, part in zip(rows, self._columns, strict=True):
            out[:, part].copy_(x)

    def backward(self) -> None:
        """Plan the inputs' gradients: each its columns of the result's gradient."""
        for value, part in zip(self.op.inputs, self._columns, strict=True):
            self.plan.accumulate(value, partial(self._give, part), self.grad)

    def _give(self, part: slice, out: Tensor, add: bool) -> None:
        columns = self.grad.tensor[:, part]
        out.add_(columns) if add else out.copy_(columns)


class PlannedLargest(PlannedRows[ir.Largest]):
    """The largest input, element by element. The number of the winner is stored for backward."""

    def __init__(self, plan: StepPlan, op: ir.Largest) -> None:
        super().__init__(plan, op)
        self._winner = self.like_result("winners", torch.uint8)
        self._is_more = self.like_result("is more", torch.bool)
        self.scratch = self._winner, self._is_more

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Take the larger of each input and those before it."""
        winner, is_more = self._winner.tensor.zero_(), self._is_more.tensor
        out.copy_(rows[0])
        for number, x in enumerate(rows[1:], 1):
            torch.gt(x, out, out=is_more)
            winner.masked_fill_(is_more, number)
            torch.maximum(x, out, out=out)

    def backward(self) -> None:
        """Plan the inputs' gradients: the result's gradient where they were the largest."""
        for number, value in enumerate(self.op.inputs):
            is_won = self.like_result(f"is {value}")
            give = partial(self._give_won, number, is_won)
            self.plan.accumulate(value, give, self.grad, self._winner, is_won)

    def _give_won(self, number: int, is_won: FirstRows, out: Tensor, add: bool) -> None:
        torch.eq(self._winner.tensor, number, out=is_won.tensor)
        _add_product(self.grad.tensor, is_won.tensor, out, add)


class PlannedScale(PlannedRows[ir.Scale]):
    """A product of rows and ``1 + factor``, a learned number."""

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Multiply the rows."""
        _scale(rows[0], self.op.factor.detach(), out, False)

    def backward(self) -> None:
        """Plan the gradients of the rows, ``(1 + factor) grad``, and of the factor, ``sum(grad * x)``."""
        plan, op, grad = self.plan, self.op, self.grad
        if op.factor.requires_grad:
            x, products = plan.rows(self.source), self.like_result("products")

            def run(given: Tensor) -> None:
                _factor_gradient(grad.tensor, x.tensor, products.tensor, given)

            plan.repeat(f"gradient of {op.out}'s factor", run, grad, products, x, gradient_of=op.factor)
        plan.accumulate(self.source, lambda out, add: _scale(grad.tensor, op.factor.detach(), out, add), grad)


@recorded_whole
def _scale(x: Tensor, factor: Tensor, out: Tensor, add: bool) -> None:
    """Compute ``out (+)= (1 + factor) x``."""
    _add_product(x, 1 + factor, out, add)


@recorded_whole
def _factor_gradient(grad: Tensor, x: Tensor, products: Tensor, out: Tensor) -> None:
    """Compute ``out = sum(grad * x)`` by way of ``products``."""
    torch.mul(grad, x, out=products)
    torch.sum(products.view(1, -1), 1, out=out)


class PlannedUnitRows(PlannedRows[ir.UnitRows]):
    """Rows of length 1, in place of the input if nothing else reads that; the lengths are stored."""

    keeps_result = in_place = True

    def __init__(self, plan: StepPlan, op: ir.UnitRows) -> None:
        super().__init__(plan, op)
        self._lengths = self.like_result("lengths", width=1)
        self.scratch = (self._lengths,)

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Divide the rows by their lengths."""
        (x,), lengths = rows, self._lengths.tensor
        torch.linalg.vector_norm(x, dim=1, keepdim=True, out=lengths)
        torch.div(x, lengths.clamp_(min=self.op.eps), out=out)

    def backward(self) -> None:
        """Plan the input's gradient, ``(grad - out * (grad . out)) / length``.

        The second term is missing for a row shorter than ``eps``, which was divided by ``eps``.
        """
        plan, op, grad, lengths = self.plan, self.op, self.grad, self._lengths
        out, along, is_long = (
            plan.values[op.out],
            self.like_result("along", width=1),
            self.like_result("is long", width=1),
        )

        def run(into: Tensor) -> None:
            y, length = out.tensor, lengths.tensor
            torch.mul(grad.tensor, y, out=into)
            torch.sum(into, 1, keepdim=True, out=along.tensor)
            along.tensor.mul_(torch.gt(length, op.eps, out=is_long.tensor))
            torch.mul(y, along.tensor, out=into)
            torch.sub(grad.tensor, into, out=into).div_(length)

        plan.write_grad(self.source, run, grad, out, lengths, along, is_long)


class PlannedProduct(PlannedRows[ir.Product]):
    """A product of two values element by element; backward reads both."""

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Multiply the values."""
        torch.mul(*rows, out=out)

    def backward(self) -> None:
        """Plan each factor's gradient: the result's gradient times the other factor."""
        plan, op, grad = self.plan, self.op, self.grad
        first, second = (plan.rows(value) for value in op.inputs)

        def times(other: Rows, out: Tensor, add: bool) -> None:
            _add_product(grad.tensor, other.tensor, out, add)

        plan.accumulate(op.inputs[0], partial(times, second), grad, second)
        if plan.program.width(op.inputs[1]) == plan.program.width(op.out):
            plan.accumulate(op.inputs[1], partial(times, first), grad, first)
            return
        products = self.like_result("products")

        def along(out: Tensor, add: bool) -> None:
            torch.mul(grad.tensor, first.tensor, out=products.tensor)
            if add:
                out.add_(products.tensor.sum(1, keepdim=True))
            else:
                torch.sum(products.tensor, 1, keepdim=True, out=out)

        plan.accumulate(op.inputs[1], along, grad, first, products)


class PlannedRowOfParameters(PlannedRows[ir.RowOfParameters]):
    """Rows times, or plus, a row that PyTorch computes of parameters, and differentiates, in each step."""

    def __init__(self, plan: StepPlan, op: ir.RowOfParameters) -> None:
        super().__init__(plan, op)
        self.in_place = op.adds  # backward reads the input of a product

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Multiply the rows, or add to them."""
        (torch.add if self.op.adds else torch.mul)(rows[0], _row(self.op.row.tensor()), out=out)

    def backward(self) -> None:
        """Plan the gradients of the parameters and of the rows."""
        plan, op, grad = self.plan, self.op, self.grad
        if any(parameter.requires_grad for parameter in op.parameters()):
            self._plan_parameters()
        if op.adds:
            plan.pass_on(op, self.source)
            return

        def spread(out: Tensor, add: bool) -> None:
            _add_product(grad.tensor, _row(op.row.tensor()), out, add)

        plan.accumulate(self.source, spread, grad)

    def _plan_parameters(self) -> None:
        plan, op, grad = self.plan, self.op, self.grad
        wanted = [parameter for parameter in op.parameters() if parameter.requires_grad]
        x, products = (None, None) if op.adds else (plan.rows(self.source), self.like_result("products"))

        def run() -> None:
            rows = grad.tensor
            if x is not None and products is not None:
                rows = torch.mul(rows, x.tensor, out=products.tensor)
            with as_learned(wanted):
                with torch.enable_grad():
                    row = op.row.tensor()
                of_row = rows.sum() if row.numel() == 1 else rows.sum(0)
                found = torch.autograd.grad(row, wanted, of_row.view(row.shape))
            for parameter, gradient in zip(wanted, found, strict=True):
                plan.parameters.give(parameter, gradient.clone())  # of p + q both are one tensor

        plan.do(f"gradient of {op.out}'s row", run, grad, x, products)


def _row(tensor: Tensor) -> Tensor:
    """Return a ``(1,)`` or ``(width,)`` detached view of a row of parameters."""
    return tensor.detach().reshape(-1)


class PlannedColumns(PlannedRows[ir.ColumnRange]):
    """Some columns of a value, copied."""

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Copy the columns."""
        out.copy_(rows[0][:, self.op.first : self.op.last])

    def backward(self) -> None:
        """Plan the input's gradient, 0 in the other columns."""
        self.plan.accumulate(self.source, self._give, self.grad)

    def _give(self, out: Tensor, add: bool) -> None:
        into = (out if add else out.zero_())[:, self.op.first : self.op.last]
        into.add_(self.grad.tensor) if add else into.copy_(self.grad.tensor)


class PlannedAlongRow(PlannedRows[ir.AlongRow]):
    """The sum or mean of each row's pieces, or the norm of each row."""

    def __init__(self, plan: StepPlan, op: ir.AlongRow) -> None:
        super().__init__(plan, op)
        self.keeps_result = op.kind == "norm"

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Reduce each row."""
        if self.op.kind == "norm":
            torch.linalg.vector_norm(rows[0], dim=1, keepdim=True, out=out)
        else:
            (torch.sum if self.op.kind == "sum" else torch.mean)(self.op.pieces(rows[0]), 1, out=out)

    def backward(self) -> None:
        """Plan the input's gradient: ``grad`` in each piece, times ``x / norm`` for a norm that is not 0."""
        plan, op, grad = self.plan, self.op, self.grad
        if op.kind != "norm":
            plan.accumulate(self.source, self._spread, grad)
            return
        x, norm, factor = plan.rows(self.source), plan.rows(op.out), self.like_result("factor", width=1)

        def run(out: Tensor, add: bool) -> None:
            torch.div(grad.tensor, norm.tensor, out=factor.tensor)
            factor.tensor.masked_fill_(norm.tensor == 0, 0.0)
            _add_product(x.tensor, factor.tensor, out, add)

        plan.accumulate(self.source, run, grad, x, norm, factor)

    def _spread(self, out: Tensor, add: bool) -> None:
        pieces = self.op.pieces(out)
        factor = 1.0 if self.op.kind == "sum" else 1 / pieces.shape[1]
        _add_product(self.grad.tensor[:, None].expand_as(pieces), factor, pieces, add)
