"""Mini-batch preparation side by side with GraphBolt and DGL, in one run.

    python -m benchmarks.sampling.beside_peers --graphs GRAPHS

For each graph: sampling alone, and sampling with gathering of float32 rows, with 1 and 2 workers; 1,024
seeds, fanouts 15,10,5, layout ``blocks`` (that of both peers). Every contender is a process of its own, all
take turns, and the median of the repeats counts. The contenders must agree on the nodes and edges of a batch
within 1 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, peer, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, add_peer_arguments, parser_of
from benchmarks.common.rows import write_rows

GRAPHS = ["rmat-1m", "products-lite", "web_cnr2000"]
PEERS = ["graphbolt", "dgl"]
WORK = {False: "sample", True: "sample + gather"}


def contenders(graph: str, workers: int, features: bool, options: argparse.Namespace) -> list[Contender]:
    """Ours and the peers on one graph with one setting."""
    folder = str(options.graphs / graph)
    flags = ["--workers", str(workers), "--batches", str(options.batches)]
    flags += ["--batch-size", str(options.batch_size)] + ([] if features else ["--no-features"])
    peers = [Contender(lib, peer(options.peer_python, "sampling", lib, folder, *flags)) for lib in PEERS]
    group = [Contender("graphbraid", ours("sampling.ours", folder, *flags)), *peers]
    return [*group, Contender("limit", ours("sampling.ours", folder, *flags, "--limit"))]


def check_same_work(group: list[Contender]) -> None:
    """A contender that samples less must not win by it."""
    for key in ("nodes_per_batch", "edges_per_batch"):
        sizes = {c.name: c.median(key) for c in group}
        if max(sizes.values()) > 1.01 * min(sizes.values()):
            sys.exit(f"the contenders do not do the same work: {key} {sizes}")


def summary(group: list[Contender]) -> dict[str, Any]:
    """One row of the table."""
    mine, *peers = [c for c in group if c.name != "limit"]
    check_same_work([mine, *peers])
    row: dict[str, Any] = {
        c.name: {"ms_per_batch": c.median("ms_per_batch"), "runs": c.runs} for c in [mine, *peers]
    }
    row["ratio"] = {c.name: c.median("ms_per_batch") / mine.median("ms_per_batch") for c in peers}
    return row


def limits(limit: Contender) -> dict[str, Any]:
    """The machine's rates for the same batches, and the best of those that read at random."""
    ways = limit.runs[0]["gb_per_s"]
    rates = {way: statistics.median(run["gb_per_s"][way] for run in limit.runs) for way in ways}
    best = max(rate for way, rate in rates.items() if way != "sequential copy")
    return {"ways_gb_per_s": rates, "limit_gb_per_s": best}


def gather_beside_limit(mine: Contender, limit: float) -> dict[str, Any]:
    """Our gather stage beside the machine's rate of copying random rows."""
    # A worker gathers whole batches alone: the stage's rate is that of one thread.
    rate = mine.median("gather_gb_per_s") * mine.runs[0]["workers"]
    return {"gb_per_s": rate, "share_of_limit": rate / limit}


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows, each written as soon as it is there."""
    rows = []
    for graph, features, workers in product(options.names, (False, True), (1, 2)):
        name = f"{graph}, {WORK[features]}, {workers} workers"
        print(name, file=sys.stderr)
        group = contenders(graph, workers, features, options)
        run_in_turn(group, options.repeats)
        row = {"graph": graph, "features": features, "workers": workers, **summary(group)}
        row["limit"] = limits(group[-1])
        if features:
            row["gather"] = gather_beside_limit(group[0], row["limit"]["limit_gb_per_s"])
        write_rows("sampling", {name: row}, repeats=options.repeats, out=options.out)
        rows.append(row)
    return rows


def scaling(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How much faster two workers are than one, beside what the machine's memory allows."""
    by_key = {(r["graph"], r["features"], r["workers"]): r for r in rows}
    out = []
    for (graph, features, workers), one in by_key.items():
        if workers == 1:
            two = by_key[graph, features, 2]
            speedup = one["graphbraid"]["ms_per_batch"] / two["graphbraid"]["ms_per_batch"]
            limit = two["limit"]["limit_gb_per_s"] / one["limit"]["limit_gb_per_s"]
            out.append({"graph": graph, "features": features, "speedup": speedup, "limit_speedup": limit})
    return out


def show(rows: list[dict[str, Any]], scales: list[dict[str, Any]]) -> None:
    """Print the tables."""
    heads = [
        "graph",
        "work",
        "workers",
        "graphbraid ms",
        *[f"{p} ms" for p in PEERS],
        *[f"x {p}" for p in PEERS],
    ]
    table = Table(*heads, "gather GB/s (of limit)")
    for row in rows:
        gather = row.get("gather")
        table.add_row(
            row["graph"],
            WORK[row["features"]],
            str(row["workers"]),
            f"{row['graphbraid']['ms_per_batch']:.2f}",
            *[f"{row[p]['ms_per_batch']:.1f}" for p in PEERS],
            *[f"{row['ratio'][p]:.1f}" for p in PEERS],
            f"{gather['gb_per_s']:.1f} ({gather['share_of_limit']:.0%})" if gather else "",
        )
    console = Console(width=140)
    console.print(table)
    for scale in scales:
        work, alone = (
            ("sample + gather", "copying the rows alone")
            if scale["features"]
            else ("sample", "reading the adjacency lines alone")
        )
        console.print(
            f"{scale['graph']}, {work}: two workers are {scale['speedup']:.2f}x one "
            f"({alone}: {scale['limit_speedup']:.2f}x)"
        )


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    add_peer_arguments(parser)
    parser.add_argument("--names", nargs="+", default=GRAPHS)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    add_out_argument(parser)
    options = parser.parse_args()
    rows = measure(options)
    show(rows, scaling(rows))


if __name__ == "__main__":
    main()
