"""Readers of calls on matrices of node rows: arithmetic, concatenation, stacks, columns, and shapes.

The second operand may be other rows, a number, or a tensor that is computed of the model's own parameters.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.exact import flag, number, one_of
from graphbraid.fullgraph.reading.reader import (
    NEEDED,
    Column,
    FunctionCall,
    Heads,
    NodeRows,
    NumRows,
    Stacked,
    Writer,
    reads_calls,
)

# ---- arithmetic: a matrix of node rows with another one, a number, or a tensor computed of parameters

_ONE: dict[str, Any] = {"input": NEEDED}
_PAIR: dict[str, Any] = {"input": NEEDED, "other": NEEDED}


def _arithmetic(
    function: Any, method: str, takes: Mapping[str, Any], by_name: tuple[str, ...] = ()
) -> Callable[[Callable[[FunctionCall], str]], Callable[[FunctionCall], str]]:
    """Enter a reader of a function, its operator, their in-place forms, and its methods."""

    def enter(read: Callable[[FunctionCall], str]) -> Callable[[FunctionCall], str]:
        name = {"div": "truediv"}.get(method, method)
        in_place = [getattr(operator, f"i{name}")] if hasattr(operator, f"i{name}") else []
        reads_calls(function, getattr(operator, name), takes=takes, methods=(method,), by_name=by_name)(read)
        return reads_calls(*in_place, takes=takes, methods=(f"{method}_",), in_place=True, by_name=by_name)(
            read
        )

    return enter


def _sum_of_two(call: FunctionCall, sign: float) -> str:
    """Write ``input + sign alpha other``; ``0 + x``, with which Python's ``sum`` begins, is ``x``."""
    alpha = sign * float(call.constant("alpha", number))
    writer, (first, second) = call.writer, (call.arguments["input"], call.arguments["other"])
    if isinstance(first, NodeRows) and isinstance(second, NodeRows):
        widths = writer.width(first.value), writer.width(second.value)
        if widths[0] != widths[1]:
            raise ir.NotLoweredError(call.name, f"it adds {widths[1]} columns to {widths[0]}")
        return writer.combine((1.0, first.value), (alpha, second.value))
    if isinstance(first, NodeRows):
        return _plus(call, first.value, second, alpha)
    return _plus(call, writer.combine((alpha, call.rows("other"))), first, 1.0)


_arithmetic(torch.add, "add", _PAIR | {"alpha": 1}, ("alpha",))(lambda call: _sum_of_two(call, 1.0))
_arithmetic(torch.sub, "sub", _PAIR | {"alpha": 1}, ("alpha",))(lambda call: _sum_of_two(call, -1.0))


def _plus(call: FunctionCall, rows: str, other: Any, alpha: float) -> str:
    if isinstance(other, ir.SmallTensor):
        row = other if alpha == 1 else ir.SmallTensor(torch.mul, (other, alpha))
        return call.writer.by_row(rows, row, adds=True)
    if not number(other):
        raise ir.NotLoweredError(call.name, f"it adds {other}, which is neither node rows nor a number")
    shift = float(alpha * other)
    return rows if shift == 0 else call.writer.function(rows, "plus", shift)


@_arithmetic(torch.mul, "mul", _PAIR)
def _mul(call: FunctionCall) -> Any:
    first, second = call.arguments["input"], call.arguments["other"]
    if not isinstance(first, NodeRows | Heads):
        first, second = second, first
    if isinstance(first, Heads) and isinstance(second, ir.SmallTensor):
        shape = first.heads, call.writer.width(first.value) // first.heads
        if tuple(second.tensor().shape) in (shape, (1, *shape)):  # a vector for each head, as GAT's
            row = ir.SmallTensor(torch.reshape, (second, (-1,)))
            return Heads(call.writer.by_row(first.value, row), first.heads)
    if not isinstance(first, NodeRows):
        raise ir.NotLoweredError(call.name, "neither factor is a matrix of node rows")
    return _times(call, first.value, second)


def _times(call: FunctionCall, rows: str, factor: Any) -> str:
    if isinstance(factor, NodeRows):
        return call.writer.product(rows, factor.value)
    if isinstance(factor, ir.SmallTensor):
        return call.writer.by_row(rows, factor)
    if not number(factor):
        raise ir.NotLoweredError(
            call.name, f"it multiplies by {factor}, which is neither node rows nor a number"
        )
    return call.writer.combine((float(factor), rows))


