"""Readers of the functions and methods that a forward calls, and of activations in all their forms."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from graphbraid.fullgraph.program import NotLoweredError, Prelu
from graphbraid.fullgraph.reading.exact import Allowed, Known, anything, flag, number, one_of, probability
from graphbraid.fullgraph.reading.reader import (
    NEEDED,
    FunctionCall,
    FunctionReader,
    LayerCall,
    NodeRows,
    Reader,
    Registry,
    Stacked,
    Writer,
)
from graphbraid.ops.epilogue import LEAKY_SLOPE


def _function_act(name: str) -> Callable[[FunctionCall], str]:
    return lambda call: call.writer.epilogue(call.rows("input"), act=name)


def _function_dropout(call: FunctionCall) -> str:
    p, training = call.constant("p", probability), call.constant("training", flag)
    return call.writer.epilogue(call.rows("input"), p=float(p) if training else 0.0)


_RELU_ = FunctionReader(_function_act("relu"), {"input": NEEDED}, in_place=True)
_INPLACE = {"inplace": False}
FUNCTIONS: dict[Any, FunctionReader] = {
    torch.relu_: _RELU_,
    F.dropout: FunctionReader(_function_dropout, {"input": NEEDED, "p": 0.5, "training": True} | _INPLACE),
}
"""Readers by function."""
METHODS: dict[str, FunctionReader] = {"relu_": _RELU_}
"""Readers by name of a tensor's method, whose first argument is the tensor."""


# ---- readers of activations: as modules, as functions and as methods of a tensor

_ROWS = one_of(1, -1)
"""Values of ``dim`` that reduce along each row of a matrix of node rows."""


def _positive(value: Any) -> bool:
    return number(value) and value > 0


@dataclass(frozen=True)
class Activation:
    """One activation, with all its names as a module, function and method."""

    write: Callable[..., str]
    """Appends the operation, called as ``write(writer, x, **arguments)``."""
    arguments: Mapping[str, tuple[Any, Allowed]] = field(default_factory=dict)
    """The arguments by name, in their order: the default value and a test of the values that are handled."""
    module: type[nn.Module] | None = None
    functions: tuple[Any, ...] = ()
    methods: tuple[str, ...] = ()


def _function(kind: str, *fixed: float) -> Callable[..., str]:
    def write(writer: Writer, x: str, **arguments: Any) -> str:
        given = (a if isinstance(a, str) else float(a) for a in arguments.values())
        return writer.function(x, kind, *given, *fixed)

    return write


def _celu(writer: Writer, x: str, alpha: float) -> str:
    return writer.function(x, "elu", float(alpha), 1.0, 1 / float(alpha))


def _along_rows(kind: str) -> Callable[..., str]:
    return lambda writer, x, **_: writer.function(x, kind)


def _relu(writer: Writer, x: str) -> str:
    return writer.epilogue(x, act="relu")


_SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)
_ALONG: dict[str, tuple[Any, Allowed]] = {"dim": (NEEDED, _ROWS)}
_ACTIVATIONS = (
    Activation(_relu, {}, nn.ReLU, (F.relu, torch.relu), ("relu",)),
    Activation(_function("tanh"), {}, nn.Tanh, (torch.tanh,), ("tanh",)),
    Activation(_function("sigmoid"), {}, nn.Sigmoid, (torch.sigmoid,), ("sigmoid",)),
    Activation(_function("silu"), {}, nn.SiLU, (F.silu,)),
    Activation(_function("gelu"), {"approximate": ("none", one_of("none", "tanh"))}, nn.GELU, (F.gelu,)),
    Activation(_function("elu", 1.0, 1.0), {"alpha": (1.0, number)}, nn.ELU, (F.elu,)),
    Activation(lambda writer, x: writer.function(x, "elu", *_SELU), {}, nn.SELU, (F.selu, torch.selu)),
    Activation(_celu, {"alpha": (1.0, _positive)}, nn.CELU, (F.celu, torch.celu)),
    Activation(
        _function("leaky_relu"), {"negative_slope": (LEAKY_SLOPE, number)}, nn.LeakyReLU, (F.leaky_relu,)
    ),
    Activation(
        _function("softplus"),
        {"beta": (1.0, _positive), "threshold": (20.0, number)},
        nn.Softplus,
        (F.softplus,),
    ),
    Activation(
        _function("hardtanh"),
        {"min_val": (-1.0, number), "max_val": (1.0, number)},
        nn.Hardtanh,
        (F.hardtanh,),
    ),
    Activation(lambda writer, x, **_: writer.function(x, "hardtanh", 0.0, 6.0), {}, nn.ReLU6, (F.relu6,)),
    Activation(_along_rows("softmax"), _ALONG, nn.Softmax, (F.softmax, torch.softmax), ("softmax",)),
    Activation(
        _along_rows("log_softmax"),
        _ALONG,
        nn.LogSoftmax,
        (F.log_softmax, torch.log_softmax),
        ("log_softmax",),
    ),
)
_UNUSED: dict[str, tuple[Any, Allowed]] = {
    "inplace": (False, flag),
    "_stacklevel": (3, anything),
    "dtype": (None, one_of(None)),
}
"""Further arguments of some functions, none of which changes a value."""


