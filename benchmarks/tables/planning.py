"""Tables of what is planned before a run: how well estimates hold."""

from __future__ import annotations

from benchmarks.common.rows import read_rows
from benchmarks.tables.markdown import table, where


def estimate() -> str:
    """Memory and epochs as estimated, beside those of the run."""
    rows = read_rows("estimate")
    lines = []
    for row in rows:
        memory, epoch = row["memory_bytes"], row["epoch_seconds"]
        lines.append(
            [
                row["graph"],
                row["case"],
                f"{memory['estimated'] / 1e9:.2f} GB",
                f"{memory['ran'] / 1e9:.2f} GB",
                f"{memory['ratio']:.2f}",
                f"{1e3 * epoch['estimated']:.0f} ms",
                f"{1e3 * epoch['ran']:.0f} ms",
                f"{epoch['ratio']:.2f}",
            ]
        )
    heads = ("graph", "run", "memory estimated", "taken", "ratio", "epoch estimated", "taken", "ratio")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.planning.estimate")])