@_arithmetic(torch.div, "div", _PAIR | {"rounding_mode": None}, ("rounding_mode",))
def _div(call: FunctionCall) -> str:
    call.constant("rounding_mode", one_of(None))
    writer, (first, divisor) = call.writer, (call.arguments["input"], call.arguments["other"])
    if isinstance(divisor, NodeRows):
        divisor = NodeRows(writer.function(divisor.value, "reciprocal"))
        if not isinstance(first, NodeRows):
            return _times(call, divisor.value, first)
        if writer.width(first.value) < writer.width(divisor.value):
            raise ir.NotLoweredError(call.name, "it divides a column by several")
    elif isinstance(divisor, ir.SmallTensor):
        divisor = ir.SmallTensor(torch.reciprocal, (divisor,))
    else:
        divisor = 1.0 / call.constant("other", lambda value: number(value) and value != 0)
    return _times(call, call.rows("input"), divisor)


_arithmetic(torch.neg, "neg", _ONE)(lambda call: call.writer.combine((-1.0, call.rows("input"))))


@reads_calls(torch.matmul, operator.matmul, takes=_PAIR, methods=("matmul",))
@reads_calls(torch.mm, takes={"input": NEEDED, "mat2": NEEDED}, methods=("mm",))
def _matmul(call: FunctionCall) -> str:
    """Read ``x @ weight``, of a parameter with a row for each column of ``x``."""
    rows, (_, by) = call.rows("input"), call.arguments.values()
    weight = by.args[0].tensor if isinstance(by, ir.SmallTensor) and by.function is ir.itself else None
    if not isinstance(weight, nn.Parameter) or weight.ndim != 2 or len(weight) != call.writer.width(rows):
        raise ir.NotLoweredError(call.name, "it multiplies by no matrix that is a parameter of the model")
    return call.writer.add(ir.Linear, rows, weight=weight, view=ir.View(turned=True))


@_arithmetic(torch.pow, "pow", {"input": NEEDED, "exponent": NEEDED})
def _pow(call: FunctionCall) -> str:
    exponent = float(call.constant("exponent", lambda value: number(value) and value != 0))
    return call.writer.function(call.rows("input"), "pow", exponent)


@reads_calls(
    torch.clamp, torch.clip, takes={"input": NEEDED, "min": None, "max": None}, methods=("clamp", "clip")
)
def _clamp(call: FunctionCall) -> str:
    least, largest = (
        call.constant(key, lambda value: value is None or number(value)) for key in ("min", "max")
    )
    ends = (-math.inf if least is None else float(least), math.inf if largest is None else float(largest))
    return call.writer.function(call.rows("input"), "clamp", *ends)


def _of_each_element(kind: str, *arguments: float) -> Callable[[FunctionCall], str]:
    return lambda call: call.writer.function(call.rows("input"), kind, *arguments)


for _name in ("abs", "exp", "log", "sqrt", "reciprocal"):
    reads_calls(getattr(torch, _name), takes=_ONE, methods=(_name,))(_of_each_element(_name))
reads_calls(torch.square, takes=_ONE, methods=("square",))(_of_each_element("pow", 2.0))


@reads_calls(torch.clone, takes=_ONE | {"memory_format": None}, methods=("clone",))
def _clone(call: FunctionCall) -> str:
    return call.rows("input")  # what writes over a matrix makes another value, which the copy is not


# ---- concatenation, and stacks with their sum, mean and maximum, as in ``HeteroConv``


def _all_rows(call: FunctionCall, joins: str) -> tuple[str, ...]:
    values = call.arguments["tensors"]
    if not isinstance(values, list | tuple) or not all(isinstance(value, NodeRows) for value in values):
        raise ir.NotLoweredError(call.name, f"it {joins} something that is not a matrix of node rows")
    return tuple(value.value for value in values)


@reads_calls(torch.cat, torch.concat, torch.concatenate, takes={"tensors": NEEDED, "dim": 0})
def _cat(call: FunctionCall) -> Any:
    parts = call.arguments["tensors"]
    if isinstance(parts, list | tuple) and parts and all(isinstance(one, Heads) for one in parts):
        heads = parts[0].heads
        if any(one.heads != heads for one in parts):
            raise ir.NotLoweredError(call.name, "it joins different numbers of heads")
        call.constant("dim", one_of(2, -1))
        joined = (_head(call.writer, one, number) for number in range(heads) for one in parts)
        return Heads(call.writer.beside(*joined), heads)
    call.constant("dim", one_of(1, -1))
    return call.writer.beside(*_all_rows(call, "joins"))


