"""The lowering passes: each turns a program into a cheaper equivalent one.

A pass is a pure function ``(program, costs) -> program`` that records a :class:`Decision`, even where it
changes nothing. Each can be switched off, as the ablation benchmark does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.costs import CostModel, in_bytes, in_seconds
from graphbraid.fullgraph.lowering.hoisting import choose_input_path, hoist

# ---- splitting: a linear map of concatenated values becomes a sum of linear maps, which saves the copies


def split(program: ir.Program, costs: CostModel) -> ir.Program:
    """Multiply each concatenated value by its part of the weight, so that none has to be copied."""
    ops = _split_products(program)
    if ops is None:
        return program.decided("split", False, "no linear map reads values side by side")
    removed = [op for op in program.ops if isinstance(op, ir.Concat) and op not in ops]
    nbytes = sum(16 * costs.num_rows(program.place(op.out)) * program.width(op.out) for op in removed)
    what = "linear maps of values side by side are sums of linear maps"
    return program.decided("split", True, what, saves=f"{in_bytes(nbytes)} of copies an epoch", ops=ops)


def _split_products(program: ir.Program) -> tuple[ir.Operation, ...] | None:
    """Return the operations with every linear map of a :class:`Concat` split; None if there is none."""
    ops: list[ir.Operation] = []
    for op in program.ops:
        before = program.producer(op.inputs[0]) if isinstance(op, ir.Linear) else None
        if (
            isinstance(op, ir.Linear)
            and isinstance(before, ir.Concat)
            and op.view == ir.WHOLE
            and len(op.inputs) == 1
        ):
            ops += _parts(program, op, before)
        else:
            ops.append(op)
    if len(ops) == len(program.ops):
        return None
    read = {value for op in ops for value in op.inputs} | {program.output}
    return tuple(op for op in ops if op.out in read or not isinstance(op, ir.Concat))


def _parts(program: ir.Program, op: ir.Linear, before: ir.Concat) -> list[ir.Operation]:
    """Return products of each input with its columns of the weight, and their running sums."""
    ops: list[ir.Operation] = []
    start, total, last = 0, "", len(before.inputs) - 1
    for number, value in enumerate(before.inputs):
        stop = start + program.width(value)
        is_sum = bool(total)
        product = f"{op.out}_part{number}" if is_sum or last else op.out
        ops.append(replace(op, out=product, inputs=(value,), view=replace(ir.WHOLE, columns=(start, stop))))
        if is_sum:
            product = op.out if number == last else f"{op.out}_sum{number}"
            ops.append(ir.Add(out=product, inputs=(total, ops[-1].out)))
        start, total = stop, product
    return ops


# ---- order: rows are transformed before or after they are aggregated, whichever is cheaper


def order(program: ir.Program, costs: CostModel) -> ir.Program:
    """Transform before aggregating where that narrows the rows enough, and after it elsewhere."""
    moved: list[str] = []
    for _ in range(program.num_levels):  # aggregations in a row may each follow the one before
        before = len(moved)
        for aggregate in [op for op in program.ops if isinstance(op, ir.Aggregate)]:
            if program.producer(aggregate.out) is not aggregate:
                continue
            program, note = _order_one(program, aggregate, costs)
            moved += [note] if note else []
        if len(moved) == before:
            break
    what = "; ".join(moved) if moved else "every aggregation runs at its narrower side already"
    return program.decided("order", bool(moved), what)


def _order_one(program: ir.Program, aggregate: ir.Aggregate, costs: CostModel) -> tuple[ir.Program, str]:
    linear = program.producer(aggregate.inputs[0])
    if isinstance(linear, ir.Linear) and len(linear.inputs) == 1:
        if len(program.consumers(linear.out)) > 1 or program.is_compact(linear.inputs[0]):
            return program, ""
        seconds = _order_seconds(program, linear, aggregate, costs)
        if seconds["first"] <= seconds["last"]:
            return program, ""
        # (A x) Wᵀ instead of A (x Wᵀ)
        rows = f"{aggregate.out}_rows"
        swapped = {
            linear.out: replace(aggregate, out=rows, inputs=(linear.inputs[0],)),
            aggregate.out: replace(linear, out=aggregate.out, inputs=(rows, *aggregate.inputs[1:])),
        }
        note = f"{aggregate.out}: aggregate first"
        return program.replaced(swapped), note
    after = program.consumers(aggregate.out)
    linear = after[0] if len(after) == 1 and isinstance(after[0], ir.Linear) else None
    if not isinstance(linear, ir.Linear) or linear.inputs[0] != aggregate.out or len(aggregate.inputs) > 1:
        return program, ""
    seconds = _order_seconds(program, linear, aggregate, costs)
    if seconds["last"] <= seconds["first"] and not program.is_compact(aggregate.inputs[0]):
        return program, ""
    rows = f"{linear.out}_rows"
    swapped = {
        aggregate.out: replace(linear, out=rows, inputs=(aggregate.inputs[0],)),
        linear.out: replace(aggregate, out=linear.out, inputs=(rows, *linear.inputs[1:])),
    }
    return program.replaced(swapped), f"{linear.out}: transform first"


def _order_seconds(
    program: ir.Program, linear: ir.Linear, aggregate: ir.Aggregate, costs: CostModel
) -> dict[str, float]:
    """Return the seconds per epoch with the transformation ``"first"`` and with it ``"last"``."""
    x = linear.inputs[0] if linear.out == aggregate.inputs[0] else aggregate.inputs[0]
    level, relation = program.level(aggregate.inputs[0]), aggregate.adjacency.relation
    before, after = (costs.num_rows(program.place(value)) for value in (aggregate.inputs[0], aggregate.out))
    narrow, wide = program.width(linear.out), program.width(x)
    learns = program.learns(x)
    products = 3 if learns else 2
    first = products * costs.multiply_seconds(before, wide, narrow)
    first += 2 * costs.aggregate_seconds(level, narrow, relation)
    last = products * costs.multiply_seconds(after, wide, narrow)
    last += (2 if learns else 1) * costs.aggregate_seconds(level, wide, relation)
    return {"first": first, "last": last}


# ---- fusing: row-wise operations are done by the kernel before them, while the cache holds the rows


def fuse(program: ir.Program, costs: CostModel) -> ir.Program:
    """Fuse operations, so that fewer passes over the rows are left.

    Bias, activation and dropout become one pass, additions join the kernel that makes one of their sides, and
    a pass that follows an aggregation or a linear map is applied to its rows while the cache holds them.
    """
    after = program
    for merge in (_merge_epilogues, _merge_additions, _join_epilogues):
        while (merged := merge(after)) is not None:
            after = merged
    saved = len(program.ops) - len(after.ops)
    joined = [op for op in after.ops if isinstance(op, ir.Following) and op.after]
    what = f"{saved} fewer passes over the rows" if saved else "nothing to fuse"
    if joined:
        what += f", {len(joined)} of them made in the cache by the kernel before"
    nbytes = sum(8 * costs.num_rows(after.place(op.out)) * after.width(op.out) for op in joined)
    saves = f"{in_bytes(nbytes)} an epoch that need not leave the cache and come back" if joined else ""
    return program.decided("fuse", saved > 0, what, saves=saves, ops=after.ops)


def merged_epilogues(program: ir.Program) -> ir.Program:
    """Return a program in which bias, activation and dropout in succession are one pass over the rows."""
    while (merged := _merge_epilogues(program)) is not None:
        program = merged
    return program


def _merge_epilogues(program: ir.Program) -> ir.Program | None:
    for op in program.ops:
        before = program.producer(op.inputs[0])
        if not isinstance(op, ir.Epilogue) or not isinstance(before, ir.Epilogue):
            continue
        if len(program.consumers(before.out)) > 1 or _stage(op) <= _stage(before, last=True):
            continue
        act = before.act if op.act == "none" else op.act
        both = replace(before, out=op.out, act=act, p=max(before.p, op.p))
        return program.replaced({op.out: both}, without=before.out)
    return None


def _stage(op: ir.Epilogue, *, last: bool = False) -> int:
    """Return the first (or last) part of an epilogue: 0 is bias, 1 activation, 2 dropout."""
    parts = [op.bias is not None, op.act != "none", op.p > 0]
    there = [i for i, part in enumerate(parts) if part] or [0]
    return there[-1] if last else there[0]


def _merge_additions(program: ir.Program) -> ir.Program | None:
    for op in program.ops:
        if not isinstance(op, ir.Add):
            continue
        for target, other in (op.inputs[::-1], op.inputs):
            maker = program.producer(target)
            fits = isinstance(maker, ir.Linear | ir.Aggregate) and len(maker.inputs) == 1
            if not fits or len(program.consumers(target)) > 1 or maker is None:
                continue
            joined = replace(maker, out=op.out, inputs=(*maker.inputs, other))
            return program.replaced({op.out: joined}, without=target)
    return None


def _join_epilogues(program: ir.Program) -> ir.Program | None:
    for op in program.ops:
        maker = program.producer(op.inputs[0])
        fits = isinstance(op, ir.Epilogue) and isinstance(maker, ir.Following) and maker.after is None
        if not fits or len(program.consumers(op.inputs[0])) > 1:
            continue
        assert isinstance(op, ir.Epilogue)
        assert isinstance(maker, ir.Following)
        joined = replace(maker, out=op.out, after=op)
        return program.replaced({op.out: joined}, without=maker.out)
    return None


# ---- storage: the dtype to which rows are rounded before they are aggregated


def store(program: ir.Program, costs: CostModel) -> ir.Program:
    """Round rows to bfloat16 before they are aggregated, if requested: half the bytes read per edge."""
    if costs.storage == torch.float32:
        return program.decided("storage", False, "float32 rows; storage='bfloat16' halves the bytes read")
    saved, ops = 0.0, []
    for op in program.ops:
        if not isinstance(op, ir.Aggregate):
            ops.append(op)
            continue
        place, width = program.place(op.inputs[0]), program.width(op.out)
        passes = 1 + program.learns(op.inputs[0])
        rounding = 6.0 * costs.num_rows(place) * width / costs.rates.stream_bytes
        saved += passes * (costs.aggregate_seconds(place.level, width, op.adjacency.relation) / 2 - rounding)
        ops.append(replace(op, rows=costs.storage))
    what = "rows are rounded to bfloat16 before they are aggregated, sums are float32"
    taken = any(isinstance(op, ir.Aggregate) for op in ops)
    return program.decided(
        "storage",
        taken,
        what if taken else "nothing is aggregated",
        saves=in_seconds(saved),
        ops=tuple(ops),
    )


# ---- own rows: a value is computed for the rows that are read

_BY_ROW = (
    ir.Add, ir.AlongRow, ir.ColumnRange, ir.Combine, ir.Concat, ir.Epilogue, ir.Largest, ir.Linear, ir.Prelu,
    ir.Product, ir.RowFunction, ir.RowOfParameters, ir.Scale, ir.UnitRows,
)  # fmt: skip
"""Operations that map each row by itself."""


def on_needed_rows(program: ir.Program) -> ir.Program:
    """Compute a value only for the rows that the operations after it read.

    A model maps all rows before its layer reads some of them as the destinations' own, for instance as a root
    or a query. The rows of a level are a prefix of those before it, so the map can run on the own rows.
    """
    levels = _needed_levels(program)
    ops, own, same = list[ir.Operation](), dict[tuple[str, int], str](), dict[str, str]()

    def at(value: str, level: int) -> str:
        """Return the name of a value's rows at a level."""
        name = same.get(value, value)
        for reached in range(levels[name], level):
            if (name, reached) not in own:
                own[name, reached] = f"{name} own"
                ops.append(ir.DestinationRows(out=f"{name} own", inputs=(name,)))
                levels[f"{name} own"] = reached + 1
            name = own[name, reached]
        return name

    for op in program.ops:
        if isinstance(op, ir.DestinationRows) and op.out != program.output:
            same[op.out] = at(op.inputs[0], levels[op.out])
            continue
        needs = _levels_of_inputs(program, op, levels[op.out])
        inputs = tuple(at(value, level) for value, level in zip(op.inputs, needs, strict=True))
        ops.append(replace(op, inputs=inputs))
    return program.rewritten(tuple(ops))


