"""Readers of dropout, and of activations in all their forms: modules, functions and methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from graphbraid.fullgraph.program import Prelu
from graphbraid.fullgraph.reading.exact import Allowed, Known, anything, flag, number, one_of, probability
from graphbraid.fullgraph.reading.reader import (
    NEEDED,
    FunctionCall,
    LayerCall,
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
