"""Lowering: passes that turn a program into the cheapest equal one.

Each pass is a pure function ``(program, facts) -> program`` and leaves a :class:`Decision`, also where it
changes nothing. They can be switched off one by one, which the benchmark's ablation does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from graphbraid.fullgraph.lowering.facts import Facts
from graphbraid.fullgraph.lowering.hoisting import hoisted, hoisted_bytes
from graphbraid.fullgraph.lowering.splitting import split_products
from graphbraid.fullgraph.program import (
    INPUT,
    Add,
    Aggregate,
    Concat,
    Decision,
    Epilogue,
    Following,
    Linear,
    Module,
    Normalise,
    Operation,
    Own,
    Program,
)

Pass = Callable[[Program, Facts], Program]


def split(program: Program, facts: Facts) -> Program:
    """Multiply values that stand side by side each by their part of the weight: they need not be copied."""
    ops = split_products(program)
    if ops is None:
        return _decided(program, "split", False, "no linear map reads values side by side")
    removed = [op for op in program.ops if isinstance(op, Concat) and op not in ops]
    nbytes = sum(16 * facts.rows[program.level(op.out)] * program.width(op.out) for op in removed)
    what = "linear maps of values side by side are sums of linear maps"
    return _decided(program, "split", True, what, saves=f"{_bytes(nbytes)} of copies an epoch", ops=ops)


def choose_input_path(program: Program, facts: Facts) -> Program:
    """Multiply the features as dense, as sparse or as bits, whichever takes least time."""
    readers = _readers(program, INPUT)
    width = sum(program.width(op.out) for op in readers if isinstance(op, Linear))
    if not width or not all(isinstance(op, Linear) and len(op.inputs) == 1 for op in readers):
        why = "the features are read by something else than a linear map"
        return _decided(program, "input path", False, f"dense: {why}", input_path="dense")
    seconds, tried = facts.weighed(lambda by: _input_seconds(program, by, width))
    chosen = min(seconds, key=lambda path: seconds[path])
    others = sorted((path for path in seconds if path != chosen), key=lambda path: seconds[path])
    what = f"{chosen}: {facts.density:.4g} of the features are not zero"
    if chosen == "binary":
        what += ", one number in each row: 32 features are a word of bits"
    what += tried
    return _decided(
        program,
        "input path",
        chosen != "dense",
        what,
        saves=_seconds(seconds[others[0]] - seconds[chosen]),
        instead_of=" or ".join(f"{path}, {_seconds(seconds[path])} an epoch" for path in others),
        ops=program.ops if chosen == "dense" else _own_after_linear(program),
        input_path=chosen,
    )


def _readers(program: Program, value: str) -> list[Operation]:
    """The operations that read a value, or own rows of it."""
    found: list[Operation] = []
    for op in program.consumers(value):
        found += _readers(program, op.out) if isinstance(op, Own) else [op]
    return found


def _input_seconds(program: Program, facts: Facts, width: int) -> dict[str, float]:
    """What the features' products with weights take in an epoch, along each path that there is."""
    rows = facts.rows[0]
    seconds = {
        "dense": 2 * facts.multiply_seconds(rows, facts.in_channels, width),
        "sparse": 2 * facts.sparse_seconds(rows, width),
    }
    if not facts.is_sparse:  # then hoisting would make the features dense twice
        _, hoist = hoisted(program, facts, limit=facts.hoist_bytes)
        seconds["dense"] -= hoist["every epoch"] - hoist["once"]
    if facts.is_binary:
        seconds["binary"] = 2 * facts.binary_seconds(rows, width)
    return seconds


def _own_after_linear(program: Program) -> tuple[Operation, ...]:
    """Linear maps of the features' own rows become own rows of linear maps: compact rows are never dense."""
    ops: list[Operation] = []
    for op in program.ops:
        chain = _own_rows_of_input(program, op.out if isinstance(op, Own) else op.inputs[0])
        if chain and isinstance(op, Own):
            continue
        if not chain or not isinstance(op, Linear):
            ops.append(op)
            continue
        value = f"{op.out}_all"
        ops.append(replace(op, out=value, inputs=(INPUT,)))
        for number in range(chain):
            name = op.out if number == chain - 1 else f"{op.out}_all{number + 1}"
            ops.append(Own(out=name, inputs=(value,)))
            value = name
    return tuple(ops)


def _own_rows_of_input(program: Program, value: str) -> int:
    """How many levels further a value is the features' own rows; 0 where it is anything else."""
    op, count = program.producer(value), 0
    while isinstance(op, Own):
        value, count = op.inputs[0], count + 1
        op = program.producer(value)
    return count if value == INPUT else 0


