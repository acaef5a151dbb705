"""Readers of stacks of matrices of node rows, and of their sum, mean and maximum, as in ``HeteroConv``."""

from __future__ import annotations

from typing import Any

import torch

from graphbraid.fullgraph.program.readers.exact import one_of
from graphbraid.fullgraph.program.readers.functions import (
    NEEDED,
    FunctionCall,
    FunctionReader,
    NodeRows,
    Stacked,
)
from graphbraid.fullgraph.program.refusal import NotLoweredError


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

__all__ = ["STACKS", "STACK_METHODS"]
