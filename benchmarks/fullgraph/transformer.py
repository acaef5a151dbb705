"""Full-graph heterogeneous graph transformer (HGT) side by side with PyG, in one run.

    python -m benchmarks.fullgraph.transformer --graphs GRAPHS [--share 0.05]

A generated graph of the size of ogbn-mag times ``--share``, with the reverse of each relation. Both train the
model of PyG's example from the same weights and must have the same loss after the same epochs: PyG as it is,
and ours compiled. Each is a process of its own, they take turns, and the median of the repeats counts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, peer, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.sampling.typed_graphs import make


def measure(options: argparse.Namespace, heads: int) -> dict[str, Any]:
    """The row of a number of heads, once both agree."""
    folder = str(make(options.graphs / "typed", "mag-like", Path(), options.share))
    flags = [folder, "--hidden", str(options.hidden), "--epochs", str(options.epochs), "--heads", str(heads)]
    group = [
        Contender("graphbraid", ours("fullgraph.transformer_ours", *flags)),
        Contender("pyg", peer(sys.executable, "transformer", *flags)),
    ]
    run_in_turn(group, options.repeats)
    mine, theirs = group
    losses = [c.runs[0]["loss"] for c in group]
    if abs(losses[0] - losses[1]) > 2e-4 * losses[1]:
        sys.exit(f"the losses differ: {losses}")
    row: dict[str, Any] = {"share": options.share, "hidden": options.hidden, "heads": heads}
    for c in group:
        above = c.median("peak_rss_gb") - c.median("data_rss_gb")
        row[c.name] = {"epoch_s": c.median("epoch_s"), "above_data_gb": above, "runs": c.runs}
    return row | {"ratio": theirs.median("epoch_s") / mine.median("epoch_s")}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("heads", "graphbraid ms", "PyG ms (x)", "GB above the data", "loss")
    for row in rows:
        mine, theirs = row["graphbraid"], row["pyg"]
        table.add_row(
            str(row["heads"]),
            f"{1e3 * mine['epoch_s']:.0f}",
            f"{1e3 * theirs['epoch_s']:.0f} ({row['ratio']:.1f})",
            f"{mine['above_data_gb']:.2f} / {theirs['above_data_gb']:.2f}",
            f"{mine['runs'][0]['loss']:.4f} / {theirs['runs'][0]['loss']:.4f}",
        )
    Console(width=100).print(table)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--share", type=float, default=0.05, help="of the generated graph's size")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    add_out_argument(parser)
    options = parser.parse_args()
    rows = {f"mag-like, {heads} heads": measure(options, heads) for heads in options.heads}
    write_rows("fullgraph_transformer", rows, repeats=options.repeats, out=options.out)
    show(list(rows.values()))


if __name__ == "__main__":
    main()