@reads_calls(torch.stack, takes={"tensors": NEEDED, "dim": 0})
def _stack(call: FunctionCall) -> Stacked:
    dim = call.constant("dim", one_of(0, 1, 2, -1, -2))
    return Stacked(_all_rows(call, "stacks"), dim=dim % 3)


_REDUCED: dict[str, Any] = {"input": NEEDED, "dim": None, "keepdim": False}


def _stacked(call: FunctionCall) -> tuple[str, ...]:
    """Return the values of a stack that is reduced along its new dimension, or the columns of each head."""
    stacked = call.arguments["input"]
    if isinstance(stacked, Heads):
        call.constant("dim", one_of(1, -2))
        call.constant("keepdim", one_of(False))
        return tuple(_head(call.writer, stacked, number) for number in range(stacked.heads))
    if not isinstance(stacked, Stacked):
        raise ir.NotLoweredError(
            call.name,
            "no operation stands for this call but of a stack or along each row, with keepdim=True",
            "a call of docs/lowered_models.md",
        )
    call.constant("dim", one_of(stacked.dim, stacked.dim - 3))
    call.constant("keepdim", one_of(False))
    return stacked.values


def _along_rows(call: FunctionCall, kind: str) -> str | None:
    """Append the sum or mean of each row, of its heads or of each head; None for a call of anything else."""
    of, keeps, dim = (call.arguments[name] for name in ("input", "keepdim", "dim"))
    if isinstance(of, NodeRows) and keeps is True and dim in (1, -1, [1], [-1]):
        return call.writer.add(ir.AlongRow, of.value, kind=kind)
    if isinstance(of, Heads) and keeps is False:
        by_head = dim in (2, -1, [2], [-1])
        if by_head or (of.heads > 1 and dim in (1, -2, [1], [-2])):
            width = of.heads if by_head else call.writer.width(of.value) // of.heads
            return call.writer.add(ir.AlongRow, of.value, kind=kind, width_out=width, by_head=by_head)
    return None


@reads_calls(torch.sum, takes=_REDUCED, methods=("sum",))
def _sum(call: FunctionCall) -> str:
    return _along_rows(call, "sum") or _total(call.writer, _stacked(call))


def _total(writer: Writer, values: tuple[str, ...]) -> str:
    first, *others = values
    if len({first, *others}) <= len(others):
        return writer.combine(*((1.0, value) for value in (first, *others)))
    for value in others:  # a sum of two can be part of an aggregation; one of many is a pass of its own
        first = writer.sum(value, first)
    return first


@reads_calls(torch.mean, takes=_REDUCED, methods=("mean",))
def _mean(call: FunctionCall) -> str:
    if (found := _along_rows(call, "mean")) is not None:
        return found
    values = _stacked(call)
    return call.writer.combine((1 / len(values), _total(call.writer, values)))


@reads_calls(torch.max, takes=_REDUCED, methods=("max",))
def _max(call: FunctionCall) -> tuple[NodeRows]:
    """Read the first of the pair that ``torch.max`` returns: ``HeteroConv`` takes it without an index."""
    return (NodeRows(call.writer.largest(*_stacked(call))),)


@reads_calls(torch.min, takes=_REDUCED, methods=("min",))
def _min(call: FunctionCall) -> tuple[NodeRows]:
    """Read the first of the pair that ``torch.min`` returns."""
    writer = call.writer
    largest = writer.largest(*(writer.combine((-1.0, value)) for value in _stacked(call)))
    return (NodeRows(writer.combine((-1.0, largest))),)


# ---- lengths of rows


_NORM = {"input": NEEDED, "p": "fro", "dim": None, "keepdim": False, "out": None, "dtype": None}


@reads_calls(torch.norm, takes=_NORM, methods=("norm",))
def _norm(call: FunctionCall) -> str:
    call.constant("p", one_of("fro", 2, 2.0))
    call.constant("dim", one_of(1, -1))
    call.constant("keepdim", one_of(True))
    call.constant("out", one_of(None))
    call.constant("dtype", one_of(None))
    return call.writer.add(ir.AlongRow, call.rows("input"), kind="norm")


@reads_calls(F.normalize, takes={"input": NEEDED, "p": 2.0, "dim": 1, "eps": 1e-12, "out": None})
def _normalize(call: FunctionCall) -> str:
    call.constant("p", one_of(2, 2.0))
    call.constant("dim", one_of(1, -1))
    call.constant("out", one_of(None))
    eps = call.constant("eps", lambda value: number(value) and value > 0)
    return call.writer.add(ir.UnitRows, call.rows("input"), eps=float(eps))


# ---- columns


