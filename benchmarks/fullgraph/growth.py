"""Epochs of a full-graph GCN while an RMAT graph grows: nanoseconds an edge, their floor, and peak memory.

    python -m benchmarks.fullgraph.growth --graphs GRAPHS

Each graph has four times the nodes and edges of the one before; 64 features, a tenth of the nodes to train
on. The GCN has three layers of width 32, Adam, two threads. A graph is made where GRAPHS does not have it.
Every graph is a process of its own, and the median of its epochs counts.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.folder import save_parts
from benchmarks.graphs.rmat import Rmat, make

MILLIONS = (0.8, 3.2, 12.8, 51.2)
"""Directed edges that are drawn; loops and repeated ones go."""
EDGES_PER_NODE = 25


def measure(millions: float, options: argparse.Namespace) -> dict[str, Any]:
    """One graph."""
    folder = options.graphs / f"rmat-{millions:g}m"
    if not folder.exists():
        drawn = int(millions * 5e5)
        spec = Rmat(
            num_nodes=2 * drawn // EDGES_PER_NODE,
            num_drawn=drawn,
            num_features=64,
            num_classes=16,
            train_share=0.1,
        )
        save_parts(make(spec), folder)
    arguments = (str(folder), "--epochs", str(options.epochs))
    run = Contender(folder.name, ours("fullgraph.ours", *arguments))
    run_in_turn([run], options.repeats)
    middle = sorted(run.runs, key=lambda found: found["epoch_s"])[options.repeats // 2]
    num_edges = len(np.load(folder / "indices.npy", mmap_mode="r"))
    return {"num_edges": num_edges, "ns_per_edge": 1e9 * middle["epoch_s"] / num_edges, **middle}


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--millions", type=float, nargs="+", default=MILLIONS, help="edges of the graphs")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1)
    add_out_argument(parser)
    options = parser.parse_args()
    table = Table("edges", "epoch ms", "ns an edge", "over its floor", "peak GB", "data GB", "compile s")
    for millions in options.millions:
        row = measure(millions, options)
        write_rows(
            "fullgraph_growth", {f"{millions:g} M edges": row}, repeats=options.repeats, out=options.out
        )
        table.add_row(
            f"{row['num_edges']:,}",
            f"{1e3 * row['epoch_s']:.1f}",
            f"{row['ns_per_edge']:.1f}",
            f"{row['epoch_s'] / row['floor_s']:.2f}",
            f"{row['peak_rss_gb']:.2f}",
            f"{row['data_rss_gb']:.2f}",
            f"{row['compile_s']:.1f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
