"""Full-graph R-GCN side by side with PyG and DGL, in one run.

    python -m benchmarks.fullgraph.relational --graphs GRAPHS [--share 0.1]

A generated graph of the size of ogbn-mag times ``--share``, with the reverse of each relation. Every
contender starts from the same weights on the same features and must have the same loss after the same
epochs; every one is a process of its own, all take turns, and the median of the repeats counts. PyG's
``FastRGCNConv`` (``--libraries pyg-fast``) is left out unless asked for: it holds a weight matrix for each
edge, which at a tenth of the size does not fit into 24 GiB.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, peer, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, add_peer_arguments, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.peers.relational import LIBRARIES
from benchmarks.sampling.typed_graphs import make


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The row, once all contenders agree."""
    folder = str(make(options.graphs / "typed", "mag-like", Path(), options.share))
    flags = [folder, "--hidden", str(options.hidden), "--epochs", str(options.epochs)]
    group = [Contender("graphbraid", ours("fullgraph.relational_ours", *flags))]
    for lib in options.libraries:
        python = options.peer_python if lib == "dgl" else sys.executable
        group.append(Contender(lib, peer(python, "relational", lib, *flags)))
    run_in_turn(group, options.repeats)
    losses = {c.name: c.runs[0]["loss"] for c in group}
    if any(abs(loss - losses["graphbraid"]) > 2e-4 * losses["graphbraid"] for loss in losses.values()):
        sys.exit(f"the losses differ: {losses}")
    row: dict[str, Any] = {"graph": "mag-like", "share": options.share, "hidden": options.hidden}
    for c in group:
        above = c.median("peak_rss_gb") - c.median("data_rss_gb")
        row[c.name] = {"epoch_s": c.median("epoch_s"), "above_data_gb": above, "runs": c.runs}
    row["floor_s"] = group[0].median("floor_s")
    row["ratio"] = {c.name: c.median("epoch_s") / group[0].median("epoch_s") for c in group[1:]}
    return row


def show(row: dict[str, Any]) -> None:
    """Print the table."""
    table = Table("contender", "epoch ms", "x", "MB above the data", "loss")
    for name in ("graphbraid", *row["ratio"]):
        table.add_row(
            name,
            f"{1e3 * row[name]['epoch_s']:.0f}",
            f"{row['ratio'].get(name, 1.0):.1f}",
            f"{1e3 * row[name]['above_data_gb']:.0f}",
            f"{row[name]['runs'][0]['loss']:.4f}",
        )
    Console(width=100).print(table, f"floor {1e3 * row['floor_s']:.0f} ms")


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    add_peer_arguments(parser)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=["pyg", "dgl"])
    parser.add_argument("--share", type=float, default=0.1, help="of the generated graph's size")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    add_out_argument(parser)
    options = parser.parse_args()
    row = measure(options)
    write_rows("fullgraph_relational", {"mag-like": row}, repeats=options.repeats, out=options.out)
    show(row)


if __name__ == "__main__":
    main()