def _needed_levels(program: ir.Program) -> dict[str, int]:
    """Return for each value the level whose rows are enough for all operations that read it."""
    needed: dict[str, int] = {}
    for op in reversed(program.ops):
        level = program.level(op.out)
        if isinstance(op, (*_BY_ROW, ir.DestinationRows)):
            level = needed.get(op.out, level)
        needed[op.out] = level
        for value, wanted in zip(op.inputs, _levels_of_inputs(program, op, level), strict=True):
            needed[value] = min(needed.get(value, wanted), wanted)
    return needed | dict.fromkeys(program.inputs, 0)


def _levels_of_inputs(program: ir.Program, op: ir.Operation, level: int) -> list[int]:
    """Return for each input the level whose rows an operation reads to compute the rows of ``level``."""
    if isinstance(op, _BY_ROW):
        return [level] * len(op.inputs)
    if isinstance(op, ir.DestinationRows):
        return [level - (op.out == program.output)]
    levels = [program.level(value) for value in op.inputs]
    if isinstance(op, ir.Messages) and op.edges is None:
        sources = {place for _, role, place in op.reads if role is ir.ReadRows.SOURCE}
        if 0 in sources:  # the first input tells where the edges begin
            levels = [level - (place in sources) for place in range(len(levels))]
    return levels


# ---- the lowering passes: each turns a program into a cheaper equivalent one

Pass = Callable[[ir.Program, CostModel], ir.Program]
PASSES: dict[str, Pass] = {
    "split": split,
    "input_path": choose_input_path,
    "hoist": hoist,
    "order": order,
    "fuse": fuse,
    "storage": store,
}
"""The passes by name, in the order they run."""


def through_passes(program: ir.Program, costs: CostModel, wanted: frozenset[str]) -> ir.Program:
    """Return a program after the passes whose names are wanted, in their order."""
    for name, run in PASSES.items():
        if name in wanted:
            program = run(program, costs)
    return program
