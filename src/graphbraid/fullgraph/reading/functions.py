"""Readers of the functions and methods that a forward calls, and of activations in all their forms."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from graphbraid.fullgraph.program import NotLoweredError, Prelu
from graphbraid.fullgraph.reading.exact import Allowed, Known, anything, flag, number, one_of, probability
from graphbraid.fullgraph.reading.reader import (
    NEEDED,
    FunctionCall,
    LayerCall,
    NodeRows,
    Stacked,
    Writer,
    reads,
    reads_calls,
)
from graphbraid.ops.epilogue import LEAKY_SLOPE

# ---- dropout


@reads_calls(F.dropout, takes={"input": NEEDED, "p": 0.5, "training": True, "inplace": False})
def _dropout(call: FunctionCall) -> str:
    p, training = call.constant("p", probability), call.constant("training", flag)
    return call.writer.epilogue(call.rows("input"), p=float(p) if training else 0.0)


# ---- arithmetic on matrices of node rows and constants, and concatenation

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


@_arithmetic(torch.add, "add", _PAIR | {"alpha": 1}, ("alpha",))
def _add(call: FunctionCall) -> str:
    alpha = float(call.constant("alpha", number))
    return call.writer.combine((1.0, call.rows("input")), (alpha, call.rows("other")))


@_arithmetic(torch.sub, "sub", _PAIR | {"alpha": 1}, ("alpha",))
def _sub(call: FunctionCall) -> str:
    alpha = float(call.constant("alpha", number))
    return call.writer.combine((1.0, call.rows("input")), (-alpha, call.rows("other")))


@_arithmetic(torch.mul, "mul", _PAIR)
def _mul(call: FunctionCall) -> str:
    first, second = "input", "other"
    if not isinstance(call.arguments[first], NodeRows):
        first, second = second, first
    return call.writer.combine((float(call.constant(second, number)), call.rows(first)))


@_arithmetic(torch.div, "div", _PAIR | {"rounding_mode": None}, ("rounding_mode",))
def _div(call: FunctionCall) -> str:
    call.constant("rounding_mode", one_of(None))
    divisor = call.constant("other", lambda value: number(value) and value != 0)
    return call.writer.combine((1.0 / divisor, call.rows("input")))


@_arithmetic(torch.neg, "neg", {"input": NEEDED})
def _neg(call: FunctionCall) -> str:
    return call.writer.combine((-1.0, call.rows("input")))


def _all_rows(call: FunctionCall, joins: str) -> tuple[str, ...]:
    values = call.arguments["tensors"]
    if not isinstance(values, list | tuple) or not all(isinstance(value, NodeRows) for value in values):
        raise NotLoweredError(call.name, f"it {joins} something that is not a matrix of node rows")
    return tuple(value.value for value in values)


@reads_calls(torch.cat, torch.concat, torch.concatenate, takes={"tensors": NEEDED, "dim": 0})
def _cat(call: FunctionCall) -> str:
    call.constant("dim", one_of(1, -1))
    return call.writer.beside(*_all_rows(call, "joins"))


# ---- stacks of matrices, and their sum, mean and maximum, as in ``HeteroConv``

_REDUCED: dict[str, Any] = {"input": NEEDED, "dim": None, "keepdim": False}


@reads_calls(torch.stack, takes={"tensors": NEEDED, "dim": 0})
def _stack(call: FunctionCall) -> Stacked:
    call.constant("dim", one_of(0))
    return Stacked(_all_rows(call, "stacks"))


def _stacked(call: FunctionCall) -> tuple[str, ...]:
    stacked = call.arguments["input"]
    if not isinstance(stacked, Stacked):
        raise NotLoweredError(
            call.name, "no operation stands for this call but of a stack", "a call of docs/lowered_models.md"
        )
    call.constant("dim", one_of(0))
    call.constant("keepdim", one_of(False))
    return stacked.values


@reads_calls(torch.sum, takes=_REDUCED, methods=("sum",))
def _sum(call: FunctionCall) -> str:
    first, *others = _stacked(call)
    if len({first, *others}) <= len(others):
        return call.writer.combine(*((1.0, value) for value in (first, *others)))
    for value in others:  # a sum of two can be part of an aggregation; one of many is a pass of its own
        first = call.writer.sum(value, first)
    return first


@reads_calls(torch.mean, takes=_REDUCED, methods=("mean",))
def _mean(call: FunctionCall) -> str:
    return call.writer.combine((1 / len(_stacked(call)), _sum(call)))


@reads_calls(torch.max, takes=_REDUCED)
def _max(call: FunctionCall) -> str:
    """Read ``torch.max`` along the stack: ``HeteroConv`` takes the first of the pair that it returns."""
    return call.writer.largest(*_stacked(call))


# ---- activations: as modules, as functions and as methods of a tensor

_Arguments = Mapping[str, tuple[Any, Allowed]]
"""Arguments by name, in their order: the default value, and a test of the values that are handled."""
_UNUSED: _Arguments = {"inplace": (False, flag), "_stacklevel": (3, anything), "dtype": (None, one_of(None))}
"""Further arguments of some functions, none of which changes a value."""


def _activation(
    write: Callable[..., str],
    module: type[nn.Module],
    functions: tuple[Any, ...],
    methods: tuple[str, ...] = (),
    *,
    kept: Mapping[str, Allowed] | None = None,
    **arguments: tuple[Any, Allowed],
) -> None:
    """Enter the readers of one activation.

    Args:
        write: appends the operation, called as ``write(writer, x, **arguments)``.
        module: its class as a module.
        functions: its functions.
        methods: its names as a method.
        kept: tests of further attributes of the module.
        arguments: its arguments, as :data:`_Arguments`.
    """

    def of_module(call: LayerCall) -> str:
        return write(call.writer, call.x, **{key: getattr(call.layer, key) for key in arguments})

    known = {key: allowed for key, (_, allowed) in arguments.items()} | {"inplace": flag} | dict(kept or {})
    reads(f"{module.__module__}.{module.__name__}", known=Known(known), takes=("input",))(of_module)

    def enter(
        takes: Mapping[str, Any], functions: tuple[Any, ...] = (), methods: tuple[str, ...] = ()
    ) -> None:
        def of_call(call: FunctionCall) -> str:
            for key, (_, allowed) in _UNUSED.items():
                if key in takes:
                    call.constant(key, allowed)
            given = {key: call.constant(key, allowed) for key, (_, allowed) in arguments.items()}
            return write(call.writer, call.rows("input"), **given)

        reads_calls(*functions, takes=takes, methods=methods)(of_call)

    for function in functions:
        enter(_takes(arguments, function), functions=(function,))
    enter(_takes(arguments, None), methods=methods)


def _takes(arguments: _Arguments, function: Any) -> dict[str, Any]:
    """Return a function's parameters with their defaults; from ``arguments`` if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin, or a method
        known = {key: default for key, (default, _) in arguments.items()}
        return {"input": NEEDED, **known, **({"dtype": None} if "dim" in known else {})}
    return {key: NEEDED if one.default is one.empty else one.default for key, one in parameters.items()}


