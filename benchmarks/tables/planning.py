"""Tables of what comes before a run: estimates, what checks cost, and times of an earlier version."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.common.rows import Row, read_rows
from benchmarks.tables.markdown import NOT_MEASURED, milliseconds, table, where
from benchmarks.training.checks import KINDS


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
    """What scanning a graph costs, and epochs and batches beside another checkout's: seconds and memory."""
    rows = read_rows("checks")
    lines = [
        [
            row["graph"],
            name,
            *_beside(row[kind], milliseconds),
            *_beside(row.get("peak_gb", {}).get(kind), _gigabytes),
        ]
        for row in rows
        for kind, name in KINDS.items()
        if kind in row
    ]
    lines += [
        [row["graph"], "scan", milliseconds(row["scan_s"]), *[NOT_MEASURED] * 5]
        for row in rows
        if "scan_s" in row
    ]
    commits = dict.fromkeys(row["before"] for row in rows if "before" in row)
    said = (
        f"Medians; before: those of commit {', '.join(commits)}, in turns with this one's. Memory: the most "
        "that the process holds, the graph and all libraries included; of two ranks, the first."
    )
    heads = ["graph", "what", "now", "before", "now / before", "memory now", "before", "now / before"]
    return "\n\n".join([table(heads, lines), said, where(rows, "benchmarks.training.checks")])


def _beside(median: Row | None, shown: Callable[[float], str]) -> list[str]:
    if median is None:
        return [NOT_MEASURED] * 3
    if "before" not in median:
        return [shown(median["now"]), NOT_MEASURED, NOT_MEASURED]
    now, before = median["now"], median["before"]
    return [shown(now), shown(before), f"{now / before:.2f}"]


def _gigabytes(value: float) -> str:
    return f"{value:.2f} GB"