def hoist(program: Program, facts: Facts) -> Program:
    """Aggregate the features once instead of every epoch, where nothing that learns or draws comes before."""
    best, _ = hoisted(program, facts, limit=float("inf"))
    if best is program:
        what = "the features are not aggregated before something that learns"
        return _decided(program, "hoist", False, what)
    if program.input_path != "dense":
        what = f"the features stay {program.input_path}, which aggregated they would not"
        return _decided(program, "hoist", False, what)
    seconds, tried = facts.weighed(lambda by: hoisted(program, by, limit=float("inf"))[1])
    saves = seconds["every epoch"] - seconds["once"]
    if saves <= 0:
        return _decided(program, "hoist", False, f"it would not save time{tried}")
    allowed, some = hoisted(program, facts, limit=facts.hoist_bytes)
    more = (
        f"aggregated features would take {_bytes(hoisted_bytes(best, facts))} of the "
        f"{_bytes(facts.hoist_bytes)} allowed, and save {_seconds(saves)} an epoch; hoist_bytes allows more"
    )
    if allowed is program:
        return _decided(program, "hoist", False, more)
    what = f"features aggregated once, {_bytes(hoisted_bytes(allowed, facts))}{tried}"
    if allowed.ops != best.ops:
        what, saves = f"{what}; all {more}", some["every epoch"] - some["once"]
    return _decided(program, "hoist", True, what, saves=f"{_seconds(saves)} an epoch", ops=allowed.ops)


def order(program: Program, facts: Facts) -> Program:
    """Transform before aggregating where that narrows the rows, after it where it does not."""
    moved: list[str] = []
    for _ in range(program.num_levels):  # of several aggregations in a row each may follow the one before
        before = len(moved)
        for aggregate in [op for op in program.ops if isinstance(op, Aggregate)]:
            if program.producer(aggregate.out) is not aggregate:
                continue
            program, note = _order_one(program, aggregate, facts)
            moved += [note] if note else []
        if len(moved) == before:
            break
    what = "; ".join(moved) if moved else "every aggregation runs at its narrower side already"
    return _decided(program, "order", bool(moved), what)


def _order_one(program: Program, aggregate: Aggregate, facts: Facts) -> tuple[Program, str]:
    linear = program.producer(aggregate.inputs[0])
    stays = program.input_path != "dense"
    if isinstance(linear, Linear) and len(linear.inputs) == 1:
        if len(program.consumers(linear.out)) > 1 or (linear.inputs[0] == INPUT and stays):
            return program, ""
        before_it: Linear = linear
        seconds, tried = facts.weighed(lambda by: _order_seconds(program, before_it, aggregate, by))
        if seconds["first"] <= seconds["last"]:
            return program, ""
        # (A x) Wᵀ instead of A (x Wᵀ)
        rows = f"{aggregate.out}_rows"
        swapped = {
            linear.out: replace(aggregate, out=rows, inputs=(linear.inputs[0],)),
            aggregate.out: replace(linear, out=aggregate.out, inputs=(rows, *aggregate.inputs[1:])),
        }
        note = f"{aggregate.out}: aggregate first{tried}"
        return _replaced(program, swapped), note
    after = program.consumers(aggregate.out)
    linear = after[0] if len(after) == 1 and isinstance(after[0], Linear) else None
    if not isinstance(linear, Linear) or linear.inputs[0] != aggregate.out or len(aggregate.inputs) > 1:
        return program, ""
    after_it: Linear = linear
    seconds, tried = facts.weighed(lambda by: _order_seconds(program, after_it, aggregate, by))
    if seconds["last"] <= seconds["first"] and not (aggregate.inputs[0] == INPUT and stays):
        return program, ""
    rows = f"{linear.out}_rows"
    swapped = {
        aggregate.out: replace(linear, out=rows, inputs=(aggregate.inputs[0],)),
        linear.out: replace(aggregate, out=linear.out, inputs=(rows, *linear.inputs[1:])),
    }
    return _replaced(program, swapped), f"{linear.out}: transform first{tried}"


def _order_seconds(program: Program, linear: Linear, aggregate: Aggregate, facts: Facts) -> dict[str, float]:
    """Seconds of an epoch with the transformation first, and last."""
    x = linear.inputs[0] if linear.out == aggregate.inputs[0] else aggregate.inputs[0]
    level = program.level(aggregate.inputs[0])
    narrow, wide = program.width(linear.out), program.width(x)
    learns = program.learns(x)
    products = 3 if learns else 2
    first = products * facts.multiply_seconds(facts.rows[level], wide, narrow)
    first += 2 * facts.aggregate_seconds(level, narrow)
    last = products * facts.multiply_seconds(facts.rows[level + 1], wide, narrow)
    last += (2 if learns else 1) * facts.aggregate_seconds(level, wide)
    return {"first": first, "last": last}


