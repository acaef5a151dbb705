"""Functions of each row, without parameters, and PReLU: by PyTorch's kernels, which write into the arena."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Operation, Prelu, RowFunction
from graphbraid.fullgraph.step.arena import FirstRows
from graphbraid.fullgraph.step.plan import PlannedClass, PlannedOperation

_aten = torch.ops.aten
Arguments = tuple[float | str, ...]
_Backward = Callable[[Tensor, Tensor, Arguments, Tensor], object]
"""Called as ``backward(grad, kept, arguments, grad_x)``; ``kept`` is the input or the result."""


@dataclass(frozen=True, slots=True)
class RowFunctionKernels:
    """One function, as forward and backward calls that allocate nothing."""

    forward: Callable[[Tensor, Arguments, Tensor], object]
    """Called as ``forward(x, arguments, out)``."""
    backward: _Backward
    reads_result: bool = False
    """Whether backward reads the result rather than the input, which may then be overwritten."""


def _pointwise(name: str, *, reads_result: bool = False) -> RowFunctionKernels:
    """Make a function of PyTorch's ``name.out`` and ``name_backward.grad_input``; arguments come last."""
    forward, backward = getattr(_aten, name).out, getattr(_aten, f"{name}_backward").grad_input
    return RowFunctionKernels(
        lambda x, arguments, out: forward(x, *arguments, out=out),
        lambda grad, kept, arguments, grad_x: backward(grad, kept, *arguments, grad_input=grad_x),
        reads_result,
    )


def _softmax(name: str, result: str) -> RowFunctionKernels:
    forward, backward = getattr(_aten, name).out, getattr(_aten, f"{name}_backward_data").out
    return RowFunctionKernels(
        lambda x, _, out: forward(x, 1, False, out=out),
        lambda grad, kept, _, grad_x: backward(grad, kept, 1, grad.dtype, **{result: grad_x}),
        reads_result=True,
    )


def _by_rule(forward: Any, backward: _Backward, *, reads_result: bool = False) -> RowFunctionKernels:
    """Make a function of PyTorch's ``forward(x, ..., out=)``, and of a rule for its gradient."""
    return RowFunctionKernels(
        lambda x, arguments, out: forward(x, *arguments, out=out), backward, reads_result
    )


FUNCTIONS: dict[str, RowFunctionKernels] = {
    "tanh": _pointwise("tanh", reads_result=True),
    "sigmoid": _pointwise("sigmoid", reads_result=True),
    "silu": _pointwise("silu"),
    "softplus": _pointwise("softplus"),
    "hardtanh": _pointwise("hardtanh"),
    "softmax": _softmax("_softmax", "grad_input"),
    "log_softmax": _softmax("_log_softmax", "out"),
    "gelu": RowFunctionKernels(
        lambda x, how, out: _aten.gelu.out(x, approximate=how[0], out=out),
        lambda grad, x, how, to: _aten.gelu_backward.grad_input(grad, x, approximate=how[0], grad_input=to),
    ),
    "elu": _by_rule(
        _aten.elu.out,
        lambda grad, x, how, to: _aten.elu_backward.grad_input(grad, *how, False, x, grad_input=to),
    ),
    "leaky_relu": _by_rule(
        _aten.leaky_relu.out,
        lambda grad, x, how, to: _aten.leaky_relu_backward.grad_input(grad, x, *how, False, grad_input=to),
    ),
    "plus": _by_rule(torch.add, lambda grad, _, __, to: to.copy_(grad), reads_result=True),
    "abs": _by_rule(torch.abs, lambda grad, x, _, to: torch.sign(x, out=to).mul_(grad)),
    "clamp": _by_rule(
        torch.clamp,
        lambda grad, x, ends, to: torch.mul(grad, (x >= float(ends[0])) & (x <= float(ends[1])), out=to),
    ),
    "pow": _by_rule(
        torch.pow,
        lambda grad, x, n, to: torch.pow(x, float(n[0]) - 1, out=to).mul_(grad).mul_(float(n[0])),
    ),
    "exp": _by_rule(torch.exp, lambda grad, y, _, to: torch.mul(grad, y, out=to), reads_result=True),
    "log": _by_rule(torch.log, lambda grad, x, _, to: torch.div(grad, x, out=to)),
    "sqrt": _by_rule(
        torch.sqrt, lambda grad, y, _, to: torch.div(grad, y, out=to).mul_(0.5), reads_result=True
    ),
    "reciprocal": _by_rule(
        torch.reciprocal, lambda grad, y, _, to: torch.mul(y, y, out=to).mul_(grad).neg_(), reads_result=True
    ),
}
"""Functions by name. Their arguments are GELU's approximation; ELU's alpha, scale and input scale; leaky
ReLU's slope; softplus's beta and threshold; the least and largest value of hardtanh and clamp, which differ
in the gradient of a value at either end; the addend of plus; and pow's exponent."""


class PlannedFunction(PlannedOperation[RowFunction]):
    """A function of each row without parameters."""

    def forward(self) -> None:
        """Plan the value, in place if nothing else, nor backward, reads the input."""
        plan, op, function = self.plan, self.op, FUNCTIONS[self.op.kind]
        self.keeps_result = function.reads_result
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


PLANNED: dict[type[Operation], PlannedClass] = {Prelu: PlannedPrelu, RowFunction: PlannedFunction}
"""The classes of this module, by the operation that they plan."""
