"""Tables of accuracy."""

from __future__ import annotations

from benchmarks.common.rows import Row, read_rows
from benchmarks.tables.markdown import table, where


def published() -> str:
    """Ours beside the literature's figures."""
    return published_of([row for row in read_rows("accuracy") if row["literature"] is not None])


def sampled_beside_full() -> str:
    """Sampled beside full-batch training of the same model."""
    return sampled_beside_full_of([row for row in read_rows("accuracy") if row["literature"] is None])


def published_of(rows: list[Row]) -> str:
    """A line per dataset and model."""
    lines = (
        [
            row["dataset"],
            row["model"].upper(),
            _figure(row),
            f"{row['literature']:.1f} ({row['source']})",
            f"{row['mean'] - row['literature']:+.2f}",
        ]
        for row in rows
    )
    heads = ("dataset", "model", "graphbraid", "published", "difference")
    return "\n\n".join([table(heads, lines), *_wheres(rows)])


def sampled_beside_full_of(rows: list[Row]) -> str:
    """A line per dataset of which both arms were run."""
    lines = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        arms = {row["train"]["mode"]: row for row in rows if row["dataset"] == dataset}
        if len(arms) == 2:
            sampled, full = arms["sampled"], arms["full"]
            difference = f"{sampled['mean'] - full['mean']:+.2f}"
            lines.append([dataset, _figure(sampled), _figure(full), difference])
    heads = ("dataset", "sampled", "full batch", "difference")
    return "\n\n".join([table(heads, lines), *_wheres(rows)])


def beside_pyg() -> str:
    """Full-graph training beside PyG's, with masks of its own and with the engine's."""
    rows = read_rows("full_accuracy")
    lines = (
        [
            row["dataset"],
            f"{row['graphbraid_mean']:.2f}",
            f"{row['pyg_mean']:.2f}",
            _difference(row["pyg"]),
            f"{row['pyg_same_masks_mean']:.2f}",
            _difference(row["pyg_same_masks"]),
            f"{row['pyg_same_masks']['largest_relative_loss_difference']:.1e}",
        ]
        for row in rows
    )
    heads = (
        "dataset",
        "graphbraid",
        "PyG",
        "difference",
        "PyG, same masks",
        "difference",
        "losses of 20 epochs with the same masks differ by at most",
    )
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.accuracy.beside_pyg")])


def _difference(of: Row) -> str:
    return f"{of['difference']:+.2f} ± {of['standard_error']:.2f}"


def _figure(row: Row) -> str:
    return f"{row['mean']:.2f} ± {row['deviation']:.2f}"


def _wheres(rows: list[Row]) -> list[str]:
    """A paragraph for each number of seeds, which a row says of itself."""
    return [
        f"Mean ± standard deviation over {seeds} seeds (0 to {seeds - 1}), percent of the test nodes.\n\n"
        + where([row for row in rows if len(row["runs"]) == seeds], "benchmarks.accuracy.literature")
        for seeds in sorted({len(row["runs"]) for row in rows})
    ]