@reads_calls(operator.getitem, takes={"input": NEEDED, "index": NEEDED}, views=True)
def _item(call: FunctionCall) -> Any:
    of, index = call.arguments["input"], call.arguments["index"]
    if isinstance(of, dict) or (isinstance(of, tuple) and type(index) is int):
        return of[index]  # of a layer that gives rows by node type, of several results, or of a shape
    is_head = isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None)
    if isinstance(of, Heads) and is_head and type(index[1]) is int and -of.heads <= index[1] < of.heads:
        return _head(call.writer, of, index[1] % of.heads)
    places = index if isinstance(index, tuple) else (index,)
    if not all(one is ... or type(one) in (slice, int) for one in places):  # others would copy all rows
        raise ir.NotLoweredError(call.name, f"with index {index} it has no lowered form", "x[:, first:last]")
    return _columns(call, operator.getitem, "x[:, first:last]")


_MANY_ROWS = 1 << 40
"""More rows than any matrix has: a view of one row repeated takes no memory."""


def _columns(call: FunctionCall, function: Any, needed: str = "dim=1") -> Any:
    """Append the ranges of columns that a function takes, which it shows on a matrix of their numbers."""
    (key, _), *others = call.arguments.items()
    x, options = call.rows(key), [value for _, value in others]
    numbers = torch.arange(call.writer.width(x))
    try:
        if not all(map(_is_constant, options)):
            raise TypeError("they are computed")
        taken = function(numbers.expand(_MANY_ROWS, -1), *options)
        ranges = [_range_of(one) for one in (taken if isinstance(taken, tuple | list) else [taken])]
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        what = f"with {', '.join(map(str, options))} it has no lowered form"
        raise ir.NotLoweredError(call.name, what, needed) from error
    found = tuple(NodeRows(call.writer.columns(x, *one)) for one in ranges)
    return found if isinstance(taken, tuple | list) else found[0]


for _by, _functions, _methods, _takes in (
    (torch.chunk, [torch.chunk], ["chunk"], {"input": NEEDED, "chunks": NEEDED, "dim": 0}),
    (torch.narrow, [torch.narrow], ["narrow"], _ONE | dict.fromkeys(("dim", "start", "length"), NEEDED)),
    (torch.split, [torch.split], [], {"tensor": NEEDED, "split_size_or_sections": NEEDED, "dim": 0}),
    (torch.split, [], ["split"], {"input": NEEDED, "split_size": NEEDED, "dim": 0}),  # names of its own
):
    reads_calls(*_functions, takes=_takes, methods=_methods, views=True)(partial(_columns, function=_by))


def _range_of(taken: Tensor) -> tuple[int, int]:
    """Return the first column taken and the one behind the last."""
    if taken.ndim != 2 or len(taken) != _MANY_ROWS or not taken.shape[1]:
        raise ValueError("it takes other rows, or no columns")
    first, last = int(taken[0, 0]), int(taken[0, -1]) + 1
    if taken[0].tolist() != [*range(first, last)]:
        raise ValueError("it takes other columns than a range")
    return first, last


# ---- shapes that change nothing: ``x.view(x.size(0), -1)``, ``x.squeeze(-1)``, and heads


@reads_calls(takes={"input": NEEDED, "dim": None}, methods=("size",))
def _size(call: FunctionCall) -> Any:
    shape = _shape_of(call)
    dim = call.constant("dim", one_of(None, *range(-len(shape), len(shape))))
    return shape if dim is None else shape[dim]


@reads_calls(getattr, takes={"input": NEEDED, "name": NEEDED})
def _attribute(call: FunctionCall) -> tuple[Any, ...]:
    call.constant("name", one_of("shape"))
    return _shape_of(call)


def _shape_of(call: FunctionCall) -> tuple[Any, ...]:
    of = call.arguments["input"]
    if isinstance(of, Heads):
        return NumRows(), of.heads, call.writer.width(of.value) // of.heads
    return NumRows(), call.writer.width(call.rows("input"))


_SIZES = {"input": NEEDED, "size": NEEDED, "size_1": None, "size_2": None}


