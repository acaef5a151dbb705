"""The lowered program in words: decisions and what they save, operations and their rows, bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphbraid.fullgraph.program import Program

if TYPE_CHECKING:
    from graphbraid.fullgraph.executor import Executor


def explain(program: Program, executor: Executor) -> str:
    """Some lines to print."""
    lines = ["Decisions"]
    for decision in program.decisions:
        line = f"  {'+' if decision.taken else '-'} {decision.name}: {decision.what}"
        line += f"; saves {decision.saves}" if decision.saves else ""
        line += f" (instead of {decision.instead_of})" if decision.instead_of else ""
        lines.append(line)
    lines.append("Program")
    for op in program.ops:
        rows, details = executor.num_rows(program.level(op.out)), op.details()
        size = f"({rows:,}, {program.width(op.out)})"
        reads = ", ".join(op.inputs)
        lines.append(f"  {op.out} {size} = {op.symbol}({reads}){': ' + details if details else ''}")
    arena = executor.arena
    lines.append("Arena")
    lines.append(
        f"  {_mega(arena.nbytes)} for {len(arena.buffers)} matrices that would take "
        f"{_mega(arena.separate_bytes)} apart; {_mega(arena.least_bytes)} are live at once"
    )
    lines.append(f"  {_mega(executor.nbytes)} with what is computed once")
    return "\n".join(lines)


def _mega(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
