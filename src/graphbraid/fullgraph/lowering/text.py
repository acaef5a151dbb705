"""Text about a lowered program: its decisions, its operations and their shapes."""

from __future__ import annotations

from collections.abc import Callable

from graphbraid.fullgraph.program import Program


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


def operation_lines(program: Program, num_rows: Callable[[int], int]) -> list[str]:
    """Return a line per operation with its result's shape; ``num_rows`` returns the nodes of a level."""
    lines = ["Program"]
    for op in program.ops:
        rows, details = num_rows(program.level(op.out)), op.details()
        size = f"({rows:,}, {program.width(op.out)})"
        reads = ", ".join(op.inputs)
        lines.append(f"  {op.out} {size} = {op.symbol}({reads}){': ' + details if details else ''}")
    return lines


__all__ = ["decision_lines", "operation_lines"]
