"""Products of rows, rows of parameters, columns, and norms of rows, by PyTorch's kernels."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from graphbraid.fullgraph.program import AlongRow, ColumnRange, Operation, Product, RowOfParameters
from graphbraid.fullgraph.step.arena import FirstRows
from graphbraid.fullgraph.step.plan import PlannedClass, PlannedOperation


class PlannedProduct(PlannedOperation[Product]):
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


class PlannedRowOfParameters(PlannedOperation[RowOfParameters]):
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
            found = torch.autograd.grad(row, wanted, of_row.view(row.shape))
            for parameter, gradient in zip(wanted, found, strict=True):
                plan.parameters.give(parameter, gradient.clone())  # of p + q both are one tensor

        plan.do(f"gradient of {op.out}'s row", run, grad, x, products)


def _row(tensor: Tensor) -> Tensor:
    """Return a ``(1,)`` or ``(width,)`` detached view of a row of parameters."""
    return tensor.detach().reshape(-1)


class PlannedColumns(PlannedOperation[ColumnRange]):
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


class PlannedAlongRow(PlannedOperation[AlongRow]):
    """The sum or the norm of each row."""

    def forward(self) -> None:
        """Plan the value."""
        plan, op, x = self.plan, self.op, self.plan.rows(self.source)
        out = plan.result(op)
        if op.kind == "sum":
            plan.do(op.out, lambda: torch.sum(x.tensor, 1, keepdim=True, out=out.tensor), out, x)
            return
        norm = torch.linalg.vector_norm
        plan.do(op.out, lambda: norm(x.tensor, dim=1, keepdim=True, out=out.tensor), out, x)

    def backward(self) -> None:
        """Plan the input's gradient: ``grad`` in each column, times ``x / norm`` for a norm that is not 0."""
        plan, op, grad = self.plan, self.op, self.grad
        if op.kind == "sum":
            plan.accumulate(self.source, partial(_spread, grad), grad)
            return
        x, norm = plan.rows(self.source), plan.rows(op.out)
        factor = plan.scratch(f"{op.out}: factor", grad.count, 1)

        def run(out: Tensor, add: bool) -> None:
            torch.div(grad.tensor, norm.tensor, out=factor.tensor)
            factor.tensor.masked_fill_(norm.tensor == 0, 0.0)
            _multiply(x.tensor, factor.tensor, out, add)

        plan.accumulate(self.source, run, grad, x, norm, factor)


def _spread(grad: FirstRows, out: Tensor, add: bool) -> None:
    out.add_(grad.tensor) if add else out.copy_(grad.tensor.expand_as(out))


PLANNED: dict[type[Operation], PlannedClass] = {
    AlongRow: PlannedAlongRow,
    ColumnRange: PlannedColumns,
    Product: PlannedProduct,
    RowOfParameters: PlannedRowOfParameters,
}
"""The classes of this module, by the operation that they plan."""
