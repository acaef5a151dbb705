"""The report of one run: ``graphbraid report``."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from graphbraid.errors import ConfigError, DataError
from graphbraid.figures.charts import bar_chart
from graphbraid.figures.curves import epoch_charts, result_rows, stage_chart
from graphbraid.figures.page import figures, page, preformatted, table
from graphbraid.files.opening import read_text
from graphbraid.files.schema import checked
from graphbraid.files.writing import format_bytes
from graphbraid.train.run_folder.folder import CONFIG, ENVIRONMENT, RESULT, read_json
from graphbraid.train.run_folder.loggers import METRICS

if TYPE_CHECKING:
    from graphbraid.collective.plan.simulator import StageRun

MOST_BATCHES = 100
"""Batches of a timeline: a report stays small."""
BESIDE = (
    "<p>Sampling and gathering run in threads beside the model. The model waits for them as long as "
    "<i>wait</i> says.</p>"
)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run's folder."""

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
    ended = (
        result_rows(run.result)
        if run.result
        else [("status", f"has not ended; {len(run.epochs)} epochs so far")]
    )
    stages = figures([stage_chart(run.epochs)])
    taken = run.result.get("resources", {})
    return page(
        run.title,
        [
            ("Result", table(ended)),
            ("Epochs", figures(epoch_charts(run.epochs))),
            ("Where the time went", stages and stages + BESIDE),
            ("Memory", table(memory_rows(taken, run.environment))),
            ("Where feature rows and lists lay", placement(taken)),
            ("Plan of the mini-batches", plan_section(run)),
            ("Predictions of the test split", predictions),
            ("Graph", graph),
            ("The same again", preformatted(shlex.join(command)) if command else ""),
            ("Options", table(option_rows(run.settings))),
            ("Machine", table(machine_rows(run.environment))),
        ],
    )


def memory_rows(taken: Mapping[str, Any], environment: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Peaks of memory; of the host's as a share of the machine, too."""
    rows: list[tuple[str, object]] = []
    total = environment.get("machine", {}).get("memory_total_bytes")
    if peak := taken.get("host_peak_bytes"):
        rows.append(("peak of the process", format_bytes(peak)))
        if total:
            rows.append((f"share of the machine's {format_bytes(total)}", f"{peak / total:.1%}"))
    if peak := taken.get("device_peak_bytes"):
        rows.append(("peak on the device", format_bytes(peak)))
    return rows


_TIERS = {
    "hot_rows": "the device",
    "peer_rows": "other devices",
    "ring_rows": "the batch before",
    "host_rows": "memory",
    "disk_rows": "disk",
}


def placement(taken: Mapping[str, Any]) -> str:
    """Where rows and lists lay, in words, and a bar for each tier that served reads."""
    reads = {name: taken.get("reads", {}).get(tier, 0) for tier, name in _TIERS.items()}
    served = {name: float(count) for name, count in reads.items() if count}
    parts = [part for part in taken.get("placement", "").split("\n\n") if part]
    told = [preformatted(part) if "\n" in part else f"<p>{escape(part)}</p>" for part in parts]
    return "".join(told) + figures([bar_chart(served, title="Reads of feature rows")])


def plan_section(run: RunFiles) -> str:
    """The plan of a run's mini-batches, and its timeline beside the measured one where a trace was kept."""
    values = run.result.get("resources", {}).get("plan")
    if values is None:
        return ""
    from graphbraid.collective.plan.plan import Plan  # here: few runs have a plan
    from graphbraid.collective.run.trace import TIMELINE_STYLE, foreseen, timelines

    file = f"{run.path / RESULT}, resources.plan: "
    plan: Plan = checked(TypeAdapter(Plan), values, lambda text: DataError(file + text))
    shown = min(plan.num_batches, MOST_BATCHES)
    measured = [op for op in traced(run) if op.step < shown]
    lines = timelines(foreseen(plan, shown), measured, plan)
    drawn = (
        f"<p>The first {shown} of {plan.num_batches:,} batches of an epoch.</p>"
        if shown < plan.num_batches
        else ""
    )
    return f"<style>{TIMELINE_STYLE}</style>{table(plan.rows())}{drawn}{lines}"


def traced(run: RunFiles) -> list[StageRun]:
    """Stages of the epoch that the run's trace holds; none if another run has written that file since."""
    from graphbraid.collective.run.trace import measured_ops

    name = run.settings.get("trace")
    files = [run.path / CONFIG, Path(name or ""), run.path / RESULT]
    if not name or not all(file.is_file() for file in files):
        return []
    begun, written, ended = (file.stat().st_mtime_ns for file in files)
    return measured_ops(Path(name)) if begun <= written <= ended else []


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
