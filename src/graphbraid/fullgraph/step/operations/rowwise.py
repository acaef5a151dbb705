"""Operations on rows of one level by PyTorch's kernels, and those that compute nothing in a step."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.step.plan import PlannedOperation, StepPlan
from graphbraid.fullgraph.step.tasks import FirstRows
from graphbraid.ops.kernels import recorded_whole
from graphbraid.ops.messages import without_hooks


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

        def run() -> None:
            whole = plan.parameters.lend(op.table)
            if nodes is None:
                whole.copy_(grad.tensor)
            else:
                whole.zero_().index_copy_(0, nodes, grad.tensor)
            plan.parameters.give(op.table, whole)

        plan.do(f"gradient of {op.out}'s rows", run, grad)


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


class PlannedCombine(PlannedOperation[ir.Combine]):
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


class PlannedConcat(PlannedOperation[ir.Concat]):
    """The inputs' columns side by side."""

    def __init__(self, plan: StepPlan, op: ir.Concat) -> None:
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


class PlannedLargest(PlannedOperation[ir.Largest]):
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


class PlannedScale(PlannedOperation[ir.Scale]):
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


class PlannedUnitRows(PlannedOperation[ir.UnitRows]):
    """Rows of length 1, in place of the input if nothing else reads that; the lengths are stored."""

    keeps_result = True

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


class PlannedProduct(PlannedOperation[ir.Product]):
    """A product of two values element by element; backward reads both."""

    def forward(self) -> None:
        """Plan the value."""
        plan, op = self.plan, self.op
        first, second = (plan.rows(value) for value in op.inputs)
        out = plan.result(op)
        plan.do(op.out, lambda: torch.mul(first.tensor, second.tensor, out=out.tensor), out, first, second)

    def backward(self) -> None:
        """Plan each factor's gradient: the result's gradient times the other factor."""
        plan, op, grad = self.plan, self.op, self.grad
        first, second = (plan.rows(value) for value in op.inputs)
        plan.accumulate(
            op.inputs[0], lambda out, add: _multiply(grad.tensor, second.tensor, out, add), grad, second
        )
        width = plan.program.width(op.out)
        if plan.program.width(op.inputs[1]) == width:
            plan.accumulate(
                op.inputs[1], lambda out, add: _multiply(grad.tensor, first.tensor, out, add), grad, first
            )
            return
        products = plan.scratch(f"{op.out}: products", grad.count, width)

        def along(out: Tensor, add: bool) -> None:
            torch.mul(grad.tensor, first.tensor, out=products.tensor)
            if add:
                out.add_(products.tensor.sum(1, keepdim=True))
            else:
                torch.sum(products.tensor, 1, keepdim=True, out=out)

        plan.accumulate(op.inputs[1], along, grad, first, products)


def _multiply(grad: Tensor, other: Tensor, out: Tensor, add: bool) -> None:
    out.addcmul_(grad, other) if add else torch.mul(grad, other, out=out)


class PlannedRowOfParameters(PlannedOperation[ir.RowOfParameters]):
    """Rows times, or plus, a row that PyTorch computes of parameters, and differentiates, in each step."""

    def forward(self) -> None:
        """Plan the value; backward reads the input of a product."""
        plan, op, x = self.plan, self.op, self.plan.rows(self.source)
        run = torch.add if op.adds else torch.mul
        in_place = op.adds and plan.may_overwrite(self.source)
        out = plan.result(op, overwrites=self.source if in_place else None)
        plan.do(op.out, lambda: run(x.tensor, _row(op.row.tensor()), out=out.tensor), out, x)

    def backward(self) -> None:
        """Plan the gradients of the parameters and of the rows."""
        plan, op, grad = self.plan, self.op, self.grad
        if any(parameter.requires_grad for parameter in op.parameters()):
            self._plan_parameters()
        if op.adds:
            plan.pass_on(op, self.source)
            return

        def spread(out: Tensor, add: bool) -> None:
            _multiply(grad.tensor, _row(op.row.tensor()), out, add)

        plan.accumulate(self.source, spread, grad)

    def _plan_parameters(self) -> None:
        plan, op, grad = self.plan, self.op, self.grad
        wanted = [parameter for parameter in op.parameters() if parameter.requires_grad]
        x = None if op.adds else plan.rows(self.source)
        products = None if op.adds else plan.scratch(f"{op.out}: products", grad.count, grad.width)

        def run() -> None:
            rows = grad.tensor
            if x is not None and products is not None:
                rows = torch.mul(rows, x.tensor, out=products.tensor)
            with torch.enable_grad():
                row = op.row.tensor()
            of_row = rows.sum() if row.numel() == 1 else rows.sum(0)
            with without_hooks(wanted):
                found = torch.autograd.grad(row, wanted, of_row.view(row.shape))
            for parameter, gradient in zip(wanted, found, strict=True):
                plan.parameters.give(parameter, gradient.clone())  # of p + q both are one tensor

        plan.do(f"gradient of {op.out}'s row", run, grad, x, products)


