"""Hoisting: values that depend on no parameter and no random number are computed once, not every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphbraid.fullgraph.lowering.constants import FOLDED
from graphbraid.fullgraph.lowering.facts import Facts
from graphbraid.fullgraph.lowering.passes.rewriting import decided, in_bytes, in_seconds
from graphbraid.fullgraph.program import INPUT, Aggregate, Hoisted, Linear, Operation, Own, Program


def hoist(program: Program, facts: Facts) -> Program:
    """Aggregate the features once instead of every epoch, where nothing learned or random comes before."""
    best, _ = hoisted(program, facts, limit=float("inf"))
    if best is program:
        what = "the features are not aggregated before something that learns"
        return decided(program, "hoist", False, what)
    if not program.parts and program.is_compact(INPUT):
        what = f"the features stay {program.input_path}; aggregated they would be dense"
        return decided(program, "hoist", False, what)
    seconds, tried = facts.weighed(lambda by: hoisted(program, by, limit=float("inf"))[1])
    saves = seconds["every epoch"] - seconds["once"]
    if saves <= 0:
        return decided(program, "hoist", False, f"it would not save time{tried}")
    allowed, some = hoisted(program, facts, limit=facts.hoist_bytes)
    more = (
        f"aggregated features would take {in_bytes(_bytes_of(best, facts))} of the "
        f"{in_bytes(facts.hoist_bytes)} allowed, and save {in_seconds(saves)} an epoch; "
        "hoist_bytes allows more"
    )
    if allowed is program:
        return decided(program, "hoist", False, more)
    what = f"features aggregated once, {in_bytes(_bytes_of(allowed, facts))}{tried}"
    if allowed.ops != best.ops:
        what, saves = f"{what}; all {more}", some["every epoch"] - some["once"]
    return decided(program, "hoist", True, what, saves=f"{in_seconds(saves)} an epoch", ops=allowed.ops)


def hoisted(program: Program, facts: Facts, *, limit: float) -> tuple[Program, dict[str, float]]:
    """Turn what can be computed once into constants, as far as ``limit`` bytes allow.

    ``A (x Wᵀ)`` becomes ``(A x) Wᵀ`` with ``A x`` a constant: no aggregation is left in the first layer,
    forward or backward. Powers ``A A x`` and combinations of them are constants too.

    Returns:
        The program (the same object if nothing changes), and the seconds per epoch of the operations
        concerned: ``"every epoch"`` if they run as they are, ``"once"`` if the constants are there.
    """
    after, folds = _folded(program, facts, float("inf"))
    if _bytes_of(after, facts) > limit:  # one combination may take less than its parts
        after, folds = _folded(program, facts, limit)
    costs = [_seconds(before, fold, facts) for before, fold in folds]
    every, once = (sum(cost[i] for cost in costs) for i in range(2))
    return after, {"every epoch": every, "once": once}


def _bytes_of(program: Program, facts: Facts) -> int:
    """Return the bytes of a program's constants."""
    constants = [op.out for op in program.ops if isinstance(op, Hoisted)]
    return sum(4 * facts.num_rows(program.place(value)) * program.width(value) for value in constants)


@dataclass(frozen=True)
class _Fold:
    """Operations that can be computed once, on the features or before a linear map that moves behind them."""

    chain: tuple[Operation, ...]
    """Operations that compute their input from the features alone."""
    ops: tuple[Operation, ...]
    """The operations in the order they run; only the last one's value is read elsewhere."""
    linear: Linear | None
    """Linear map that they all follow and that moves behind them: ``S (x Wᵀ) = (S x) Wᵀ``."""
    source: str
    """Name of the value that holds the features."""


def _folded(program: Program, facts: Facts, limit: float) -> tuple[Program, list[tuple[Program, _Fold]]]:
    """Apply all folds that the limit allows; return the program, and each fold with the program before it."""
    folds, refused = list[tuple[Program, _Fold]](), set[str]()
    while (fold := _next(program, refused)) is not None:
        after = _applied(program, fold)
        if _bytes_of(after, facts) <= limit:
            folds.append((program, fold))
            program = after
        else:
            refused.add(fold.ops[-1].out)
    return program, folds


def _next(program: Program, refused: set[str]) -> _Fold | None:
    for op in program.ops:
        if not isinstance(op, FOLDED) or isinstance(op, Own):
            continue
        for fold in (_alone(program, op), _after_linear(program, op)):
            if fold is not None and fold.ops[-1].out not in refused:
                return fold
    return None


def _alone(program: Program, op: Operation) -> _Fold | None:
    """Return a fold of ``op`` if it reads only values computed from the features alone; None otherwise."""
    chain = _chain(program, op.inputs)
    source = None if chain is None else _source(program, op.inputs)
    if chain is None or source is None or not any(isinstance(o, Aggregate) for o in (*chain, op)):
        return None
    return _Fold(chain, (op,), None, source)


