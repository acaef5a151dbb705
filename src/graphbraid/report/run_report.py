"""The report of one run: ``graphbraid report``."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphbraid.errors import ConfigError, DataError
from graphbraid.files.opening import read_text
from graphbraid.report.charts import Points, bar_chart, line_chart
from graphbraid.report.page import figures, page, table
from graphbraid.train.run_folder.folder import CONFIG, ENVIRONMENT, RESULT, read_json
from graphbraid.train.run_folder.loggers import METRICS

BESIDE = (
    "<p>Sampling and gathering run in threads beside the model. The model waits for them as long as "
    "<i>wait</i> says.</p>"
)
STAGES = ("sample", "gather", "wait", "forward", "backward", "evaluate", "checkpoint")
"""Stages whose seconds ``metrics.csv`` has."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What a run's folder says of it."""

    path: Path
    settings: dict[str, Any]
    """Options of the command line, or of the Trainer if Python made the run."""
    environment: dict[str, Any]
    result: dict[str, Any]
    """Empty if the run has not ended."""
    epochs: list[dict[str, float]]
    """Rows of ``metrics.csv``; an empty cell is missing."""

    @classmethod
    def read(cls, path: Path) -> RunFiles:
        """Read a folder.

        Raises:
            ConfigError: it holds no run.
            DataError: a file is damaged.
        """
        if not (path / CONFIG).is_file():
            raise ConfigError(f"{path} holds no run: there is no {path / CONFIG}; name the folder a run left")
        config = read_json(path / CONFIG)
        info = config.get("info") or {}
        return cls(
            path=path,
            settings=info.get("settings") or config.get("train") or {},
            environment=read_json(path / ENVIRONMENT) if (path / ENVIRONMENT).is_file() else {},
            result=read_json(path / RESULT) if (path / RESULT).is_file() else {},
            epochs=rows_of(path / METRICS) if (path / METRICS).is_file() else [],
        )

    @property
    def title(self) -> str:
        """Model, data and folder."""
        model, data = self.settings.get("model", "a model"), self.settings.get("data", "a graph")
        return f"{model} on {data}, {self.path.absolute().name}"

    def line(self, column: str) -> Points:
        """Return the points of a column over the epochs."""
        return [(row["epoch"], row[column]) for row in self.epochs if column in row]

    def metrics(self) -> list[str]:
        """Return the names of validation metrics."""
        names = dict.fromkeys(name for row in self.epochs for name in row if name.startswith("val_"))
        return [name for name in names if name != "val_loss"]


def rows_of(file: Path) -> list[dict[str, float]]:
    """Read ``metrics.csv``; the last line of a run that goes on may be in part.

    Raises:
        DataError: it is no table of numbers.
    """
    try:
        rows = csv.DictReader(io.StringIO(read_text(file)))
        found = [{k: number(v) for k, v in row.items() if k and v} for row in rows]
    except (ValueError, csv.Error) as error:
        raise DataError(f"{file} is damaged: it is no table of numbers ({error}).") from error
    return [row for row in found if "epoch" in row]


def number(text: str) -> float:
    """Return a cell as a number; True is 1."""
    return float(text == "True") if text in ("True", "False") else float(text)


def report(run: RunFiles, *, predictions: str = "", graph: str = "", command: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        run: the run.
        predictions: section on its predictions, or why there is none.
        graph: section on its graph.
        command: words of the command that trains the same again.
    """
    return page(
        run.title,
        [
            ("Result", table(result_rows(run))),
            ("Epochs", figures(epoch_charts(run))),
            ("Where the time went", figures([stage_chart(run)]) and figures([stage_chart(run)]) + BESIDE),
            ("Predictions of the test split", predictions),
            ("Graph", graph),
            ("The same again", f"<pre>{shlex.join(command)}</pre>" if command else ""),
            ("Options", table(option_rows(run.settings))),
            ("Machine", table(machine_rows(run.environment))),
        ],
    )


def result_rows(run: RunFiles) -> list[tuple[str, object]]:
    """How the run ended."""
    found = run.result
    if not found:
        return [("status", f"has not ended; {len(run.epochs)} epochs so far")]
    rows: list[tuple[str, object]] = [
        ("status", found["status"]),
        ("epochs, steps", f"{found['num_epochs']:,}, {found['global_step']:,}"),
        ("seconds", found["seconds"]),
        (f"best epoch by {found['monitor']}", found["best_epoch"]),
        (f"validation {found['monitor']}", found["best_value"]),
        ("threshold", found.get("threshold")),
    ]
    rows += [(f"test {name}", value) for name, value in found["test"].items()]
    return [(name, value) for name, value in rows if value is not None]


def epoch_charts(run: RunFiles) -> list[str]:
    """Curves of losses, of each validation metric, and of the learning rate if it changes."""
    losses = {"training": run.line("train_loss"), "validation": run.line("val_loss")}
    charts = [line_chart(losses, x="epoch", y="Loss")]
    charts += [line_chart({m: run.line(m)}, x="epoch", y=f"Validation {m[4:]}") for m in run.metrics()]
    rate = run.line("learning_rate")
    if len({y for _, y in rate}) > 1:
        charts.append(line_chart({"learning rate": rate}, x="epoch", y="Learning rate"))
    return charts


def stage_chart(run: RunFiles) -> str:
    """Seconds of each stage; sampling and gathering run beside the model."""
    sums = {stage: sum(row.get(f"{stage}_seconds", 0.0) for row in run.epochs) for stage in STAGES}
    total = sum(row.get("epoch_seconds", 0.0) for row in run.epochs)
    title = f"Seconds of each stage ({total:.3g} s in all epochs)"
    return bar_chart(
        {stage: seconds for stage, seconds in sums.items() if seconds > 0}, title=title, unit=" s"
    )


def option_rows(settings: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Options that have a value."""
    return [(name, value) for name, value in settings.items() if value not in (None, False, {}, [])]


def machine_rows(environment: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Machine and versions."""
    if not environment:
        return []
    machine, kernels = environment.get("machine", {}), environment.get("kernels", {})
    memory = machine.get("memory_total_bytes", 0) / 2**30
    return [
        ("processor", f"{machine.get('cpu_model')}, {machine.get('usable_cores')} cores, {memory:.1f} GiB"),
        ("kernels", f"{kernels.get('variant')}: {kernels.get('reason')}"),
        ("graphbraid, Python", f"{environment.get('graphbraid')}, {environment.get('python')}"),
        ("ranks", environment.get("ranks", 1)),
        *environment.get("packages", {}).items(),
    ]
