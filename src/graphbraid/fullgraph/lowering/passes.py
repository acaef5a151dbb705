"""The lowering passes: each turns a program into a cheaper equivalent one.

A pass is a pure function ``(program, costs) -> program`` that records a :class:`Decision`, even where it
changes nothing. Each can be switched off, as the ablation benchmark does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.costs import (
    CostModel,
    constant_bytes,
    in_bytes,
    in_seconds,
    operation_seconds,
    order_seconds,
)

# ---- splitting: a linear map of concatenated values becomes a sum of linear maps, which saves the copies


def split(program: ir.Program, costs: CostModel) -> ir.Program:
    """Multiply each concatenated value by its part of the weight, so that none has to be copied."""
    ops = _split_products(program)
    if len(ops) == len(program.ops):
        return program.decided("split", False, "no linear map reads values side by side")
    removed = [op for op in program.ops if isinstance(op, ir.Concat) and op not in ops]
    nbytes = sum(16 * costs.num_rows(program.place(op.out)) * program.width(op.out) for op in removed)
    what = "linear maps of values side by side are sums of linear maps"
    return program.decided("split", True, what, saves=f"{in_bytes(nbytes)} of copies an epoch", ops=ops)


def _split_products(program: ir.Program) -> tuple[ir.Operation, ...]:
    """Return the operations with every linear map of a :class:`Concat` split."""
    ops: list[ir.Operation] = []
    for op in program.ops:
        before, is_alone = program.producer(op.inputs[0]), len(op.inputs) == 1
        if isinstance(op, ir.Linear) and isinstance(before, ir.Concat) and is_alone and op.view == ir.WHOLE:
            ops += _parts(program, op, before)
        else:
            ops.append(op)
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


# ---- hoisting: values that depend on no parameter and no random number are computed once, not every epoch

FOLDED = (ir.Aggregate, ir.DestinationRows, ir.Add, ir.Combine)
"""Operations that treat each column alike and have no parameters."""


def hoist(program: ir.Program, costs: CostModel) -> ir.Program:
    """Aggregate the features once instead of every epoch, where nothing learned or random comes before."""
    best, seconds = hoisted(program, costs, limit=float("inf"))
    if best is program:
        what = "the features are not aggregated before something that learns"
        return program.decided("hoist", False, what)
    if not program.by_relation and program.is_compact(ir.INPUT):
        what = f"the features stay {program.input_path}; aggregated they would be dense"
        return program.decided("hoist", False, what)
    saves = seconds["every epoch"] - seconds["once"]
    if saves <= 0:
        return program.decided("hoist", False, "it would not save time")
    allowed, some = hoisted(program, costs, limit=costs.hoist_bytes)
    more = (
        f"aggregated features would take {in_bytes(constant_bytes(best, costs))} of the "
        f"{in_bytes(costs.hoist_bytes)} allowed, and save {in_seconds(saves)} an epoch; "
        "spare_bytes allows more"
    )
    if allowed is program:
        return program.decided("hoist", False, more)
    what = f"features aggregated once, {in_bytes(constant_bytes(allowed, costs))}"
    if allowed.ops != best.ops:
        what, saves = f"{what}; all {more}", some["every epoch"] - some["once"]
    return program.decided("hoist", True, what, saves=f"{in_seconds(saves)} an epoch", ops=allowed.ops)


def hoisted(program: ir.Program, costs: CostModel, *, limit: float) -> tuple[ir.Program, dict[str, float]]:
    """Turn values that can be computed once into constants, as far as ``limit`` bytes allow.

    ``A (x Wᵀ)`` becomes ``(A x) Wᵀ`` with ``A x`` a constant: no aggregation is left in the first layer,
    forward or backward. Powers ``A A x`` and combinations of them are constants too.

    Returns:
        The program (the same object if nothing changes), and the seconds per epoch of the operations
        concerned: ``"every epoch"`` if they run as they are, ``"once"`` if the constants are there.
    """
    after, folds = _folded(program, costs, float("inf"))
    if constant_bytes(after, costs) > limit:  # one combination may take less than its parts
        after, folds = _folded(program, costs, limit)
    parts = [_seconds(before, fold, costs) for before, fold in folds]
    every, once = (sum(part[i] for part in parts) for i in range(2))
    return after, {"every epoch": every, "once": once}


@dataclass(frozen=True)
class _Fold:
    """Operations that can be computed once, on the features or before a linear map that moves behind them."""

    chain: tuple[ir.Operation, ...]
    """Operations that compute their input from the features alone."""
    ops: tuple[ir.Operation, ...]
    """The operations in the order they run; only the last one's value is read elsewhere."""
    linear: ir.Linear | None
    """Linear map that they all follow and that moves behind them: ``S (x Wᵀ) = (S x) Wᵀ``."""
    source: str
    """Name of the value that holds the features."""


