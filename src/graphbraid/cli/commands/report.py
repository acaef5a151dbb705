"""``graphbraid report`` and ``graphbraid compare``: pages about runs that have been made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphbraid.cli.common import (
    DebugOption,
    JsonOption,
    flag,
    guarded,
    out_console,
    path_flag,
    path_given,
    print_json,
    say,
    table,
)
from graphbraid.errors import ConfigError, GraphbraidError

if TYPE_CHECKING:
    from graphbraid.report import RunFiles


@guarded
def report(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", parser=path_given)],
    out: Path | None = path_flag(
        None, "--out -o", "Page to write. (default: report.html in RUN)", metavar="FILE"
    ),
    predictions: bool = flag(
        True, "--predictions/--without-predictions", "Predict the test split with the best checkpoint."
    ),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Write one page about a run: curves, errors, calibration, times, the graph, and the command.

    Example:

        graphbraid report runs/first
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid.report import RunFiles
    from graphbraid.report import report as page_of

    place = _place(run / "report.html" if out is None else out)
    files = RunFiles.read(run)
    shown, graph = _of_model(run, files.result.get("threshold")) if predictions else ("", "")
    page = page_of(files, predictions=shown, graph=graph, command=_command(files))
    _finish(page, place, json_output=json_output)


@guarded
def compare(
    *,
    runs: Annotated[list[str], typer.Argument(metavar="RUNS", help="Folders of runs.")],
    out: Path | None = path_flag(
        None, "--out -o", "Page to write. (default: comparison.html)", metavar="FILE"
    ),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Write one page about several runs: results, the options that differ, and curves.

    Example:

        graphbraid compare runs/first runs/second
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid.figures import cell_text
    from graphbraid.report import RunFiles, comparison, result_table

    place = _place(Path("comparison.html") if out is None else out)
    found = [RunFiles.read(path_given(run)) for run in runs]
    if not json_output:
        heads, rows = result_table(found)
        out_console().print(table(dict.fromkeys(heads, "left"), [[*map(cell_text, row)] for row in rows]))
    _finish(comparison(found), place, json_output=json_output)


def _place(out: Path) -> Path:
    """Return the page to write; a name of its own keeps it from replacing a run's or a graph's file."""
    from graphbraid.files.writing import require_place_for_file

    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out is a page, so its name ends in .html; got {out}")
    require_place_for_file(out)
    return out


def _finish(page: str, out: Path, *, json_output: bool) -> None:
    from graphbraid.files.writing import atomic_write

    with atomic_write(out) as aside:
        aside.write_text(page, encoding="utf-8")
    if json_output:
        print_json({"out": str(out), "bytes": len(page.encode())})
    else:
        say(out_console(), "{} written", out)


def _of_model(run: Path, threshold: float | None) -> tuple[str, str]:
    """Return the sections on predictions and on the graph, or the reason why they cannot be had."""
    from html import escape

    import numpy as np

    from graphbraid.cli.run.saved_run import trained
    from graphbraid.report import graph_section, of_classes, of_labels, of_targets
    from graphbraid.train.task import Task

    try:
        found = trained(run, draws_split=True, labels=True)
        graph = graph_section(found.trainer.graph)
        outputs = found.outputs
        if found.run.train.task != "node":
            return f"<p>Pictures are of tasks on nodes; this run's task is {found.run.train.task}.</p>", graph
        labels = found.trainer.runner.labels
        if labels.y is None or "test" not in labels.splits:
            return "<p>The data has no test split.</p>", graph
        ids = labels.split("test")
        task = Task(name=outputs.task, width=outputs.width)
        values = task.probabilities(found.trainer.predict(ids)).float().numpy()
        truth = labels.y[ids].numpy()
    except GraphbraidError as error:
        return f"<p>Not predicted: {escape(str(error))}</p>", ""
    if outputs.task != "single-label":
        truth = truth.reshape(len(truth), -1)
    known = truth >= 0 if truth.ndim == 1 else ~np.isnan(truth).all(axis=1)
    values, truth = values[known], truth[known]
    if not len(truth):
        return "<p>No node of the test split has a label.</p>", graph
    if outputs.task == "single-label":
        names = outputs.class_names or [str(c) for c in range(values.shape[1])]
        shown = of_classes(values, truth, [str(name) for name in names], threshold=threshold)
        return shown, graph
    return (of_labels if outputs.task == "multi-label" else of_targets)(values, truth), graph


def _command(files: RunFiles) -> list[str]:
    """Return the words that train the same again: options that are not the defaults."""
    import yaml

    from graphbraid.cli.run.settings import resolve

    if "data" not in files.settings:
        return []
    usual: dict[str, Any] = resolve({}).saved()
    words = ["graphbraid", "train"]
    if (ranks := files.environment.get("ranks", 1)) > 1:
        words += ["--ranks", str(ranks)]
    for name, value in files.settings.items():
        if name not in ("out_dir", "resume", "overwrite") and value != usual.get(name):
            text = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
            words += ["--set", f"{name}={text}"]
    return words
