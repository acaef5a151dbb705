"""Several runs side by side: ``graphbraid compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphbraid.figures.charts import line_chart
from graphbraid.figures.curves import line, metric_names
from graphbraid.figures.page import figures, page, table
from graphbraid.files.writing import format_bytes
from graphbraid.report.run_report import RunFiles
from graphbraid.sampling.rows.by_id import TierCounts

_OF_THE_FOLDER = ("out_dir", "resume", "overwrite")


def comparison(runs: Sequence[RunFiles]) -> str:
    """Return the page: results, the options that differ, and curves over common axes."""
    names = [str(run.path) for run in runs]
    metrics = dict.fromkeys(name for run in runs for name in metric_names(run.epochs))
    titles = {"train_loss": "Loss"} | {name: f"Validation {name[4:]}" for name in metrics}
    charts = [
        line_chart({str(run.path): line(run.epochs, column) for run in runs}, x="epoch", y=title)
        for column, title in titles.items()
    ]
    heads, rows = result_table(runs)
    return page(
        f"{len(runs)} runs",
        [
            ("Results", table(rows, heads)),
            ("Options that differ", table(differing_options(runs), ("option", *names))),
            ("Epochs", figures(charts)),
        ],
    )


def result_table(runs: Sequence[RunFiles]) -> tuple[list[str], list[list[Any]]]:
    """Return the heads and a row per run; a column that is empty for all runs is left out."""
    tests = list(dict.fromkeys(name for run in runs for name in run.result.get("test", {})))
    heads = ["run", "status", "epochs", "seconds", "peak memory", "rows from disk", "plan", "best validation"]
    heads += [f"test {name}" for name in tests]
    rows = []
    for run in runs:
        found = run.result or {"status": "has not ended", "num_epochs": len(run.epochs)}
        cells = [str(run.path), *(found.get(key, "") for key in ("status", "num_epochs", "seconds"))]
        cells += [*taken_cells(found.get("resources", {})), found.get("best_value")]
        test = found.get("test", {})
        rows.append([*("" if c is None else c for c in cells), *(test.get(n, "") for n in tests)])
    said = [at for at in range(len(heads)) if any(row[at] != "" for row in rows)]
    return [heads[at] for at in said], [[row[at] for at in said] for row in rows]


def taken_cells(taken: Mapping[str, Any]) -> list[str]:
    """Peak memory of a run, the share of the reads of rows that the disk served, and the kind of its plan."""
    peak, reads = taken.get("host_peak_bytes"), TierCounts(**taken.get("reads", {}))
    plan = taken.get("plan")
    if plan is None:
        kind = ""
    elif plan["cores"] is not None:
        kind = f"{plan['cores']['workers']} sampling, {plan['cores']['threads']} training"
    else:
        kind = f"{plan['num_cpu'] / plan['num_batches']:.0%} of batches by the CPU"
    return [
        format_bytes(peak) if peak else "",
        f"{reads.disk_rows / reads.reads:.1%}" if reads.reads else "",
        kind,
    ]


def differing_options(runs: Sequence[RunFiles]) -> list[list[Any]]:
    """Return a row per option that is not the same in all runs."""
    options = dict.fromkeys(name for run in runs for name in run.settings if name not in _OF_THE_FOLDER)
    rows = [[name, *(run.settings.get(name) for run in runs)] for name in options]
    rows.append(["ranks", *(run.environment.get("ranks", 1) for run in runs)])
    return [row for row in rows if any(value != row[1] for value in row[2:])]
