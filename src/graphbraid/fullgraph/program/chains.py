"""Linear maps before an exchange, whose gradients can be computed in two parts."""

from __future__ import annotations

from graphbraid.fullgraph.program import WHOLE, Hoisted, Linear, Own, Program


def linear_before(program: Program, value: str) -> Linear | None:
    """Return the linear map, of a weight as it is, that made a value which is only exchanged; else None."""
    op = program.producer(value)
    if not isinstance(op, Linear) or len(program.consumers(value)) != 1:
        return None
    is_plain = len(op.inputs) == 1 and op.after is None and op.view == WHOLE and op.mixed is None
    return op if is_plain and op.inputs[0] not in program.inputs else None


def first_before(program: Program, linear: Linear) -> Linear | None:
    """Return the linear map of a constant, of a whole weight, that only ``linear`` reads; else None."""
    op = program.producer(linear.inputs[0])
    if not isinstance(op, Linear) or len(program.consumers(op.out)) != 1:
        return None
    is_plain = len(op.inputs) == 1 and op.view == WHOLE and op.mixed is None
    is_plain &= op.after is None or not op.after.bias_at
    return op if is_plain and _is_hoisted(program, op.inputs[0]) else None


def _is_hoisted(program: Program, value: str) -> bool:
    op = program.producer(value)
    return isinstance(op, Hoisted) or (isinstance(op, Own) and _is_hoisted(program, op.inputs[0]))


__all__ = ["first_before", "linear_before"]
