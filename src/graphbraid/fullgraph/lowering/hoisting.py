"""Hoisting and the input path: values that are computed once, and how weights multiply the features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.costs import CostModel, in_bytes, in_seconds

FOLDED = (ir.Aggregate, ir.DestinationRows, ir.Add, ir.Combine)
"""Operations that treat each column alike and have no parameters."""

# ---- hoisting: values that depend on no parameter and no random number are computed once, not every epoch


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


def constant_bytes(program: ir.Program, costs: CostModel) -> int:
    """Return the bytes of a program's constants."""
    constants = [op.out for op in program.ops if isinstance(op, ir.Hoisted)]
    return sum(4 * costs.num_rows(program.place(value)) * program.width(value) for value in constants)


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
    if op.out == program.output:
        return None
    chain = _chain(program, op.inputs)
    source = None if chain is None else _source(program, op.inputs)
    if chain is None or source is None or not any(isinstance(o, ir.Aggregate) for o in (*chain, op)):
        return None
    return _Fold(chain, (op,), None, source)


def _after_linear(program: ir.Program, op: ir.Operation) -> _Fold | None:
    """Return a fold of ``op`` and all else that commutes with a linear map of such values; None otherwise."""
    linear = program.producer(op.inputs[0])
    if not isinstance(linear, ir.Linear) or len(linear.inputs) > 1 or linear.after is not None:
        return None
    chain = _chain(program, linear.inputs)
    source = None if chain is None else _source(program, linear.inputs)
    if chain is None or source is None:
        return None
    readers = program.consumers(linear.out)
    ops = [op] if len(readers) == 1 and len(op.inputs) == 1 else _following(program, linear)
    inside = {linear.out, *(other.out for other in ops)}
    outside = [other for other in program.ops if other not in ops]
    read = {value for other in outside for value in other.inputs} | {program.output}
    ends = list(inside & read)
    if not ops or ends != [ops[-1].out] or not any(isinstance(other, ir.Aggregate) for other in ops):
        return None
    return _Fold(chain, tuple(ops), linear, source)


def _following(program: ir.Program, linear: ir.Linear) -> list[ir.Operation]:
    """Return all foldable operations that read only a linear map's value and each other's."""
    known, found = {linear.out}, list[ir.Operation]()
    for op in program.ops:
        if isinstance(op, FOLDED) and known.issuperset(op.inputs):
            known.add(op.out)
            found.append(op)
    return found


def _chain(program: ir.Program, values: Sequence[str]) -> tuple[ir.Operation, ...] | None:
    """Return the operations that compute ``values`` from the features alone; None if others take part."""
    made: dict[str, ir.Operation] = {}
    for value in values:
        op = program.producer(value)
        if op is None:
            continue
        if isinstance(op, ir.Hoisted):
            chain: tuple[ir.Operation, ...] | None = op.of
        elif isinstance(op, FOLDED):
            before = _chain(program, op.inputs)
            chain = None if before is None else (*before, op)
        else:
            chain = None
        if chain is None:
            return None
        made |= {other.out: other for other in chain}
    return tuple(made.values())


def _source(program: ir.Program, values: Sequence[str]) -> str | None:
    """Return the name of the features that chains start from; None if there are several, or sparse ones."""
    found, rest = set[str](), list(values)
    while rest:
        op = program.producer(value := rest.pop())
        rest += () if op is None else op.inputs
        found |= {value} if op is None else set()
    only = found.pop()
    stays = program.by_relation and program.is_compact(only)
    return None if found or stays else only


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
        return sum(_seconds_of(program, op, costs, channels, channels) for op in fold.ops), 0.0
    width = program.width(fold.linear.out)
    rows = [costs.num_rows(program.place(value)) for value in (fold.linear.out, fold.ops[-1].out)]
    before, after = (2 * costs.multiply_seconds(count, channels, width) for count in rows)
    return sum(_seconds_of(program, op, costs, width, channels) for op in fold.ops) + before, after


def _seconds_of(program: ir.Program, op: ir.Operation, costs: CostModel, width: int, channels: int) -> float:
    """Return an operation's seconds per epoch; an aggregation counts both ways, at its narrower side."""
    if isinstance(op, ir.Aggregate):
        level, relation = program.level(op.inputs[0]), op.adjacency.relation
        return 2 * costs.aggregate_seconds(level, min(width, channels), relation)
    if isinstance(op, ir.DestinationRows):
        return 0.0
    nbytes = 4 * costs.num_rows(program.place(op.out)) * width * (1 + len(op.inputs))
    return nbytes / costs.rates.stream_bytes


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
    seconds = {
        "dense": 2 * costs.multiply_seconds(rows, costs.in_channels, width),
        "sparse": 2 * costs.sparse_seconds(rows, width),
    }
    if not costs.is_sparse:  # sparse features would have to be made dense to be hoisted
        _, hoist = hoisted(program, costs, limit=costs.hoist_bytes)
        seconds["dense"] -= hoist["every epoch"] - hoist["once"]
    if costs.is_binary:
        seconds["binary"] = 2 * costs.binary_seconds(rows, width)
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
