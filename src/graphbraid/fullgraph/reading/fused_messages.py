"""Turns the trace of a message into the steps of one kernel, where it is made of elementwise functions."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program import ReadRows
from graphbraid.ops.message_steps import MOST_MATRICES, MOST_STEPS, MessageOp, MessageStep

MessageReads = Sequence[tuple[str, ReadRows, int]]
"""The message's parameters that receive rows, and what of, as in :class:`.Messages`."""
_BINARY = {
    **dict.fromkeys((operator.add, torch.add, "add"), MessageOp.ADD),
    **dict.fromkeys((operator.sub, torch.sub, "sub"), MessageOp.SUBTRACT),
    **dict.fromkeys((operator.mul, torch.mul, "mul"), MessageOp.MULTIPLY),
    **dict.fromkeys((operator.truediv, torch.div, "div"), MessageOp.DIVIDE),
}
_UNARY = {
    **dict.fromkeys((torch.relu, F.relu, "relu", nn.ReLU), MessageOp.RELU),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid", nn.Sigmoid), MessageOp.SIGMOID),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh", nn.Tanh), MessageOp.TANH),
    **dict.fromkeys((torch.exp, "exp"), MessageOp.EXP),
    **dict.fromkeys((torch.abs, operator.abs, "abs"), MessageOp.ABS),
}
_NEGATIVE = (operator.neg, torch.neg, "neg")
_LEAKY, _SILU = (F.leaky_relu, nn.LeakyReLU), (F.silu, nn.SiLU)
_SQUARES = (torch.square, "square")
_POWERS = (operator.pow, torch.pow, "pow")


class _NotStepsError(Exception):
    """A call is none of the kernel's steps."""


@dataclass(frozen=True)
class _StepValue:
    """A value that is a step: for each edge a row, one column (``(num_edges, 1)``) or one number."""

    step: int
    shape: str = "row"


def steps_of(
    graph: fx.Graph,
    layer: nn.Module,
    reads: MessageReads,
    *,
    tensors: Mapping[str, Tensor],
    widths: Mapping[str, int],
    used: Sequence[nn.Parameter],
    width: int,
) -> tuple[MessageStep, ...]:
    """Return a message as steps of a kernel; none if it is made of anything else.

    Args:
        graph: the trace, which was shown to work row by row.
        layer: the layer, whose modules are named from ``layer.`` on.
        reads: what the message reads.
        tensors: the tensors that the trace reads beside its arguments.
        widths: by argument, how many numbers an edge's row has; 0 for one number per edge.
        used: the parameters that the message reads.
        width: columns of the message.
    """
    roles = [role for _, role, _ in reads]
    many = max(roles.count(ReadRows.SOURCE), roles.count(ReadRows.DESTINATION)) > MOST_MATRICES
    if many or max(roles.count(ReadRows.FEATURES), roles.count(ReadRows.WEIGHT)) > 1:
        return ()
    modules = {f"layer.{key}".rstrip("."): module for key, module in layer.named_modules()}
    try:
        steps = _Steps(modules, reads, tensors=tensors, widths=widths, used=used, width=width).all_of(graph)
    except _NotStepsError:
        return ()
    return steps if len(steps) <= MOST_STEPS else ()