@reads_calls(torch.reshape, takes=_SIZES, methods=("view", "reshape"), views=True)
def _view(call: FunctionCall) -> Any:
    of = call.arguments["input"]
    value = of.value if isinstance(of, Heads) else call.rows("input")
    width, size = call.writer.width(value), call.arguments["size"]
    sizes = list(size) if isinstance(size, list | tuple) else [size]
    sizes += [one for one in (call.arguments["size_1"], call.arguments["size_2"]) if one is not None]
    rows, *rest = sizes
    known = math.prod(one for one in rest if one != -1) if all(type(one) is int for one in rest) else 0
    all_rows = isinstance(rows, NumRows)
    fits = (all_rows or rows == -1) and rest.count(-1) <= all_rows and known > 0 and width % known == 0
    if not fits or (-1 not in rest and known != width):
        what = f"with sizes {sizes} it has no lowered form"
        raise ir.NotLoweredError(call.name, what, "x.view(-1, columns)")
    if len(rest) == 1:
        return value
    if len(rest) != 2:
        raise ir.NotLoweredError(call.name, f"with {len(sizes)} sizes it has no lowered form")
    return Heads(value, width // known if rest[0] == -1 else rest[0])


@reads_calls(
    torch.flatten, takes={"input": NEEDED, "start_dim": 0, "end_dim": -1}, methods=("flatten",), views=True
)
def _flatten(call: FunctionCall) -> str:
    call.constant("start_dim", one_of(1))
    call.constant("end_dim", one_of(-1))
    of = call.arguments["input"]
    return of.value if isinstance(of, Heads) else call.rows("input")


@reads_calls(takes=_SIZES, methods=("repeat",))
def _repeat(call: FunctionCall) -> Heads:
    """Read ``x.view(-1, 1, channels).repeat(1, heads, 1)``, which gives each head the same rows."""
    of, heads = call.arguments["input"], call.arguments["size_1"]
    call.constant("size", one_of(1))
    call.constant("size_2", one_of(1))
    if not isinstance(of, Heads) or of.heads != 1 or type(heads) is not int or heads < 1:
        raise ir.NotLoweredError(call.name, "it repeats something else than one head of each row")
    return Heads(call.writer.beside(*[of.value] * heads), heads)


def _head(writer: Writer, of: Heads, number: int) -> str:
    """Append the columns of one head."""
    width = writer.width(of.value) // of.heads
    return writer.columns(of.value, number * width, (number + 1) * width)


@reads_calls(torch.squeeze, takes={"input": NEEDED, "dim": NEEDED}, methods=("squeeze",), views=True)
def _squeeze(call: FunctionCall) -> str:
    x = call.rows("input")
    call.constant("dim", one_of(1, -1))
    if call.writer.width(x) == 1:
        raise ir.NotLoweredError(call.name, "it makes a vector of a column")
    return x


@reads_calls(ir.as_matrix, takes=_ONE, views=True)
def _as_matrix(call: FunctionCall) -> str:
    of = call.arguments["input"]
    return of.value if isinstance(of, Heads | Column) else call.rows("input")


reads_calls(takes=_ONE, methods=("contiguous",), views=True)(lambda call: call.rows("input"))


# ---- tensors that are computed of parameters alone

_OF_PARAMETERS = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow, operator.getitem,
    torch.add, torch.sub, torch.mul, torch.div, torch.neg, torch.pow, torch.exp, torch.log, torch.sqrt,
    torch.sigmoid, torch.tanh, torch.softmax, torch.relu, torch.abs, torch.square, torch.clamp,
    torch.reciprocal, torch.unsqueeze, torch.sum, torch.mean,
    F.softmax, F.softplus, F.sigmoid, F.tanh, F.relu, F.elu, F.leaky_relu, F.normalize,
}  # fmt: skip
_METHODS_OF_PARAMETERS = {
    "add", "sub", "mul", "div", "neg", "pow", "exp", "log", "sqrt", "sigmoid", "tanh", "softmax", "relu",
    "abs", "square", "clamp", "reciprocal", "unsqueeze", "view", "reshape", "sum", "mean",
}  # fmt: skip


def of_parameters(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ir.SmallTensor | None:
    """Return the tensor that a call computes of parameters alone; None if it is another call.

    ``target`` is the function, or the name of the method. At least one argument is a :class:`.SmallTensor`.
    """
    function: Any = target if not isinstance(target, str) and target in _OF_PARAMETERS else None
    if isinstance(target, str) and target in _METHODS_OF_PARAMETERS:
        function = getattr(torch.Tensor, target)
    known = all(isinstance(one, ir.SmallTensor) or _is_constant(one) for one in (*args, *kwargs.values()))
    return ir.SmallTensor(function, args, tuple(sorted(kwargs.items()))) if function and known else None


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_constant, value))
    if isinstance(value, slice):
        return all(type(one) in (int, type(None)) for one in (value.start, value.stop, value.step))
    return value is None or value is ... or number(value) or flag(value)
