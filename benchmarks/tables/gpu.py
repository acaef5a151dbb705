"""The table of what has run on a GPU."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common.rows import read_rows
from benchmarks.gpu.suite import TIERS, cases
from benchmarks.tables.markdown import NOT_MEASURED, table


def proven() -> str:
    """Each case of the suite: what came of it when it ran last, on which card and from which commit."""
    rows = {row["row"]: row for row in read_rows("gpu_suite")}
    lines = []
    for case in sorted(
        cases(smoke=False, config=Path(), out=Path()), key=lambda case: list(TIERS).index(case.tier)
    ):
        row = rows.get(case.name)
        where = [row["card"], row["commit"], row["date"]] if row else [NOT_MEASURED] * 3
        result = f"{row['status']} {row['by']}".strip() if row else "not run"
        lines.append([case.name, case.tier, result, *where])
    return table(("case", "tier", "result", "card", "commit", "date"), lines)
