"""What many seeds' runs come to."""

from __future__ import annotations

import statistics
from typing import Any


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
