"""The display of a run: its end and its curves, from its result and the rows of its epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphbraid.figures.charts import Points, bar_chart, line_chart

Epochs = Sequence[Mapping[str, float]]
"""A row per epoch, with the columns of ``metrics.csv``; a column that an epoch lacks is missing."""

STAGES = ("sample", "gather", "wait", "forward", "backward", "evaluate", "checkpoint")
"""Stages whose seconds the rows have."""


def result_rows(result: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return how a run ended, from the content of ``result.json``."""
    rows: list[tuple[str, object]] = [
        ("status", result["status"]),
        ("epochs, steps", f"{result['num_epochs']:,}, {result['global_step']:,}"),
        ("seconds", result["seconds"]),
        (f"best epoch by {result['monitor']}", result["best_epoch"]),
        (f"validation {result['monitor']}", result["best_value"]),
        ("threshold", result.get("threshold")),
    ]
    rows += [(f"test {name}", value) for name, value in result["test"].items()]
    return [(name, value) for name, value in rows if value is not None]


def line(epochs: Epochs, column: str) -> Points:
    """Return the points of a column over the epochs."""
    return [(row["epoch"], row[column]) for row in epochs if column in row]


def metric_names(epochs: Epochs) -> list[str]:
    """Return the columns of validation metrics."""
    names = dict.fromkeys(name for row in epochs for name in row if name.startswith("val_"))
    return [name for name in names if name != "val_loss"]


def epoch_charts(epochs: Epochs) -> list[str]:
    """Draw curves of losses, of each validation metric, and of the learning rate if it changes."""
    losses = {"training": line(epochs, "train_loss"), "validation": line(epochs, "val_loss")}
    charts = [line_chart(losses, x="epoch", y="Loss")]
    charts += [
        line_chart({name: line(epochs, name)}, x="epoch", y=f"Validation {name[4:]}")
        for name in metric_names(epochs)
    ]
    rate = line(epochs, "learning_rate")
    if len({y for _, y in rate}) > 1:
        charts.append(line_chart({"learning rate": rate}, x="epoch", y="Learning rate"))
    return charts


def stage_chart(epochs: Epochs) -> str:
    """Draw the seconds of each stage; sampling and gathering run beside the model."""
    sums = {stage: sum(row.get(f"{stage}_seconds", 0.0) for row in epochs) for stage in STAGES}
    total = sum(row.get("epoch_seconds", 0.0) for row in epochs)
    title = f"Seconds of each stage ({total:.3g} s in all epochs)"
    return bar_chart(
        {stage: seconds for stage, seconds in sums.items() if seconds > 0}, title=title, unit=" s"
    )
