"""The tables of benchmarks.accuracy, for the terminal and for docs/results.md."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT

DOCS = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation of the test accuracies, in percent."""
    values = [one["test"] for one in runs]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "deviation": spread}


def line_of(row: dict[str, Any]) -> str:
    """A row for the terminal."""
    seconds = statistics.fmean(one["seconds"] for one in row["runs"])
    published = "" if row["literature"] is None else f"  published {row['literature']:.1f}"
    epochs = statistics.fmean(one["epochs"] for one in row["runs"])
    return (
        f"{row['name']:30} {row['mean']:.2f} ± {row['deviation']:.2f}{published}"
        f"  ({len(row['runs'])} seeds, {epochs:.0f} epochs, {seconds:.1f} s each)"
    )


def tables(results: dict[str, Any]) -> str:
    """Both tables and where they were measured, as Markdown."""
    rows = results["rows"]
    parts = [_published([r for r in rows if r["literature"] is not None])]
    parts.append(_sampled_beside_full([r for r in rows if r["literature"] is None]))
    parts += [f"<sub>{where}</sub>" for where in dict.fromkeys(_where(row) for row in rows)]
    return "\n\n".join(part for part in parts if part)


def write_docs(path: Path, docs: Path = DOCS) -> None:
    """Put the tables of the results at ``path`` between the markers of ``docs``."""
    text = docs.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    docs.write_text(f"{before}{BEGIN}\n\n{tables(json.loads(path.read_text()))}\n\n{END}{after}")


def _published(rows: list[dict[str, Any]]) -> str:
    lines = ["| dataset | model | graphbraid | published | difference |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        if "mean" in row:
            difference = row["mean"] - row["literature"]
            lines.append(
                f"| {row['dataset']} | {row['model'].upper()} | {_figure(row)} | "
                f"{row['literature']:.1f} ({row['source']}) | {difference:+.2f} |"
            )
    return "\n".join(lines) if len(lines) > 2 else ""


def _sampled_beside_full(rows: list[dict[str, Any]]) -> str:
    lines = ["| dataset | sampled | full batch | difference |", "| --- | --- | --- | --- |"]
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        arms = {r["train"]["mode"]: r for r in rows if r["dataset"] == dataset and "mean" in r}
        if len(arms) == 2:
            sampled, full = arms["sampled"], arms["full"]
            difference = sampled["mean"] - full["mean"]
            lines.append(f"| {dataset} | {_figure(sampled)} | {_figure(full)} | {difference:+.2f} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _figure(row: dict[str, Any]) -> str:
    return f"{row['mean']:.2f} ± {row['deviation']:.2f}"


def _where(row: dict[str, Any]) -> str:
    machine, seeds = row["machine"], len(row["runs"])
    return (
        f"Mean ± standard deviation over {seeds} seeds (0 to {seeds - 1}), percent of the test nodes; "
        f"{machine['cpu']}, {machine['cores']} cores, {machine['date']}, torch {machine['torch']}, "
        f"kernels {machine['kernels']}"
    )
