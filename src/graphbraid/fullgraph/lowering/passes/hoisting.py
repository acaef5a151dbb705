"""Hoisting: what no parameter and no draw reaches is computed once, not in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphbraid.fullgraph.lowering.constants import FOLDED
from graphbraid.fullgraph.lowering.facts import Facts
from graphbraid.fullgraph.lowering.passes.rewriting import decided, in_bytes, in_seconds
from graphbraid.fullgraph.program import INPUT, Aggregate, Hoisted, Linear, Operation, Own, Program


def hoist(program: Program, facts: Facts) -> Program:
    """Aggregate the features once instead of every epoch, where nothing that learns or draws comes before."""
    best, _ = hoisted(program, facts, limit=float("inf"))
    if best is program:
        what = "the features are not aggregated before something that learns"
        return decided(program, "hoist", False, what)
    if program.input_path != "dense":
        what = f"the features stay {program.input_path}, which aggregated they would not"
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
    """The program with what can be computed once made constants, as far as ``limit`` bytes allow.

    ``A (x Wᵀ)`` becomes ``(A x) Wᵀ`` with ``A x`` a constant: no aggregation is left in the first layer,
    forward or backward. Powers ``A A x`` and combinations of them are constants too.

    Returns:
        The program, itself where nothing changes, and the seconds of an epoch that its constants take
        ``every epoch`` and ``once`` they are there.
    """
    after, folds = _folded(program, facts, float("inf"))
    if _bytes_of(after, facts) > limit:  # one combination may take less than its parts
        after, folds = _folded(program, facts, limit)
    costs = [_seconds(before, fold, facts) for before, fold in folds]
    every, once = (sum(cost[i] for cost in costs) for i in range(2))
    return after, {"every epoch": every, "once": once}


def _bytes_of(program: Program, facts: Facts) -> int:
    """What the constants of a program take."""
    levels = [op.num_blocks() for op in program.ops if isinstance(op, Hoisted)]
    return sum(4 * facts.rows[level] * facts.in_channels for level in levels)


@dataclass(frozen=True)
class _Fold:
    """Operations that can be computed once: on the features, or before a linear map that moves on."""

    chain: tuple[Operation, ...]
    """What makes their input of the features alone."""
    ops: tuple[Operation, ...]
    """In the order they run; only the last one's value is read elsewhere."""
    linear: Linear | None
    """Which they all follow: ``S (x Wᵀ) = (S x) Wᵀ``."""


def _folded(program: Program, facts: Facts, limit: float) -> tuple[Program, list[tuple[Program, _Fold]]]:
    """The program after all folds that the limit allows, and each with the program before it."""
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
    """``op``, where it reads nothing but what is made of the features."""
    chain = _chain(program, op.inputs)
    if chain is None or not any(isinstance(other, Aggregate) for other in (*chain, op)):
        return None
    return _Fold(chain, (op,), None)


def _after_linear(program: Program, op: Operation) -> _Fold | None:
    """``op`` and whatever else may change places with a linear map of what is made of the features."""
    linear = program.producer(op.inputs[0])
    if not isinstance(linear, Linear) or len(linear.inputs) > 1 or linear.after is not None:
        return None
    chain = _chain(program, linear.inputs)
    if chain is None:
        return None
    readers = program.consumers(linear.out)
    ops = [op] if len(readers) == 1 and len(op.inputs) == 1 else _following(program, linear)
    inside = {linear.out, *(other.out for other in ops)}
    ends = [value for value in inside if _is_read_outside(program, value, ops)]
    if not ops or ends != [ops[-1].out] or not any(isinstance(other, Aggregate) for other in ops):
        return None
    return _Fold(chain, tuple(ops), linear)


def _following(program: Program, linear: Linear) -> list[Operation]:
    """All operations that read nothing but a linear map's value and each other's."""
    known, found = {linear.out}, list[Operation]()
    for op in program.ops:
        if isinstance(op, FOLDED) and known.issuperset(op.inputs):
            known.add(op.out)
            found.append(op)
    return found


def _is_read_outside(program: Program, value: str, ops: Sequence[Operation]) -> bool:
    return value == program.output or any(reader not in ops for reader in program.consumers(value))


def _chain(program: Program, values: Sequence[str]) -> tuple[Operation, ...] | None:
    """The operations that make values of the features alone; None where something else takes part."""
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


def _applied(program: Program, fold: _Fold) -> Program:
    last = fold.ops[-1].out
    if fold.linear is None:
        constant = Hoisted(out=last, inputs=(INPUT,), of=(*fold.chain, *fold.ops))
        return _replaced(program, {last: (constant,)})
    names = {op.out: f"{op.out}_once" for op in fold.ops} | {fold.linear.out: fold.linear.inputs[0]}
    of = (*fold.chain, *(op.renamed(names) for op in fold.ops))
    constant = Hoisted(out=names[last], inputs=(INPUT,), of=of)
    new: dict[str, tuple[Operation, ...]] = {op.out: () for op in (*fold.ops, fold.linear)}
    new[last] = (constant, replace(fold.linear, out=last, inputs=(constant.out,)))
    return _replaced(program, new)


def _seconds(program: Program, fold: _Fold, facts: Facts) -> tuple[float, float]:
    """What a fold's operations and the linear map before them take in an epoch, before and after."""
    if fold.linear is None:
        return sum(_seconds_of(program, op, facts, facts.in_channels) for op in fold.ops), 0.0
    width = program.width(fold.linear.out)
    levels = [program.level(value) for value in (fold.linear.out, fold.ops[-1].out)]
    before, after = (2 * facts.multiply_seconds(facts.rows[i], facts.in_channels, width) for i in levels)
    return sum(_seconds_of(program, op, facts, width) for op in fold.ops) + before, after


def _seconds_of(program: Program, op: Operation, facts: Facts, width: int) -> float:
    """What an operation takes in an epoch: of an aggregation both ways, as it would run at its best."""
    if isinstance(op, Aggregate):
        level = program.level(op.inputs[0])
        return 2 * facts.aggregate_seconds(level, min(width, facts.in_channels))
    if isinstance(op, Own):
        return 0.0
    nbytes = 4 * facts.rows[program.level(op.out)] * width * (1 + len(op.inputs))
    return nbytes / facts.rates.stream_bytes


def _replaced(program: Program, new: dict[str, tuple[Operation, ...]]) -> Program:
    """The program with operations replaced, without those that nothing reads any more."""
    ops = [made for op in program.ops for made in new.get(op.out, (op,))]
    kept, alive = {program.output}, list[Operation]()
    for op in reversed(ops):
        if op.out in kept:
            alive.append(op)
            kept.update(op.inputs)
    return program.rewritten(tuple(reversed(alive)))


__all__ = ["hoist", "hoisted"]
