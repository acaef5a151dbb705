"""Order: rows are transformed before or after they are aggregated, whichever is cheaper."""

from __future__ import annotations

from dataclasses import replace

from graphbraid.fullgraph.lowering.facts import Facts
from graphbraid.fullgraph.lowering.passes.rewriting import decided, replaced
from graphbraid.fullgraph.program import Aggregate, Linear, Program


def order(program: Program, facts: Facts) -> Program:
    """Transform before aggregating where that narrows the rows enough, and after it elsewhere."""
    moved: list[str] = []
    for _ in range(program.num_levels):  # aggregations in a row may each follow the one before
        before = len(moved)
        for aggregate in [op for op in program.ops if isinstance(op, Aggregate)]:
            if program.producer(aggregate.out) is not aggregate:
                continue
            program, note = _order_one(program, aggregate, facts)
            moved += [note] if note else []
        if len(moved) == before:
            break
    what = "; ".join(moved) if moved else "every aggregation runs at its narrower side already"
    return decided(program, "order", bool(moved), what)


def _order_one(program: Program, aggregate: Aggregate, facts: Facts) -> tuple[Program, str]:
    linear = program.producer(aggregate.inputs[0])
    if isinstance(linear, Linear) and len(linear.inputs) == 1:
        if len(program.consumers(linear.out)) > 1 or program.is_compact(linear.inputs[0]):
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
        return replaced(program, swapped), note
    after = program.consumers(aggregate.out)
    linear = after[0] if len(after) == 1 and isinstance(after[0], Linear) else None
    if not isinstance(linear, Linear) or linear.inputs[0] != aggregate.out or len(aggregate.inputs) > 1:
        return program, ""
    after_it: Linear = linear
    seconds, tried = facts.weighed(lambda by: _order_seconds(program, after_it, aggregate, by))
    if seconds["last"] <= seconds["first"] and not program.is_compact(aggregate.inputs[0]):
        return program, ""
    rows = f"{linear.out}_rows"
    swapped = {
        aggregate.out: replace(linear, out=rows, inputs=(aggregate.inputs[0],)),
        linear.out: replace(aggregate, out=linear.out, inputs=(rows, *linear.inputs[1:])),
    }
    return replaced(program, swapped), f"{linear.out}: transform first{tried}"


def _order_seconds(program: Program, linear: Linear, aggregate: Aggregate, facts: Facts) -> dict[str, float]:
    """Return the seconds per epoch with the transformation ``"first"`` and with it ``"last"``."""
    x = linear.inputs[0] if linear.out == aggregate.inputs[0] else aggregate.inputs[0]
    level, relation = program.level(aggregate.inputs[0]), aggregate.adjacency.relation
    before, after = (facts.num_rows(program.place(value)) for value in (aggregate.inputs[0], aggregate.out))
    narrow, wide = program.width(linear.out), program.width(x)
    learns = program.learns(x)
    products = 3 if learns else 2
    first = products * facts.multiply_seconds(before, wide, narrow)
    first += 2 * facts.aggregate_seconds(level, narrow, relation)
    last = products * facts.multiply_seconds(after, wide, narrow)
    last += (2 if learns else 1) * facts.aggregate_seconds(level, wide, relation)
    return {"first": first, "last": last}


__all__ = ["order"]
