"""Fusing: row-wise operations are done by the kernel before them, while the cache holds the rows."""

from __future__ import annotations

from dataclasses import replace

from graphbraid.fullgraph.lowering.facts import Facts
from graphbraid.fullgraph.lowering.passes.rewriting import decided, in_bytes, replaced
from graphbraid.fullgraph.program import Add, Aggregate, Epilogue, Following, Linear, Program


def fuse(program: Program, facts: Facts) -> Program:
    """Fuse operations, so that fewer passes over the rows are left.

    Bias, activation and dropout become one pass, additions join the kernel that makes one of their sides, and
    a pass that follows an aggregation or a linear map is applied to its rows while the cache holds them.
    """
    after = program
    for merge in (_merge_epilogues, _merge_additions, _join_epilogues):
        while (merged := merge(after)) is not None:
            after = merged
    saved = len(program.ops) - len(after.ops)
    joined = [op for op in after.ops if isinstance(op, Following) and op.after]
    what = f"{saved} fewer passes over the rows" if saved else "nothing to fuse"
    if joined:
        what += f", {len(joined)} of them made in the cache by the kernel before"
    nbytes = sum(8 * facts.num_rows(after.place(op.out)) * after.width(op.out) for op in joined)
    saves = f"{in_bytes(nbytes)} an epoch that need not leave the cache and come back" if joined else ""
    return decided(program, "fuse", saved > 0, what, saves=saves, ops=after.ops)


def _merge_epilogues(program: Program) -> Program | None:
    for op in program.ops:
        before = program.producer(op.inputs[0])
        if not isinstance(op, Epilogue) or not isinstance(before, Epilogue):
            continue
        if len(program.consumers(before.out)) > 1 or _stage(op) <= _stage(before, last=True):
            continue
        act = before.act if op.act == "none" else op.act
        both = replace(before, out=op.out, act=act, p=max(before.p, op.p))
        return replaced(program, {op.out: both}, without=before.out)
    return None


def _stage(op: Epilogue, *, last: bool = False) -> int:
    """Return the first (or last) part of an epilogue: 0 is bias, 1 activation, 2 dropout."""
    parts = [op.bias is not None, op.act != "none", op.p > 0]
    there = [i for i, part in enumerate(parts) if part] or [0]
    return there[-1] if last else there[0]


def _merge_additions(program: Program) -> Program | None:
    for op in program.ops:
        if not isinstance(op, Add):
            continue
        for target, other in (op.inputs[::-1], op.inputs):
            maker = program.producer(target)
            fits = isinstance(maker, Linear | Aggregate) and len(maker.inputs) == 1
            if not fits or len(program.consumers(target)) > 1 or maker is None:
                continue
            joined = replace(maker, out=op.out, inputs=(*maker.inputs, other))
            return replaced(program, {op.out: joined}, without=target)
    return None


def _join_epilogues(program: Program) -> Program | None:
    for op in program.ops:
        maker = program.producer(op.inputs[0])
        fits = isinstance(op, Epilogue) and isinstance(maker, Following) and maker.after is None
        if not fits or len(program.consumers(op.inputs[0])) > 1:
            continue
        assert isinstance(op, Epilogue)
        assert isinstance(maker, Following)
        joined = replace(maker, out=op.out, after=op)
        return replaced(program, {op.out: joined}, without=maker.out)
    return None


__all__ = ["fuse"]
