"""Operations that PyTorch runs: row functions by its kernels, and others with a graph of their own.

Functions of each row write into the arena. PReLU alone has a parameter. Others, such as graph breaks, have a
graph of their own from forward to backward.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.batches.operations import run_layer
from graphbraid.fullgraph.program import Break, FromBreak, Prelu, RowFunction, maker_of
from graphbraid.fullgraph.step.operations.rowwise import PlannedRows
from graphbraid.fullgraph.step.plan import Op, PlannedOperation, StepPlan
from graphbraid.ops.messages import as_learned


def _apart(rows: Tensor) -> Tensor:
    return rows.clone() if rows.is_inference() else rows.data


class PlannedByPyTorch(PlannedOperation[Op]):
    """An operation that PyTorch runs with autograd; its graph lives until the backward tasks.

    Its memory comes from torch's allocator, beside the arena. ``read`` are numbers of the inputs that it
    reads.
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
            # take for a change of these. Features of inference mode cannot be saved for backward.
            inputs = {number: _apart(one.tensor) for number, one in rows.items()}
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
        with as_learned(self._parameters):
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
        for value in (self.op.inputs[one.number] for one in self._earlier):
            if self.plan.program.learns(value):
                self.plan.begun_grad(value)  # it may come from results that the earlier break keeps alone

    def gradients(self, grad: Tensor) -> list[Tensor | None]:
        """Hand the gradients of results that earlier breaks have kept to them, and return all."""
        read, self._read_kept, self._kept = self._read_kept, [], {}
        found = super().gradients(grad)
        for (maker, kept), gradient in zip(read, found[len(found) - len(read) :], strict=True):
            if gradient is not None:
                maker._handed.append((kept, gradient))
        return found


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
        torch.pow, lambda grad, x, n, to: torch.pow(x, float(n[0]) - 1, out=to).mul_(grad).mul_(float(n[0]))
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


class PlannedFunction(PlannedRows[RowFunction]):
    """A function of each row without parameters, in place if nothing else, nor backward, reads the input."""

    def __init__(self, plan: StepPlan, op: RowFunction) -> None:
        super().__init__(plan, op)
        self._function = FUNCTIONS[op.kind]
        self.keeps_result = self._function.reads_result
        self.in_place = self.keeps_result or not plan.training

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Call the function."""
        self._function.forward(rows[0], self.op.arguments, out)

    def backward(self) -> None:
        """Plan the input's gradient."""
        plan, op, grad, function = self.plan, self.op, self.grad, self._function
        kept = plan.rows(op.out if function.reads_result else self.source)

        def run(out: Tensor) -> None:
            function.backward(grad.tensor, kept.tensor, op.arguments, out)

        plan.write_grad(self.source, run, grad, kept)


class PlannedPrelu(PlannedRows[Prelu]):
    """PReLU, with one learned slope or one per column; backward reads the input."""

    def __init__(self, plan: StepPlan, op: Prelu) -> None:
        super().__init__(plan, op)
        self.scratch = (self.like_result("is above 0", torch.bool),)

    def compute(self, out: Tensor, rows: list[Tensor]) -> None:
        """Multiply the values below 0 by the slope."""
        (x,), is_above = rows, self.scratch[0].tensor
        torch.gt(x, 0, out=is_above)
        torch.mul(x, self.op.slope.detach(), out=out)
        torch.where(is_above, x, out, out=out)

    def backward(self) -> None:
        """Plan the gradients of the slope, ``sum(grad * min(x, 0))``, and of the input."""
        plan, op, grad, x = self.plan, self.op, self.grad, self.plan.rows(self.source)
        if op.slope.requires_grad:
            products = self.like_result("products")

            def give(given: Tensor) -> None:
                torch.clamp(x.tensor, max=0, out=products.tensor)
                rows = products.tensor.mul_(grad.tensor)
                torch.sum(rows if given.numel() > 1 else rows.view(-1, 1), 0, out=given)

            plan.repeat(f"gradient of {op.out}'s slope", give, grad, products, x, gradient_of=op.slope)
        is_above = self.like_result("is above 0", torch.bool)

        def run(out: Tensor) -> None:
            torch.gt(x.tensor, 0, out=is_above.tensor)
            torch.mul(grad.tensor, op.slope.detach(), out=out)
            torch.where(is_above.tensor, grad.tensor, out, out=out)

        plan.write_grad(self.source, run, grad, is_above, x)
