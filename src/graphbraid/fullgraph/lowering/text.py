"""Text about a lowered program: its decisions, its operations and their shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.program.maps import name_of
from graphbraid.graph.types import Relation

if TYPE_CHECKING:
    from graphbraid.fullgraph.lowering.reach.levels import Blocks


def decision_lines(program: Program, doubt: str = "") -> list[str]:
    """Return a line per decision; ``doubt`` says why the rates may be wrong, and is empty otherwise."""
    lines = ["Decisions"]
    if doubt:
        lines.append(f"  weighed by doubtful rates: {doubt}")
    for decision in program.decisions:
        line = f"  {'+' if decision.taken else '-'} {decision.name}: {decision.what}"
        line += f"; saves {decision.saves}" if decision.saves else ""
        line += f" (instead of {decision.instead_of})" if decision.instead_of else ""
        lines.append(line)
    return lines


def operation_lines(program: Program, num_rows: Callable[[int, int], int]) -> list[str]:
    """Return a line per operation with its result's shape; ``num_rows`` gives the nodes of a level's type."""
    lines = ["Program"]
    for op in program.ops:
        rows, details = num_rows(*program.place(op.out)), op.details()
        size = f"({rows:,}, {program.width(op.out)})"
        reads = ", ".join(op.inputs)
        lines.append(f"  {op.out} {size} = {op.symbol}({reads}){': ' + details if details else ''}")
    return lines


def typed_level_lines(program: Program, blocks: Blocks, num_rows: Callable[[int, int], int]) -> list[str]:
    """Return a line per level with its nodes of each type, and under it one per relation to the next."""
    lines = ["Levels, by node type"]
    relations = _relations_by_level(program)
    for level in range(program.num_levels):
        counts = (f"{num_rows(level, number):,} {part.name}" for number, part in enumerate(program.parts))
        lines.append(f"  {level}: {', '.join(counts)}")
        for relation in relations.get(level, {}).values():
            edges = blocks[level].of(relation).csc.num_edges
            lines.append(f"    {name_of(relation)}: {edges:,} edges to the next")
    return lines


def _relations_by_level(program: Program) -> dict[int, dict[int, Relation]]:
    """Return the relations whose edges are read in every step, by level and number."""
    found: dict[int, dict[int, Relation]] = {}
    for op in program.ops:
        if op.walks is not None:
            found.setdefault(program.level(op.inputs[0]), {})[op.walks.number] = op.walks
    return found


__all__ = ["decision_lines", "operation_lines", "typed_level_lines"]
