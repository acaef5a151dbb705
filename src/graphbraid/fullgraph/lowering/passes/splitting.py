"""Splitting: a linear map of concatenated values becomes a sum of linear maps, which saves the copies."""

from __future__ import annotations

from dataclasses import replace

from graphbraid.fullgraph.lowering.facts import Facts
from graphbraid.fullgraph.lowering.passes.rewriting import decided, in_bytes
from graphbraid.fullgraph.program import WHOLE, Add, Concat, Linear, Operation, Program


def split(program: Program, facts: Facts) -> Program:
    """Multiply each concatenated value by its part of the weight, so that none has to be copied."""
    ops = _split_products(program)
    if ops is None:
        return decided(program, "split", False, "no linear map reads values side by side")
    removed = [op for op in program.ops if isinstance(op, Concat) and op not in ops]
    nbytes = sum(16 * facts.num_rows(program.place(op.out)) * program.width(op.out) for op in removed)
    what = "linear maps of values side by side are sums of linear maps"
    return decided(program, "split", True, what, saves=f"{in_bytes(nbytes)} of copies an epoch", ops=ops)


def _split_products(program: Program) -> tuple[Operation, ...] | None:
    """Return the operations with every linear map of a :class:`Concat` split; None if there is none."""
    ops: list[Operation] = []
    for op in program.ops:
        before = program.producer(op.inputs[0]) if isinstance(op, Linear) else None
        if isinstance(op, Linear) and isinstance(before, Concat) and op.view == WHOLE and len(op.inputs) == 1:
            ops += _parts(program, op, before)
        else:
            ops.append(op)
    if len(ops) == len(program.ops):
        return None
    read = {value for op in ops for value in op.inputs} | {program.output}
    return tuple(op for op in ops if op.out in read or not isinstance(op, Concat))


def _parts(program: Program, op: Linear, before: Concat) -> list[Operation]:
    """Return products of each input with its columns of the weight, and their running sums."""
    ops: list[Operation] = []
    start, total, last = 0, "", len(before.inputs) - 1
    for number, value in enumerate(before.inputs):
        stop = start + program.width(value)
        is_sum = bool(total)
        product = f"{op.out}_part{number}" if is_sum or last else op.out
        ops.append(replace(op, out=product, inputs=(value,), view=replace(WHOLE, columns=(start, stop))))
        if is_sum:
            product = op.out if number == last else f"{op.out}_sum{number}"
            ops.append(Add(out=product, inputs=(total, ops[-1].out)))
        start, total = stop, product
    return ops


__all__ = ["split"]