class _Steps:
    """Collects the steps of one message."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        reads: MessageReads,
        *,
        tensors: Mapping[str, Tensor],
        widths: Mapping[str, int],
        used: Sequence[nn.Parameter],
        width: int,
    ) -> None:
        self._tensors, self._modules, self._widths = tensors, modules, widths
        self._roles = {name: role for name, role, _ in reads}
        self._used, self._width = [id(parameter) for parameter in used], width
        self._steps: list[MessageStep] = []
        self._values: dict[fx.Node, _StepValue] = {}

    def all_of(self, graph: fx.Graph) -> tuple[MessageStep, ...]:
        """Return the steps; the last one gives the message."""
        for node in graph.nodes:
            if node.op == "output":
                out = self._made(node.args[0])
                if out.shape != "row":
                    raise _NotStepsError
                if out.step != len(self._steps) - 1:  # what is returned is not what was computed last
                    self._add(MessageOp.ADD, out, self._number(0.0))
            elif node.users:
                self._values[node] = self._value(node)
        return tuple(self._steps)

    def _value(self, node: fx.Node) -> _StepValue:
        if node.op == "placeholder":
            return self._read(str(node.target))
        if node.op == "get_attr":
            return self._parameter(self._tensors[str(node.target)])
        if node.op == "call_module":
            module = self._modules[str(node.target)]
            if type(module) in (nn.Identity, nn.Dropout):  # of a dropout that rests
                return self._made(node.args[0])
            slope = (module.negative_slope,) if isinstance(module, nn.LeakyReLU) else ()
            return self._call(type(module), (node.args[0], *slope), {})
        return self._call(node.target, node.args, dict(node.kwargs))

    def _read(self, name: str) -> _StepValue:
        role = self._roles[name]
        if self._widths[name] != (0 if role is ReadRows.WEIGHT else self._width):
            raise _NotStepsError
        same = [key for key, other in self._roles.items() if other is role]
        kind = {
            ReadRows.SOURCE: MessageOp.SOURCE,
            ReadRows.DESTINATION: MessageOp.DESTINATION,
            ReadRows.FEATURES: MessageOp.EDGE,
            ReadRows.WEIGHT: MessageOp.WEIGHT,
        }[role]
        made = self._add(kind, at=same.index(name))
        return _StepValue(made.step, "number" if role is ReadRows.WEIGHT else "row")

    def _parameter(self, tensor: Tensor) -> _StepValue:
        fits = tensor.numel() == 1 or (tensor.numel() == self._width and tensor.shape[-1] == self._width)
        if id(tensor) not in self._used or not fits:
            raise _NotStepsError
        made = self._add(MessageOp.PARAMETER, at=self._used.index(id(tensor)))
        return _StepValue(made.step, "constant") if tensor.numel() == 1 else made

    def _call(self, target: Any, args: Any, named: dict[str, Any]) -> _StepValue:
        if target in _BINARY and len(args) == 2 and not named:
            return self._add(_BINARY[target], *map(self._made, args))
        if target in _LEAKY:
            slope = named.get("negative_slope", args[1] if len(args) > 1 else 0.01)
            return self._add(MessageOp.LEAKY_RELU, self._made(args[0]), number=float(slope))
        if target in _SQUARES or (target in _POWERS and args[1:] == (2,) and not named):
            x = self._made(args[0])
            return self._add(MessageOp.MULTIPLY, x, x)
        return self._of_one(target, args) if len(args) == 1 else self._shaped(target, args, named)

    def _of_one(self, target: Any, args: Any) -> _StepValue:
        x = self._made(args[0])
        if target in _UNARY:
            return self._add(_UNARY[target], x)
        if target in _NEGATIVE:
            return self._add(MessageOp.MULTIPLY, x, self._number(-1.0))
        if target in _SILU:
            return self._add(MessageOp.MULTIPLY, x, self._add(MessageOp.SIGMOID, x))
        raise _NotStepsError

    def _shaped(self, target: Any, args: Any, named: dict[str, Any]) -> _StepValue:
        """Return the sum of each edge's row, or one number per edge as one column."""
        x = self._made(args[0] if args else None)
        if target is F.dropout:  # which was shown to rest
            return x
        if target in (torch.sum, "sum") and x.shape == "row":
            given = {**dict(zip(("dim", "keepdim"), args[1:], strict=False)), **named}
            keeps = given.get("keepdim", False)
            if given.get("dim") in (1, -1, (1,), (-1,), [1], [-1]) and set(given) <= {"dim", "keepdim"}:
                return _StepValue(self._add(MessageOp.SUM_COLUMNS, x).step, "column" if keeps else "number")
        as_column = (target in ("view", "reshape") and args[1:] == (-1, 1)) or (
            target in (torch.unsqueeze, "unsqueeze") and args[1:] in ((1,), (-1,))
        )
        if as_column and x.shape in ("number", "column") and not named:
            if x.shape == "column" and target not in ("view", "reshape"):
                raise _NotStepsError
            return _StepValue(x.step, "column")
        raise _NotStepsError

    def _made(self, argument: Any) -> _StepValue:
        if isinstance(argument, fx.Node) and argument in self._values:
            return self._values[argument]
        if isinstance(argument, int | float) and not isinstance(argument, bool):
            return self._number(float(argument))
        raise _NotStepsError

    def _number(self, value: float) -> _StepValue:
        return _StepValue(self._add(MessageOp.NUMBER, number=value).step, "constant")

    def _add(self, op: MessageOp, *of: _StepValue, number: float = 0.0, at: int = 0) -> _StepValue:
        """Append a step, of earlier ones or of what a matrix holds."""
        first, second = (*(one.step for one in of), at, 0)[:2]
        self._steps.append(MessageStep(op, first, second if len(of) == 2 else 0, number))
        shapes = {one.shape for one in of}
        if "row" in shapes and "number" in shapes:
            raise _NotStepsError  # PyTorch would take the numbers for columns
        wide = "row" if not of or "row" in shapes else next(iter(sorted(shapes - {"constant"})), "constant")
        return _StepValue(len(self._steps) - 1, wide)


__all__ = ["steps_of"]