def fuse(program: Program, facts: Facts) -> Program:
    """Fewer passes over the rows.

    Bias, activation and dropout become one pass, additions join the kernel that makes one of their sides, and
    a pass that follows an aggregation or a linear map is applied to its rows while the cache holds them.
    """
    before, ops = len(program.ops), program.ops
    for merge in (_merge_epilogues, _merge_additions, _join_epilogues):
        while (merged := merge(program.rewritten(ops))) is not None:
            ops = merged
    saved, joined = before - len(ops), [op for op in ops if isinstance(op, Following) and op.after]
    what = f"{saved} passes over the rows less" if saved else "nothing to fuse"
    if joined:
        what += f", {len(joined)} of them made in the cache by the kernel before"
    after = program.rewritten(ops)
    nbytes = sum(8 * facts.rows[after.level(op.out)] * after.width(op.out) for op in joined)
    saves = f"{_bytes(nbytes)} an epoch that need not leave the cache and come back" if joined else ""
    return _decided(program, "fuse", saved > 0, what, saves=saves, ops=ops)


def _merge_epilogues(program: Program) -> tuple[Operation, ...] | None:
    for op in program.ops:
        before = program.producer(op.inputs[0])
        if not isinstance(op, Epilogue) or not isinstance(before, Epilogue):
            continue
        if len(program.consumers(before.out)) > 1 or _stage(op) <= _stage(before, last=True):
            continue
        act = before.act if op.act == "none" else op.act
        both = replace(before, out=op.out, act=act, p=max(before.p, op.p))
        return _replaced(program, {op.out: both}, without=before.out).ops
    return None


def _stage(op: Epilogue, *, last: bool = False) -> int:
    """Which part of an epilogue an operation begins (or ends) with: 0 bias, 1 activation, 2 dropout."""
    parts = [op.bias is not None, op.act != "none", op.p > 0]
    there = [i for i, part in enumerate(parts) if part] or [0]
    return there[-1] if last else there[0]


def _merge_additions(program: Program) -> tuple[Operation, ...] | None:
    for op in program.ops:
        if not isinstance(op, Add):
            continue
        for target, other in (op.inputs[::-1], op.inputs):
            maker = program.producer(target)
            fits = isinstance(maker, Linear | Aggregate) and len(maker.inputs) == 1
            if not fits or len(program.consumers(target)) > 1 or maker is None:
                continue
            joined = replace(maker, out=op.out, inputs=(*maker.inputs, other))
            return _replaced(program, {op.out: joined}, without=target).ops
    return None


def _join_epilogues(program: Program) -> tuple[Operation, ...] | None:
    for op in program.ops:
        maker = program.producer(op.inputs[0])
        fits = isinstance(op, Epilogue) and isinstance(maker, Following) and maker.after is None
        if not fits or len(program.consumers(op.inputs[0])) > 1:
            continue
        assert isinstance(op, Epilogue)
        assert isinstance(maker, Following)
        joined = replace(maker, out=op.out, after=op)
        return _replaced(program, {op.out: joined}, without=maker.out).ops
    return None


def store(program: Program, facts: Facts) -> Program:
    """Round rows to bfloat16 before they are aggregated, where asked for: half the bytes read per edge."""
    if facts.storage == torch.float32:
        return _decided(program, "storage", False, "float32 rows; storage='bfloat16' halves what edges read")
    saved, ops = 0.0, []
    for op in program.ops:
        if not isinstance(op, Aggregate):
            ops.append(op)
            continue
        level, width = program.level(op.inputs[0]), program.width(op.out)
        passes = 1 + program.learns(op.inputs[0])
        rounding = 6.0 * facts.rows[level] * width / facts.rates.stream_bytes
        saved += passes * (facts.aggregate_seconds(level, width) / 2 - rounding)
        ops.append(replace(op, rows=facts.storage))
    what = "rows are rounded to bfloat16 before they are aggregated, sums are float32"
    taken = any(isinstance(op, Aggregate) for op in ops)
    return _decided(
        program,
        "storage",
        taken,
        what if taken else "nothing is aggregated",
        saves=_seconds(saved),
        ops=tuple(ops),
    )


def couples_rows(program: Program) -> bool:
    """Whether a row's result depends on rows that no edge leads from, so that none may be left out."""
    return any(isinstance(op, Module | Normalise) and op.couples_rows for op in program.ops)


PASSES: dict[str, Pass] = {
    "split": split,
    "input_path": choose_input_path,
    "hoist": hoist,
    "order": order,
    "fuse": fuse,
    "storage": store,
}
"""In the order they run."""


def _replaced(program: Program, new: Mapping[str, Operation], without: str | None = None) -> Program:
    """The program with the operations that make the named values replaced, and one taken out."""
    ops = tuple(new.get(op.out, op) for op in program.ops if op.out != without)
    return program.rewritten(_sorted(ops))


def _sorted(ops: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """In an order where each value is made before it is read, else as they stand."""
    made, rest, out = {INPUT}, list(ops), []
    while rest:
        op = next(op for op in rest if all(i in made for i in op.inputs))
        rest.remove(op)
        made.add(op.out)
        out.append(op)
    return tuple(out)


def _decided(
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
    decision = Decision(
        name=name, taken=taken, what=what, saves=saves if taken else "", instead_of=instead_of
    )
    return program.rewritten(program.ops if ops is None else _sorted(ops), decision, **settings)


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _bytes(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"
