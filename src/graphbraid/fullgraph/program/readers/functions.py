"""Readers of the functions and methods that a model's ``forward`` calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from graphbraid.fullgraph.program.readers.exact import flag, probability
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.fullgraph.program.writer import Writer

NEEDED = object()
"""Marks parameters without a default value."""


@dataclass(frozen=True)
class FunctionCall:
    """One call of a function in a model's ``forward``.

    Attributes:
        writer: the writer that collects operations.
        name: name of the function.
        arguments: arguments by parameter; a matrix of node rows is a :class:`NodeRows`, and any other
            computed value an object that no reader accepts.
    """

    writer: Writer
    name: str
    arguments: Mapping[str, Any]

    def rows(self, key: str) -> str:
        """Return the name of the value of an argument that is a matrix of node rows.

        Raises:
            NotLoweredError: it is something else.
        """
        given = self.arguments[key]
        if isinstance(given, NodeRows):
            return given.value
        raise NotLoweredError(self.name, f"its argument {given} is not a matrix of node rows")

    def constant(self, key: str, allowed: Callable[[Any], bool]) -> Any:
        """Return an argument that must be a constant accepted by ``allowed``.

        Raises:
            NotLoweredError: it is computed, or not accepted.
        """
        given = self.arguments[key]
        if not allowed(given):
            raise NotLoweredError(self.name, f"with {key}={given} it has no lowered form", f"another {key}")
        return given


@dataclass(frozen=True)
class NodeRows:
    """A matrix of node rows among the arguments of a call, by the name of its value."""

    value: str


@dataclass(frozen=True)
class Stacked:
    """Matrices of node rows stacked along a new first dimension, by the names of their values."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class FunctionReader:
    """Reader of the calls of one function.

    Attributes:
        read: appends the operations and returns the name of the result, or what is stacked without any.
        takes: the function's parameters in order, with their defaults (:data:`NEEDED` if there is none).
        in_place: whether it always overwrites its first argument; an argument ``inplace`` may also say so.
        by_name: keyword-only parameters.
    """

    read: Callable[[FunctionCall], str | Stacked]
    takes: Mapping[str, Any]
    in_place: bool = False
    by_name: Collection[str] = ()


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


__all__ = ["FUNCTIONS", "METHODS", "NEEDED", "FunctionCall", "FunctionReader", "NodeRows", "Stacked"]