def _folded(
    program: ir.Program, costs: CostModel, limit: float
) -> tuple[ir.Program, list[tuple[ir.Program, _Fold]]]:
    """Apply all folds that the limit allows; return the program, and each fold with the program before it."""
    folds, refused = list[tuple[ir.Program, _Fold]](), set[str]()
    while (fold := _next(program, refused)) is not None:
        after = _applied(program, fold)
        if constant_bytes(after, costs) <= limit:
            folds.append((program, fold))
            program = after
        else:
            refused.add(fold.ops[-1].out)
    return program, folds


def _next(program: ir.Program, refused: set[str]) -> _Fold | None:
    for op in program.ops:
        if not isinstance(op, FOLDED) or isinstance(op, ir.DestinationRows):
            continue
        for fold in (_alone(program, op), _after_linear(program, op)):
            if fold is not None and fold.ops[-1].out not in refused:
                return fold
    return None


def _alone(program: ir.Program, op: ir.Operation) -> _Fold | None:
    """Return a fold of ``op`` if it reads only values computed from the features alone; None otherwise.

    The program's output is no constant: it is a value of the step.
    """
    found = None if op.out == program.output else _chain(program, op.inputs)
    if found is None or not any(isinstance(one, ir.Aggregate) for one in (*found[0], op)):
        return None
    return _Fold(found[0], (op,), None, found[1])


def _after_linear(program: ir.Program, op: ir.Operation) -> _Fold | None:
    """Return a fold of ``op`` and all else that commutes with a linear map of such values; None otherwise."""
    linear = program.producer(op.inputs[0])
    if not isinstance(linear, ir.Linear) or len(linear.inputs) > 1 or linear.after is not None:
        return None
    if (found := _chain(program, linear.inputs)) is None:
        return None
    readers = program.consumers(linear.out)
    ops = [op] if len(readers) == 1 and len(op.inputs) == 1 else _following(program, linear)
    inside = {linear.out, *(other.out for other in ops)}
    outside = [other for other in program.ops if other not in ops]
    read = {value for other in outside for value in other.inputs} | {program.output}
    ends = list(inside & read)
    if not ops or ends != [ops[-1].out] or not any(isinstance(other, ir.Aggregate) for other in ops):
        return None
    return _Fold(found[0], tuple(ops), linear, found[1])


def _following(program: ir.Program, linear: ir.Linear) -> list[ir.Operation]:
    """Return all foldable operations that read only a linear map's value and each other's."""
    known, found = {linear.out}, list[ir.Operation]()
    for op in program.ops:
        if isinstance(op, FOLDED) and known.issuperset(op.inputs):
            known.add(op.out)
            found.append(op)
    return found


_Chain = tuple[tuple[ir.Operation, ...], str]
"""Operations in the order they run, and the name of the features that they start from."""


def _chain(program: ir.Program, values: Sequence[str]) -> _Chain | None:
    """Return the operations that compute values from one type's features alone; None if others take part.

    None, too, if the features of a type stay in a compact form.
    """
    made, sources = dict[str, ir.Operation](), set[str]()
    for value in values:
        op = program.producer(value)
        found: _Chain | None = None
        if op is None:
            found = (), value
        elif isinstance(op, ir.Hoisted):
            found = op.of, op.inputs[0]
        elif isinstance(op, FOLDED) and (before := _chain(program, op.inputs)) is not None:
            found = (*before[0], op), before[1]
        if found is None:
            return None
        made |= {other.out: other for other in found[0]}
        sources.add(found[1])
    source = sources.pop()
    stays = program.by_relation and program.is_compact(source)
    return None if sources or stays else (tuple(made.values()), source)