def _reader(activation: Activation) -> Reader:
    def read(call: LayerCall) -> str:
        given = {key: getattr(call.layer, key) for key in activation.arguments}
        return activation.write(call.writer, call.x, **given)

    attributes = {key: allowed for key, (_, allowed) in activation.arguments.items()}
    kept: dict[str, Allowed] = {"inplace": flag}
    if activation.module is nn.ReLU6:
        kept |= {"min_val": one_of(0.0), "max_val": one_of(6.0)}
    return Reader(read, Known(attributes | kept), ("input",))


def _function_of(
    activation: Activation, takes: Mapping[str, Any], *, in_place: bool = False
) -> FunctionReader:
    beside = {key: allowed for key, (_, allowed) in _UNUSED.items() if key in takes}

    def read(call: FunctionCall) -> str:
        for key, allowed in beside.items():
            call.constant(key, allowed)
        given = {key: call.constant(key, allowed) for key, (_, allowed) in activation.arguments.items()}
        return activation.write(call.writer, call.rows("input"), **given)

    return FunctionReader(read, takes, in_place=in_place)


def _takes(activation: Activation, function: Any) -> dict[str, Any]:
    """Return a function's parameters with their defaults; from ``activation`` if it has no signature."""
    known = {key: default for key, (default, _) in activation.arguments.items()}
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return {"input": NEEDED, **known, **({"dtype": None} if "dim" in known else {})}
    found = {}
    for key, parameter in parameters.items():
        found[key] = NEEDED if parameter.default is parameter.empty else parameter.default
    return found


def _prelu(call: LayerCall) -> str:
    return call.writer.add(Prelu, call.x, slope=call.layer.weight)


ACTIVATION_MODULES: Registry = {
    (a.module.__module__, a.module.__name__): _reader(a) for a in _ACTIVATIONS if a.module is not None
} | {
    (nn.PReLU.__module__, "PReLU"): Reader(
        _prelu, Known({"num_parameters": anything, "init": anything}, ("weight",)), ("input",)
    )
}
"""Readers by module and name of the class."""
ACTIVATION_FUNCTIONS: dict[Any, FunctionReader] = {
    function: _function_of(a, _takes(a, function)) for a in _ACTIVATIONS for function in a.functions
}
"""Readers by function."""
ACTIVATION_METHODS: dict[str, FunctionReader] = {
    name: _function_of(a, _takes(a, None)) for a in _ACTIVATIONS for name in a.methods
}
"""Readers by name of a tensor's method."""


# ---- readers of arithmetic on matrices of node rows and constants, and of concatenation


def _add(call: FunctionCall) -> str:
    alpha = float(call.constant("alpha", number))
    return call.writer.combine((1.0, call.rows("input")), (alpha, call.rows("other")))


def _sub(call: FunctionCall) -> str:
    alpha = float(call.constant("alpha", number))
    return call.writer.combine((1.0, call.rows("input")), (-alpha, call.rows("other")))


def _mul(call: FunctionCall) -> str:
    first, second = "input", "other"
    if not isinstance(call.arguments[first], NodeRows):
        first, second = second, first
    return call.writer.combine((float(call.constant(second, number)), call.rows(first)))


def _div(call: FunctionCall) -> str:
    call.constant("rounding_mode", one_of(None))
    divisor = call.constant("other", lambda value: number(value) and value != 0)
    return call.writer.combine((1.0 / divisor, call.rows("input")))


def _neg(call: FunctionCall) -> str:
    return call.writer.combine((-1.0, call.rows("input")))


