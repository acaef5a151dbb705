"""A table as Markdown, and where its rows were measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from benchmarks.common.rows import Row

NOT_MEASURED = "–"  # noqa: RUF001, a dash that stands for nothing


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A head, its line and a line per row."""
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def where(rows: Sequence[Row], command: str) -> str:
    """The machines, dates and commits of some rows, and the command that measures them."""
    machines = dict.fromkeys(f"{row['machine']['cpu']}, {row['machine']['cores']} cores" for row in rows)
    dates, commits = sorted({row["date"] for row in rows}), dict.fromkeys(row["commit"] for row in rows)
    remarks = dict.fromkeys(row["remark"] for row in rows if "remark" in row)
    said = [" and ".join(machines), " to ".join(dict.fromkeys([dates[0], dates[-1]]))]
    said += [f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}", f"`{command}`", *remarks]
    return f"<sub>Measured on {'; '.join(said)}</sub>"


def milliseconds(seconds: float | None, digits: int = 1) -> str:
    """A time, or the dash."""
    return NOT_MEASURED if seconds is None else f"{1e3 * seconds:,.{digits}f} ms"


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return float(prod(values) ** (1 / len(values)))
