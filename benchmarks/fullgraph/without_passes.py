"""What each lowering pass is worth: epochs with all of them, with each switched off, and with none.

    python -m benchmarks.fullgraph.without_passes

The model of ``benchmarks.fullgraph.beside_peers``. The variants of a graph share a process and take turns by
the epoch; the median counts.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.named import OF_MODEL


def measure_graph(graph: str, options: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of an epoch of each variant, and how they spread."""
    rounds = ["--rounds", str(options.rounds)]
    contender = Contender("ablation", ours("fullgraph.ablation", str(options.graphs / graph), *rounds))
    run_in_turn([contender], 1)
    variants: dict[str, Any] = contender.runs[0]["variants"]
    medians = {name: found["median_s"] for name, found in variants.items()}
    return {"graph": graph, "model": "gcn", "ablation": medians, "spread": variants}


def show(rows: list[dict[str, Any]]) -> None:
    """Print milliseconds an epoch by variant."""
    names = list(rows[0]["ablation"])
    table = Table("ms an epoch", *names)
    for row in rows:
        table.add_row(row["graph"], *[f"{1e3 * row['ablation'][n]:.1f}" for n in names])
    Console(width=150).print(table)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", help="graphs; default: the generated ones")
    parser.add_argument("--rounds", type=int, default=15, help="epochs of each variant")
    add_out_argument(parser)
    options = parser.parse_args()
    rows = []
    for graph in options.names or OF_MODEL["gcn"]:
        rows.append(measure_graph(graph, options))
        named = {f"{graph}, gcn": rows[-1]}
        print("wrote", write_rows("fullgraph_ablation", named, repeats=options.rounds, out=options.out))
    show(rows)


if __name__ == "__main__":
    main()