def _applied(program: ir.Program, fold: _Fold) -> ir.Program:
    last = fold.ops[-1].out
    if fold.linear is None:
        constant = ir.Hoisted(out=last, inputs=(fold.source,), of=(*fold.chain, *fold.ops))
        return _replaced(program, {last: (constant,)})
    names = {op.out: f"{op.out}_once" for op in fold.ops} | {fold.linear.out: fold.linear.inputs[0]}
    of = (*fold.chain, *(op.renamed(names) for op in fold.ops))
    constant = ir.Hoisted(out=names[last], inputs=(fold.source,), of=of)
    new: dict[str, tuple[ir.Operation, ...]] = {op.out: () for op in (*fold.ops, fold.linear)}
    new[last] = (constant, replace(fold.linear, out=last, inputs=(constant.out,)))
    return _replaced(program, new)


def _seconds(program: ir.Program, fold: _Fold, costs: CostModel) -> tuple[float, float]:
    """Return the seconds per epoch of a fold's operations and linear map, before and after folding."""
    channels = program.width(fold.source)
    if fold.linear is None:
        return sum(operation_seconds(program, op, costs, channels, channels) for op in fold.ops), 0.0
    width = program.width(fold.linear.out)
    rows = [costs.num_rows(program.place(value)) for value in (fold.linear.out, fold.ops[-1].out)]
    before, after = (2 * costs.rates.multiply_seconds(count, channels, width) for count in rows)
    return sum(operation_seconds(program, op, costs, width, channels) for op in fold.ops) + before, after


def _replaced(program: ir.Program, new: dict[str, tuple[ir.Operation, ...]]) -> ir.Program:
    """Replace operations of a program and drop those whose value nothing reads any more."""
    ops = [made for op in program.ops for made in new.get(op.out, (op,))]
    return program.rewritten(ir.needed_for(ops, program.output))


# ---- input path: whether the first weights multiply the features as dense, as sparse or as bits

_OTHER_READERS = "the features are read by something other than a linear map"


def choose_input_path(program: ir.Program, costs: CostModel) -> ir.Program:
    """Choose to multiply the features as dense, as sparse or as bits, whichever takes the least time.

    A program whose settings name its ``input_path`` already, keeps it.

    Raises:
        NotLoweredError: a path is asked for, and something other than a linear map reads the features.
    """
    if program.by_relation:
        return _as_stored(program, costs)
    width, asked = input_width(program), program.settings.get("input_path")
    if asked == "streamed":  # as has been decided before any pass
        return program
    if not width:
        if asked not in {None, "dense"}:
            raise ir.NotLoweredError("input path", _OTHER_READERS, "dense features")
        return program.decided("input path", False, f"dense: {_OTHER_READERS}", input_path="dense")
    if asked is not None:
        ops = program.ops if asked == "dense" else _own_after_linear(program)
        what = f"{asked}, as asked: {100 * costs.density:.4g}% of the features are not zero"
        return program.decided("input path", asked != "dense", what, ops=ops, input_path=asked)
    seconds = input_seconds(program, costs)
    chosen = min(seconds, key=lambda path: seconds[path])
    others = sorted((path for path in seconds if path != chosen), key=lambda path: seconds[path])
    what = f"{chosen}: {100 * costs.density:.4g}% of the features are not zero"
    if chosen == "binary":
        what += ", one number in each row: 32 features are a word of bits"
    return program.decided(
        "input path",
        chosen != "dense",
        what,
        saves=in_seconds(seconds[others[0]] - seconds[chosen]),
        instead_of=" or ".join(f"{path}, {in_seconds(seconds[path])} an epoch" for path in others),
        ops=program.ops if chosen == "dense" else _own_after_linear(program),
        input_path=chosen,
    )


def drop_sparse(program: ir.Program, costs: CostModel) -> ir.Program:
    """Drop stored values in place of cells, where linear maps alone read a dropout of sparse features.

    Only steps of one host know the dropout's result as a form of the features.
    """
    readers = program.consumers(ir.INPUT)
    drop = readers[0] if len(readers) == 1 else None
    is_plain = isinstance(drop, ir.Epilogue) and 0 < drop.p < 1 and drop.act == "none" and drop.bias is None
    if program.by_relation or drop is None or not is_plain or program.output == drop.out:
        return program
    after = program.consumers(drop.out)
    if not all(isinstance(op, ir.Linear) and op.inputs == (drop.out,) for op in after):
        return program
    rows, width = costs.rows[0], sum(program.width(op.out) for op in after)
    seconds = {path: 2 * costs.product_seconds(path, rows, width) for path in ("dense", "sparse")}
    if seconds["sparse"] >= seconds["dense"]:
        return program
    others = tuple(decision for decision in program.decisions if decision.name != "input path")
    return replace(program, decisions=others).decided(
        "input path",
        True,
        f"sparse after dropout: {100 * costs.density:.4g}% of the features are not zero",
        saves=in_seconds(seconds["dense"] - seconds["sparse"]),
        instead_of=f"dense, {in_seconds(seconds['dense'])} an epoch",
        input_path="sparse",
        input_paths={drop.out: "sparse"},
    )