def _function(kind: str, *fixed: float) -> Callable[..., str]:
    def write(writer: Writer, x: str, **arguments: Any) -> str:
        given = (a if isinstance(a, str) else float(a) for a in arguments.values())
        return writer.function(x, kind, *given, *fixed)

    return write


def _along_rows(kind: str) -> Callable[..., str]:
    return lambda writer, x, **_: writer.function(x, kind)


def _celu(writer: Writer, x: str, alpha: float) -> str:
    return writer.function(x, "elu", float(alpha), 1.0, 1 / float(alpha))


def _relu(writer: Writer, x: str) -> str:
    return writer.epilogue(x, act="relu")


def _positive(value: Any) -> bool:
    return number(value) and value > 0


_SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)
_ROWS = (NEEDED, one_of(1, -1))
"""The argument ``dim`` that reduces along each row of a matrix of node rows."""
_TANH = ("none", one_of("none", "tanh"))
_SIX: dict[str, Allowed] = {"min_val": one_of(0.0), "max_val": one_of(6.0)}
_softmax, _log_softmax = _along_rows("softmax"), _along_rows("log_softmax")
_activation(_relu, nn.ReLU, (F.relu, torch.relu), ("relu",))
_activation(_function("tanh"), nn.Tanh, (torch.tanh,), ("tanh",))
_activation(_function("sigmoid"), nn.Sigmoid, (torch.sigmoid,), ("sigmoid",))
_activation(_function("silu"), nn.SiLU, (F.silu,))
_activation(_function("gelu"), nn.GELU, (F.gelu,), approximate=_TANH)
_activation(_function("elu", 1.0, 1.0), nn.ELU, (F.elu,), alpha=(1.0, number))
_activation(_function("elu", *_SELU), nn.SELU, (F.selu, torch.selu))
_activation(_celu, nn.CELU, (F.celu, torch.celu), alpha=(1.0, _positive))
_activation(_function("leaky_relu"), nn.LeakyReLU, (F.leaky_relu,), negative_slope=(LEAKY_SLOPE, number))
_activation(
    _function("softplus"), nn.Softplus, (F.softplus,), beta=(1.0, _positive), threshold=(20.0, number)
)
_activation(_function("hardtanh"), nn.Hardtanh, (F.hardtanh,), min_val=(-1.0, number), max_val=(1.0, number))
_activation(_function("hardtanh", 0.0, 6.0), nn.ReLU6, (F.relu6,), kept=_SIX)
_activation(_softmax, nn.Softmax, (F.softmax, torch.softmax), ("softmax",), dim=_ROWS)
_activation(_log_softmax, nn.LogSoftmax, (F.log_softmax, torch.log_softmax), ("log_softmax",), dim=_ROWS)


@reads_calls(torch.relu_, takes={"input": NEEDED}, methods=("relu_",), in_place=True)
def _relu_in_place(call: FunctionCall) -> str:
    return _relu(call.writer, call.rows("input"))


@reads(
    "torch.nn.modules.activation.PReLU",
    known=Known({"num_parameters": anything, "init": anything}, ("weight",)),
    takes=("input",),
)
def _prelu(call: LayerCall) -> str:
    return call.writer.add(Prelu, call.x, slope=call.layer.weight)
