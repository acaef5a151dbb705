"""Misfits: operations of a program whose inputs have other levels or widths than they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from graphbraid.fullgraph.program.edge_operations import Aggregate, Attention, Gine
from graphbraid.fullgraph.program.module_operations import Normalise
from graphbraid.fullgraph.program.operations import Add, Combine, Concat, Largest, Linear, Operation, Prelu


class ProgramValues(Protocol):
    """What a program knows of its values."""

    def width(self, value: str) -> int:
        """Return the number of columns of a value."""

    def part(self, value: str) -> int:
        """Return the number of the node type for whose nodes a value has rows."""

    def place(self, value: str) -> Any:
        """Return the nodes for which a value has rows."""


def misfit(op: Operation, values: ProgramValues) -> str | None:
    """Return what does not fit, to be read after the name of the operation's result; None where all does."""
    # Passes make programs by the dozen: each kind of operation is asked what may be wrong with it alone.
    return next((what for wrong in _checks_of(type(op)) if (what := wrong(values, op))), None)


def _linear(values: ProgramValues, op: Linear) -> str | None:
    width = values.width(op.inputs[0])
    return None if op.shape[1] == width else f"multiplies {width} columns by a weight of {op.shape[1]}"


def _normalise(values: ProgramValues, op: Normalise) -> str | None:
    width = values.width(op.inputs[0])
    return None if op.channels == width else f"normalises {width} columns with a module for {op.channels}"


def _prelu(values: ProgramValues, op: Prelu) -> str | None:
    width = values.width(op.inputs[0])
    return None if op.slope.numel() in (1, width) else f"has {op.slope.numel()} slopes for {width} columns"


def _gine(values: ProgramValues, op: Gine) -> str | None:
    width = values.width(op.inputs[0])
    of_edges = op.edge_channels if op.weight is None else op.weight.shape[0]
    if of_edges == width:
        return None
    return f"adds rows of {of_edges} edge features to rows of {width} columns"


def _walks(values: ProgramValues, op: Operation) -> str | None:
    if op.walks is None or values.part(op.inputs[0]) == op.walks.source:
        return None
    return "reads rows of another type than the relation's sources have"


def _own_rows(values: ProgramValues, op: Attention) -> str | None:
    if not op.own_rows or values.place(op.inputs[1]) == values.place(op.out):
        return None
    return "reads rows of its own that are not its result's nodes'"


def _addends(values: ProgramValues, op: Operation) -> str | None:
    for other in op.inputs[1:]:
        is_as_wide = isinstance(op, Concat) or values.width(other) == values.width(op.out)
        if values.place(other) != values.place(op.out) or not is_as_wide:
            return f"adds {other}, whose level or width is not that of {op.inputs[0]}'s result"
    return None


_Check = Callable[[ProgramValues, Any], str | None]
_CHECKS: tuple[tuple[tuple[type[Operation], ...], _Check], ...] = (
    ((Linear,), _linear),
    ((Normalise,), _normalise),
    ((Prelu,), _prelu),
    ((Gine,), _gine),
    ((Operation,), _walks),
    ((Attention,), _own_rows),
    ((Add, Aggregate, Linear, Combine, Largest, Concat), _addends),
)


_of_kind: dict[type, tuple[_Check, ...]] = {}


def _checks_of(kind: type) -> tuple[_Check, ...]:
    if kind not in _of_kind:
        _of_kind[kind] = tuple(check for kinds, check in _CHECKS if issubclass(kind, kinds))
    return _of_kind[kind]


__all__ = ["ProgramValues", "misfit"]
