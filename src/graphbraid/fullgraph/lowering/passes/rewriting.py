"""Rewriting: how passes replace operations of a program and record what they decided."""

from __future__ import annotations

from collections.abc import Mapping

from graphbraid.fullgraph.program import Decision, Operation, Program


def replaced(program: Program, new: Mapping[str, Operation], without: str | None = None) -> Program:
    """Replace the operations that compute the named values, and drop the one that computes ``without``."""
    ops = tuple(new.get(op.out, op) for op in program.ops if op.out != without)
    return program.rewritten(_in_order(program, ops))


def _in_order(program: Program, ops: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Sort operations so that each value is computed before it is read, and otherwise keep their order."""
    made, rest, out = set(program.inputs), list(ops), []
    while rest:
        op = next(op for op in rest if all(i in made for i in op.inputs))
        rest.remove(op)
        made.add(op.out)
        out.append(op)
    return tuple(out)


def decided(
    program: Program,
    name: str,
    taken: bool,
    what: str,
    *,
    saves: str = "",
    instead_of: str = "",
    ops: tuple[Operation, ...] | None = None,
    **settings: object,
) -> Program:
    """Return the program after a pass, with new ``ops`` or its own, and the pass's decision appended."""
    decision = Decision(
        name=name, taken=taken, what=what, saves=saves if taken else "", instead_of=instead_of
    )
    return program.rewritten(program.ops if ops is None else _in_order(program, ops), decision, **settings)


def in_seconds(seconds: float) -> str:
    """Format a time."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def in_bytes(count: float) -> str:
    """Format a size."""
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"


__all__ = ["decided", "in_bytes", "in_seconds", "replaced"]
