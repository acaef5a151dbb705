"""Chains: operations before an exchange that work row by row, so that some rows can go before the others."""

from __future__ import annotations

from collections.abc import Sequence

from graphbraid.fullgraph.program import (
    WHOLE,
    Add,
    Combine,
    Concat,
    Epilogue,
    Exchange,
    Following,
    Hoisted,
    Linear,
    Operation,
    Own,
    Prelu,
    Program,
    RowFunction,
    Scale,
    UnitRows,
)

Chain = tuple[Linear | Epilogue, ...]


def chains_before(program: Program) -> dict[str, tuple[Exchange, Chain]]:
    """Return the exchanges at the end of a chain that begins with a linear map, by that map's value.

    Between a chain's operations stand at most such as draw no mask and begin no exchange, so that a chain may
    be run before its turn.
    """
    found: dict[str, tuple[Exchange, Chain]] = {}
    for number, op in enumerate(program.ops):
        if isinstance(op, Exchange):
            chain = _chain_before(program, program.ops[:number], op.inputs[0])
            if chain:
                found[chain[0].out] = op, chain
    return found


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


def _chain_before(program: Program, ops: Sequence[Operation], value: str) -> Chain:
    chain: list[Linear | Epilogue] = []
    for op in reversed(ops):
        if op.out != value:
            if _is_quiet(op):
                continue
            break
        if not isinstance(op, Linear | Epilogue) or any(read in program.inputs for read in op.inputs):
            break
        chain.insert(0, op)
        value = op.inputs[0]
    while chain and not _may_begin(program, chain):
        chain.pop(0)
    return tuple(chain)


def _is_quiet(op: Operation) -> bool:
    after = op.after if isinstance(op, Following) else op if isinstance(op, Epilogue) else None
    return isinstance(op, _ROW_WISE) and (after is None or after.p == 0)


def _may_begin(program: Program, chain: Sequence[Linear | Epilogue]) -> bool:
    """Return whether a chain begins with a linear map, before which all that is added on its way is there."""
    places = {op.out: number for number, op in enumerate(program.ops)}
    links = {op.out for op in chain}
    added = [value for op in chain for value in op.inputs[1:] if value not in links]
    return isinstance(chain[0], Linear) and all(places[value] < places[chain[0].out] for value in added)


_ROW_WISE = (Linear, Epilogue, Own, Add, Scale, Combine, Concat, RowFunction, Prelu, UnitRows)


__all__ = ["Chain", "chains_before", "first_before", "linear_before"]