def _as_stored(program: ir.Program, costs: CostModel) -> ir.Program:
    """Multiply the features of each node type as sparse where they are stored so, if only linear maps do."""
    paths = {}
    for number, one in enumerate(program.node_types):
        readers = _readers(program, one.input)
        fits = all(isinstance(op, ir.Linear) and len(op.inputs) == 1 for op in readers)
        is_sparse = costs.node_types[number].is_sparse and bool(readers) and fits
        paths[one.input] = "sparse" if is_sparse else "dense"
    sparse = [one.name for one in program.node_types if paths[one.input] == "sparse"]
    what = f"features of {', '.join(sparse)} are stored sparse" if sparse else "dense: no type's are sparse"
    marked = program.rewritten(program.ops, input_paths=paths)
    ops = _own_after_linear(marked) if sparse else program.ops
    return program.decided("input path", bool(sparse), what, ops=ops, input_paths=paths)


def _readers(program: ir.Program, value: str) -> list[ir.Operation]:
    """Return the operations that read a value, directly or through :class:`DestinationRows`."""
    found: list[ir.Operation] = []
    for op in program.consumers(value):
        found += _readers(program, op.out) if isinstance(op, ir.DestinationRows) else [op]
    return found


def input_width(program: ir.Program) -> int:
    """Return the columns of all weights that multiply the features; 0 if anything else reads these, too."""
    readers = _readers(program, ir.INPUT)
    is_linear = all(isinstance(op, ir.Linear) and len(op.inputs) == 1 for op in readers)
    return sum(program.width(op.out) for op in readers) if is_linear else 0


def input_seconds(program: ir.Program, costs: CostModel) -> dict[str, float]:
    """Return the seconds per epoch of the features' products with weights, on each available path."""
    rows, width = costs.rows[0], input_width(program)
    paths = ("dense", "sparse", "binary") if costs.is_binary else ("dense", "sparse")
    seconds = {path: 2 * costs.product_seconds(path, rows, width) for path in paths}
    if not costs.is_sparse:  # sparse features would have to be made dense to be hoisted
        _, hoist = hoisted(program, costs, limit=costs.hoist_bytes)
        seconds["dense"] -= hoist["every epoch"] - hoist["once"]
    return seconds


def _own_after_linear(program: ir.Program) -> tuple[ir.Operation, ...]:
    """Move linear maps before prefixes of the features, so that compact rows are never made dense."""
    ops: list[ir.Operation] = []
    for op in program.ops:
        chain = _own_rows_of_input(program, op.out if isinstance(op, ir.DestinationRows) else op.inputs[0])
        if chain and isinstance(op, ir.DestinationRows):
            continue
        if not chain or not isinstance(op, ir.Linear):
            ops.append(op)
            continue
        value = f"{op.out}_all"
        ops.append(replace(op, out=value, inputs=(_origin(program, op.inputs[0]),)))
        for number in range(chain):
            name = op.out if number == chain - 1 else f"{op.out}_all{number + 1}"
            ops.append(ir.DestinationRows(out=name, inputs=(value,)))
            value = name
    return tuple(ops)


def _own_rows_of_input(program: ir.Program, value: str) -> int:
    """Return how many prefixes lead from the features to a value; 0 if anything else takes part."""
    source, count = _origin(program, value), 0
    while value != source:
        op = program.producer(value)
        assert op is not None
        value, count = op.inputs[0], count + 1
    is_kept_dense = program.by_relation and program.path_of(source) == "dense"
    return 0 if source not in program.inputs or is_kept_dense else count