def _after_linear(program: Program, op: Operation) -> _Fold | None:
    """Return a fold of ``op`` and all else that commutes with a linear map of such values; None otherwise."""
    linear = program.producer(op.inputs[0])
    if not isinstance(linear, Linear) or len(linear.inputs) > 1 or linear.after is not None:
        return None
    chain = _chain(program, linear.inputs)
    source = None if chain is None else _source(program, linear.inputs)
    if chain is None or source is None:
        return None
    readers = program.consumers(linear.out)
    ops = [op] if len(readers) == 1 and len(op.inputs) == 1 else _following(program, linear)
    inside = {linear.out, *(other.out for other in ops)}
    ends = [value for value in inside if _is_read_outside(program, value, ops)]
    if not ops or ends != [ops[-1].out] or not any(isinstance(other, Aggregate) for other in ops):
        return None
    return _Fold(chain, tuple(ops), linear, source)


def _following(program: Program, linear: Linear) -> list[Operation]:
    """Return all foldable operations that read only a linear map's value and each other's."""
    known, found = {linear.out}, list[Operation]()
    for op in program.ops:
        if isinstance(op, FOLDED) and known.issuperset(op.inputs):
            known.add(op.out)
            found.append(op)
    return found


def _is_read_outside(program: Program, value: str, ops: Sequence[Operation]) -> bool:
    return value == program.output or any(reader not in ops for reader in program.consumers(value))


def _chain(program: Program, values: Sequence[str]) -> tuple[Operation, ...] | None:
    """Return the operations that compute ``values`` from the features alone; None if others take part."""
    made: dict[str, Operation] = {}
    for value in values:
        op = program.producer(value)
        if op is None:
            continue
        if isinstance(op, Hoisted):
            chain: tuple[Operation, ...] | None = op.of
        elif isinstance(op, FOLDED):
            before = _chain(program, op.inputs)
            chain = None if before is None else (*before, op)
        else:
            chain = None
        if chain is None:
            return None
        made |= {other.out: other for other in chain}
    return tuple(made.values())


def _source(program: Program, values: Sequence[str]) -> str | None:
    """Return the name of the features that chains start from; None if there are several, or sparse ones."""
    found, rest = set[str](), list(values)
    while rest:
        op = program.producer(value := rest.pop())
        rest += () if op is None else op.inputs
        found |= {value} if op is None else set()
    only = found.pop()
    stays = program.parts and program.is_compact(only)
    return None if found or stays else only


def _applied(program: Program, fold: _Fold) -> Program:
    last = fold.ops[-1].out
    if fold.linear is None:
        constant = Hoisted(out=last, inputs=(fold.source,), of=(*fold.chain, *fold.ops))
        return _replaced(program, {last: (constant,)})
    names = {op.out: f"{op.out}_once" for op in fold.ops} | {fold.linear.out: fold.linear.inputs[0]}
    of = (*fold.chain, *(op.renamed(names) for op in fold.ops))
    constant = Hoisted(out=names[last], inputs=(fold.source,), of=of)
    new: dict[str, tuple[Operation, ...]] = {op.out: () for op in (*fold.ops, fold.linear)}
    new[last] = (constant, replace(fold.linear, out=last, inputs=(constant.out,)))
    return _replaced(program, new)


def _seconds(program: Program, fold: _Fold, facts: Facts) -> tuple[float, float]:
    """Return the seconds per epoch of a fold's operations and linear map, before and after folding."""
    channels = program.width(fold.source)
    if fold.linear is None:
        return sum(_seconds_of(program, op, facts, channels, channels) for op in fold.ops), 0.0
    width = program.width(fold.linear.out)
    rows = [facts.num_rows(program.place(value)) for value in (fold.linear.out, fold.ops[-1].out)]
    before, after = (2 * facts.multiply_seconds(count, channels, width) for count in rows)
    return sum(_seconds_of(program, op, facts, width, channels) for op in fold.ops) + before, after


def _seconds_of(program: Program, op: Operation, facts: Facts, width: int, channels: int) -> float:
    """Return an operation's seconds per epoch; an aggregation counts both ways, at its narrower side."""
    if isinstance(op, Aggregate):
        level, relation = program.level(op.inputs[0]), op.adjacency.relation
        return 2 * facts.aggregate_seconds(level, min(width, channels), relation)
    if isinstance(op, Own):
        return 0.0
    nbytes = 4 * facts.num_rows(program.place(op.out)) * width * (1 + len(op.inputs))
    return nbytes / facts.rates.stream_bytes


def _replaced(program: Program, new: dict[str, tuple[Operation, ...]]) -> Program:
    """Replace operations of a program and drop those whose value nothing reads any more."""
    ops = [made for op in program.ops for made in new.get(op.out, (op,))]
    kept, alive = {program.output}, list[Operation]()
    for op in reversed(ops):
        if op.out in kept:
            alive.append(op)
            kept.update(op.inputs)
    return program.rewritten(tuple(reversed(alive)))


__all__ = ["hoist", "hoisted"]