def _row(tensor: Tensor) -> Tensor:
    """Return a ``(1,)`` or ``(width,)`` detached view of a row of parameters."""
    return tensor.detach().reshape(-1)


class PlannedColumns(PlannedOperation[ir.ColumnRange]):
    """Some columns of a value, copied."""

    def forward(self) -> None:
        """Plan the copy."""
        plan, op, x = self.plan, self.op, self.plan.rows(self.source)
        out = plan.result(op)
        plan.do(op.out, lambda: out.tensor.copy_(x.tensor[:, op.first : op.last]), out, x)

    def backward(self) -> None:
        """Plan the input's gradient, 0 in the other columns."""
        plan, op, grad = self.plan, self.op, self.grad
        plan.accumulate(self.source, partial(_add_to_columns, grad, slice(op.first, op.last)), grad)


def _add_to_columns(grad: FirstRows, part: slice, out: Tensor, add: bool) -> None:
    if add:
        out[:, part].add_(grad.tensor)
    else:
        out.zero_()[:, part].copy_(grad.tensor)


class PlannedAlongRow(PlannedOperation[ir.AlongRow]):
    """The sum or mean of each row's pieces, or the norm of each row."""

    def __init__(self, plan: StepPlan, op: ir.AlongRow) -> None:
        super().__init__(plan, op)
        self.keeps_result = op.kind == "norm"

    def forward(self) -> None:
        """Plan the value."""
        plan, op, x = self.plan, self.op, self.plan.rows(self.source)
        out = plan.result(op)
        if op.kind != "norm":
            run = torch.sum if op.kind == "sum" else torch.mean
            plan.do(op.out, lambda: run(_pieces(op, x.tensor), 1, out=out.tensor), out, x)
            return
        norm = torch.linalg.vector_norm
        plan.do(op.out, lambda: norm(x.tensor, dim=1, keepdim=True, out=out.tensor), out, x)

    def backward(self) -> None:
        """Plan the input's gradient: ``grad`` in each piece, times ``x / norm`` for a norm that is not 0."""
        plan, op, grad = self.plan, self.op, self.grad
        if op.kind != "norm":
            plan.accumulate(self.source, lambda out, add: _spread(op, grad.tensor, out, add), grad)
            return
        x, norm = plan.rows(self.source), plan.rows(op.out)
        factor = plan.scratch(f"{op.out}: factor", grad.count, 1)

        def run(out: Tensor, add: bool) -> None:
            torch.div(grad.tensor, norm.tensor, out=factor.tensor)
            factor.tensor.masked_fill_(norm.tensor == 0, 0.0)
            _multiply(x.tensor, factor.tensor, out, add)

        plan.accumulate(self.source, run, grad, x, norm, factor)


def _pieces(op: ir.AlongRow, rows: Tensor) -> Tensor:
    return rows.view(len(rows), rows.shape[1] // op.width_out, op.width_out)


def _spread(op: ir.AlongRow, grad: Tensor, out: Tensor, add: bool) -> None:
    pieces = _pieces(op, out)
    given, factor = grad[:, None].expand_as(pieces), 1.0 if op.kind == "sum" else 1 / pieces.shape[1]
    pieces.add_(given, alpha=factor) if add else torch.mul(given, factor, out=pieces)
