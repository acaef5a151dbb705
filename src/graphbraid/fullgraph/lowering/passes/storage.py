"""Storage: the dtype to which rows are rounded before they are aggregated."""

from __future__ import annotations

from dataclasses import replace

import torch

from graphbraid.fullgraph.lowering.facts import Facts
from graphbraid.fullgraph.lowering.passes.rewriting import decided, in_seconds
from graphbraid.fullgraph.program import Aggregate, Program


def store(program: Program, facts: Facts) -> Program:
    """Round rows to bfloat16 before they are aggregated, if requested: half the bytes read per edge."""
    if facts.storage == torch.float32:
        return decided(program, "storage", False, "float32 rows; storage='bfloat16' halves what edges read")
    saved, ops = 0.0, []
    for op in program.ops:
        if not isinstance(op, Aggregate):
            ops.append(op)
            continue
        place, width = program.place(op.inputs[0]), program.width(op.out)
        passes = 1 + program.learns(op.inputs[0])
        rounding = 6.0 * facts.num_rows(place) * width / facts.rates.stream_bytes
        saved += passes * (facts.aggregate_seconds(place.level, width, op.adjacency.relation) / 2 - rounding)
        ops.append(replace(op, rows=facts.storage))
    what = "rows are rounded to bfloat16 before they are aggregated, sums are float32"
    taken = any(isinstance(op, Aggregate) for op in ops)
    return decided(
        program,
        "storage",
        taken,
        what if taken else "nothing is aggregated",
        saves=in_seconds(saved),
        ops=tuple(ops),
    )


__all__ = ["store"]
