"""The lowering of dropout that a model applies to sparse features, ahead of its first weights."""

from __future__ import annotations

from dataclasses import replace

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.costs import CostModel, in_seconds


def drop_sparse(program: ir.Program, costs: CostModel) -> ir.Program:
    """Drop stored values instead of cells, where linear maps alone read a dropout of sparse features.

    Steps of one host alone know the dropout's result as a form of the features.
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