def _cat(call: FunctionCall) -> str:
    call.constant("dim", one_of(1, -1))
    values = call.arguments["tensors"]
    if not isinstance(values, list | tuple) or not all(isinstance(value, NodeRows) for value in values):
        raise NotLoweredError(call.name, "it joins something that is not a matrix of node rows")
    return call.writer.beside(*(value.value for value in values))


_PAIR: dict[str, Any] = {"input": NEEDED, "other": NEEDED}
_ALPHA, _DIV = _PAIR | {"alpha": 1}, _PAIR | {"rounding_mode": None}
_CAT = {"tensors": NEEDED, "dim": 0}


def _both(
    function: Any, method: str, read: Any, takes: Mapping[str, Any], by_name: tuple[str, ...] = ()
) -> None:
    """Register a reader for a function, its operator, their in-place forms, and its methods."""
    plain = FunctionReader(read, takes, by_name=by_name)
    in_place = FunctionReader(read, takes, in_place=True, by_name=by_name)
    ARITHMETIC[function] = plain
    ARITHMETIC_METHODS[method] = plain
    ARITHMETIC_METHODS[f"{method}_"] = in_place
    name = {"div": "truediv"}.get(method, method)
    ARITHMETIC[getattr(operator, name)] = plain
    if hasattr(operator, f"i{name}"):
        ARITHMETIC[getattr(operator, f"i{name}")] = in_place


ARITHMETIC: dict[Any, FunctionReader] = dict.fromkeys(
    (torch.cat, torch.concat, torch.concatenate), FunctionReader(_cat, _CAT)
)
"""Readers by function."""
ARITHMETIC_METHODS: dict[str, FunctionReader] = {}
"""Readers by name of a tensor's method."""
_both(torch.add, "add", _add, _ALPHA, ("alpha",))
_both(torch.sub, "sub", _sub, _ALPHA, ("alpha",))
_both(torch.mul, "mul", _mul, _PAIR)
_both(torch.div, "div", _div, _DIV, ("rounding_mode",))
_both(torch.neg, "neg", _neg, {"input": NEEDED})


# ---- readers of stacks of matrices of node rows, and of their sum, mean and maximum, as in ``HeteroConv``


def _stack(call: FunctionCall) -> Stacked:
    call.constant("dim", one_of(0))
    values = call.arguments["tensors"]
    if not isinstance(values, list | tuple) or not all(isinstance(value, NodeRows) for value in values):
        raise NotLoweredError(call.name, "it stacks something that is not a matrix of node rows")
    return Stacked(tuple(value.value for value in values))


def _stacked(call: FunctionCall) -> tuple[str, ...]:
    stacked = call.arguments["input"]
    if not isinstance(stacked, Stacked):
        raise NotLoweredError(
            call.name, "no operation stands for this call but of a stack", "a call of docs/lowered_models.md"
        )
    call.constant("dim", one_of(0))
    call.constant("keepdim", one_of(False))
    return stacked.values


def _sum(call: FunctionCall) -> str:
    first, *others = _stacked(call)
    if len({first, *others}) <= len(others):
        return call.writer.combine(*((1.0, value) for value in (first, *others)))
    for value in others:  # a sum of two can be part of an aggregation; one of many is a pass of its own
        first = call.writer.sum(value, first)
    return first


def _mean(call: FunctionCall) -> str:
    return call.writer.combine((1 / len(_stacked(call)), _sum(call)))


def _max(call: FunctionCall) -> str:
    """Read ``torch.max`` along the stack: ``HeteroConv`` takes the first of the pair that it returns."""
    return call.writer.largest(*_stacked(call))


_REDUCED: dict[str, Any] = {"input": NEEDED, "dim": None, "keepdim": False}
STACKS: dict[Any, FunctionReader] = {
    torch.stack: FunctionReader(_stack, {"tensors": NEEDED, "dim": 0}),
    torch.sum: FunctionReader(_sum, _REDUCED),
    torch.mean: FunctionReader(_mean, _REDUCED),
    torch.max: FunctionReader(_max, _REDUCED),
}
"""Readers by function."""
STACK_METHODS: dict[str, FunctionReader] = {
    "sum": FunctionReader(_sum, _REDUCED),
    "mean": FunctionReader(_mean, _REDUCED),
}
"""Readers by name of a tensor's method."""