def _origin(program: ir.Program, value: str) -> str:
    """Return the value whose rows a value holds: the source of a prefix, or itself."""
    op = program.producer(value)
    return _origin(program, op.inputs[0]) if isinstance(op, ir.DestinationRows) else value


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
        seconds = order_seconds(program, linear, aggregate, costs)
        if seconds["first"] <= seconds["last"]:
            return program, ""
        # (A x) Wᵀ instead of A (x Wᵀ)
        return swapped(program, linear, aggregate), f"{aggregate.out}: aggregate first"
    after = program.consumers(aggregate.out)
    linear = after[0] if len(after) == 1 and isinstance(after[0], ir.Linear) else None
    if not isinstance(linear, ir.Linear) or linear.inputs[0] != aggregate.out or len(aggregate.inputs) > 1:
        return program, ""
    seconds = order_seconds(program, linear, aggregate, costs)
    if seconds["last"] <= seconds["first"] and not program.is_compact(aggregate.inputs[0]):
        return program, ""
    return swapped(program, aggregate, linear), f"{linear.out}: transform first"


def swapped(program: ir.Program, first: ir.Operation, second: ir.Operation) -> ir.Program:
    """Return a program in which the second of two operations runs first, on the first one's only input."""
    rows = f"{second.out}_rows"
    new = {first.out: replace(second, out=rows, inputs=first.inputs)}
    return program.replaced(
        {**new, second.out: replace(first, out=second.out, inputs=(rows, *second.inputs[1:]))}
    )


# ---- fusing: row-wise operations are done by the kernel before them, while the cache holds the rows


def fuse(program: ir.Program, costs: CostModel) -> ir.Program:
    """Fuse operations, so that fewer passes over the rows are left.

    Bias, activation and dropout become one pass, additions join the kernel that makes one of their sides, and
    a pass that follows an aggregation or a linear map is applied to its rows while the cache holds them.
    """
    after = until_same(program, _merge_epilogues, _merge_additions, _join_epilogues)
    saved = len(program.ops) - len(after.ops)
    joined = [op for op in after.ops if isinstance(op, ir.Following) and op.after]
    what = f"{saved} fewer passes over the rows" if saved else "nothing to fuse"
    if joined:
        what += f", {len(joined)} of them made in the cache by the kernel before"
    nbytes = sum(8 * costs.num_rows(after.place(op.out)) * after.width(op.out) for op in joined)
    saves = f"{in_bytes(nbytes)} an epoch that need not leave the cache and come back" if joined else ""
    return program.decided("fuse", saved > 0, what, saves=saves, ops=after.ops)


def until_same(program: ir.Program, *steps: Callable[[ir.Program], ir.Program | None]) -> ir.Program:
    """Return a program after each step has been taken as often as it returns another program than None."""
    for step in steps:
        while (changed := step(program)) is not None:
            program = changed
    return program


def merged_epilogues(program: ir.Program) -> ir.Program:
    """Return a program in which bias, activation and dropout in succession are one pass over the rows."""
    return until_same(program, _merge_epilogues)


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
            maker, is_read_once = program.producer(target), len(program.consumers(target)) == 1
            if isinstance(maker, ir.Linear | ir.Aggregate) and len(maker.inputs) == 1 and is_read_once:
                joined = replace(maker, out=op.out, inputs=(*maker.inputs, other))
                return program.replaced({op.out: joined}, without=target)
    return None


def _join_epilogues(program: ir.Program) -> ir.Program | None:
    for op in program.ops:
        maker = program.producer(op.inputs[0])
        if not isinstance(op, ir.Epilogue) or not isinstance(maker, ir.Following) or maker.after is not None:
            continue
        if len(program.consumers(maker.out)) == 1:
            return program.replaced({op.out: replace(maker, out=op.out, after=op)}, without=maker.out)
    return None


# ---- storage: the dtype to which rows are rounded before they are aggregated


def store(program: ir.Program, costs: CostModel) -> ir.Program:
    """Round rows to bfloat16 before they are aggregated, if requested: half the bytes read per edge."""
    if costs.storage == torch.float32:
        return program.decided("storage", False, "float32 rows; storage='bfloat16' halves the bytes read")
    if not any(isinstance(op, ir.Aggregate) for op in program.ops):
        return program.decided("storage", False, "nothing is aggregated")
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
    return program.decided("storage", True, what, saves=in_seconds(saved), ops=tuple(ops))


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
