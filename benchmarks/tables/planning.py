"""Tables of what comes before a run: estimates, what checks cost, and times of an earlier version."""

from __future__ import annotations

from benchmarks.common.rows import Row, read_rows
from benchmarks.tables.markdown import NOT_MEASURED, milliseconds, table, where


def estimate() -> str:
    """Memory, epochs and whole runs as estimated, beside those of the run."""
    rows = read_rows("estimate")
    lines = []
    for row in rows:
        memory, epoch, run = row["memory_bytes"], row["epoch_seconds"], row.get("run_seconds")
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
                *_of_run(run),
            ]
        )
    measured = ("memory", "epoch", "run")
    heads = ("graph", "run", *(head for what in measured for head in (f"{what} estimated", "taken", "ratio")))
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.planning.estimate")])


def _of_run(run: Row | None) -> list[str]:
    if run is None:  # of rows from before whole runs were compared
        return ["", "", ""]
    return [f"{run['estimated']:.1f} s", f"{run['ran']:.1f} s", f"{run['ratio']:.2f}"]


def checks() -> str:
    """What scanning a graph costs beside its epochs, and these beside another checkout's."""
    rows = read_rows("checks")
    heads = ["graph", "scan", *(f"{what}, before" for what in ("full-graph epoch", "sampled epoch", "batch"))]
    kinds = ("full", "sampled", "batch")
    lines = [
        [row["graph"], milliseconds(row["scan_s"]), *(_beside(row[kind]) for kind in kinds)] for row in rows
    ]
    commits = dict.fromkeys(row["before"] for row in rows if "before" in row)
    said = f"Medians; before: those of commit {', '.join(commits)}, in turns with this one's."
    return "\n\n".join([table(heads, lines), said, where(rows, "benchmarks.training.checks")])


def _beside(median: Row) -> str:
    before = milliseconds(median["before"]) if "before" in median else NOT_MEASURED
    return f"{milliseconds(median['now'])}, {before}"
