"""Full-graph training side by side with PyG and DGL, in one run.

    python -m benchmarks.fullgraph.beside_peers --graphs GRAPHS

Three layers, hidden width 32, Adam, two threads; every contender is a process of its own, all take turns,
the median of the repeats counts. PyG runs both ways that its documentation shows: with an ``edge_index`` and
with a ``torch.sparse`` CSR matrix. The model is a plain PyG stack, ours compiled from it: all start from the
same weights and must have the same loss after five epochs. DGL draws its weights in another order; its loss
is shown. The floor is what the step cannot avoid, by ``engine.floor()``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from math import prod
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, peer, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, add_peer_arguments, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.named import LARGE, OF_MODEL, REAL

LARGE_MESSAGES = ("corafull-like", *LARGE)
"""Graphs on which PyG's messages of the features' width take ten seconds."""
HEADS = 4
ROUNDED = "bfloat16 rows"
PEERS = ["pyg", "pyg-csr", "dgl"]


def contenders(graph: str, options: argparse.Namespace) -> list[Contender]:
    """Ours, PyG and DGL on one graph, and ours with rows rounded to bfloat16."""
    arguments = [str(options.graphs / graph), "--model", options.model]
    if options.model == "gat":
        arguments += ["--heads", str(HEADS)]
    group = [Contender("graphbraid", ours("fullgraph.ours", *arguments))]
    for lib in PEERS:
        python = options.peer_python if lib == "dgl" else sys.executable
        group.append(Contender(lib, peer(python, "fullgraph", lib, *arguments)))
    if options.model != "gat":
        rounded = ours("fullgraph.ours", *arguments, "--storage", "bfloat16")
        group.append(Contender(ROUNDED, rounded))
    return group


def check_same_loss(group: list[Contender]) -> None:
    """Ours and PyG's, both ways, start from the same weights and do the same."""
    losses = {c.name: c.runs[0]["loss"] for c in group if c.name in ("graphbraid", "pyg", "pyg-csr")}
    theirs = losses["pyg"]
    if any(abs(loss - theirs) > 2e-4 * max(1.0, abs(theirs)) for loss in losses.values()):
        sys.exit(f"the losses differ: {losses}")


def measure_graph(graph: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    print(graph, file=sys.stderr)
    group = contenders(graph, options)
    is_large = options.large_repeats and graph in (LARGE if options.model == "gcn" else LARGE_MESSAGES)
    run_in_turn(group, options.large_repeats if is_large else options.repeats)
    check_same_loss(group)
    mine = group[0]
    row: dict[str, Any] = {"graph": graph, "model": options.model, "repeats": len(mine.runs)}
    for c in group:
        above = c.median("peak_rss_gb") - c.median("data_rss_gb")
        row[c.name] = {"epoch_s": c.median("epoch_s"), "above_data_gb": above, "runs": c.runs}
    if all(floors := [run["floor_s"] for run in mine.runs]):
        row["floor_s"] = statistics.median(floors)
        row["floor_rates"] = mine.runs[0]["floor_rates"]
        row["doubt"] = next((run["doubt"] for run in mine.runs if run["doubt"]), None)
    row["ratio"] = {c.name: c.median("epoch_s") / mine.median("epoch_s") for c in group[1:]}
    return row


def geometric_mean(values: list[float]) -> float:
    """The geometric mean of positive numbers."""
    return float(prod(values) ** (1 / len(values)))


def show(rows: list[dict[str, Any]]) -> None:
    """Print the tables."""
    console = Console(width=150)
    table = Table(
        "graph",
        "graphbraid ms",
        "over its floor",
        ROUNDED,
        *[f"{p} ms (x)" for p in PEERS],
        "MB above the data: ours",
        *PEERS,
        "loss",
    )
    for row in rows:
        table.add_row(
            row["graph"],
            f"{1e3 * row['graphbraid']['epoch_s']:.1f}",
            f"{row['graphbraid']['epoch_s'] / row['floor_s']:.2f}" if "floor_s" in row else "",
            f"{1e3 * row[ROUNDED]['epoch_s']:.1f}" if ROUNDED in row else "",
            *[f"{1e3 * row[p]['epoch_s']:.0f} ({row['ratio'][p]:.1f})" for p in PEERS],
            *[f"{1e3 * row[p]['above_data_gb']:.0f}" for p in ("graphbraid", *PEERS)],
            " ".join(str(row[p]["runs"][0]["loss"]) for p in ("graphbraid", *PEERS)),
        )
    console.print(table)
    for lib in PEERS:
        mean = geometric_mean([row["ratio"][lib] for row in rows])
        console.print(f"geometric mean over {lib}: {mean:.1f}x")


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    add_peer_arguments(parser)
    parser.add_argument("--names", nargs="+", help="graphs; default: the model's generated ones")
    parser.add_argument("--real", action="store_true", help="the real graphs, made by benchmarks.graphs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default="gcn", choices=["gcn", "sage", "gin", "gat"])
    parser.add_argument(
        "--large-repeats", type=int, help="repeats on graphs whose epochs take PyG ten seconds"
    )
    add_out_argument(parser)
    options = parser.parse_args()
    rows = []
    for graph in options.names or (REAL if options.real else OF_MODEL[options.model]):
        rows.append(measure_graph(graph, options))
        named = {f"{graph}, {options.model}": rows[-1]}
        print("wrote", write_rows("fullgraph", named, repeats=options.repeats, out=options.out))
    show(rows)


if __name__ == "__main__":
    main()
