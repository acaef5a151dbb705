"""Readers of arithmetic on matrices of node rows and constants, and of concatenation."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch

from graphbraid.fullgraph.program.readers.exact import number, one_of
from graphbraid.fullgraph.program.readers.functions import NEEDED, FunctionCall, FunctionReader, NodeRows
from graphbraid.fullgraph.program.refusal import NotLoweredError


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

__all__ = ["ARITHMETIC", "ARITHMETIC_METHODS"]
