"""Rewriting: what every pass does with a program, and how it says what it decided."""

from __future__ import annotations

from collections.abc import Mapping

from graphbraid.fullgraph.program import INPUT, Decision, Operation, Program


def replaced(program: Program, new: Mapping[str, Operation], without: str | None = None) -> Program:
    """The program with the operations that make the named values replaced, and one taken out."""
    ops = tuple(new.get(op.out, op) for op in program.ops if op.out != without)
    return program.rewritten(_in_order(ops))


def _in_order(ops: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """In an order where each value is made before it is read, else as they stand."""
    made, rest, out = {INPUT}, list(ops), []
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
    """The program after a pass, with other ``ops`` or its own, and what the pass decided."""
    decision = Decision(
        name=name, taken=taken, what=what, saves=saves if taken else "", instead_of=instead_of
    )
    return program.rewritten(program.ops if ops is None else _in_order(ops), decision, **settings)


def in_seconds(seconds: float) -> str:
    """A time in words."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def in_bytes(count: float) -> str:
    """A size in words."""
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"


__all__ = ["decided", "in_bytes", "in_seconds", "replaced"]
