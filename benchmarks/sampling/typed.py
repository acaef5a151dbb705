"""Mini-batches of graphs with types side by side with GraphBolt and DGL, in one run.

    python -m benchmarks.sampling.typed --graphs GRAPHS --data ARCHIVES

Sampling alone with 1 and 2 workers, fanouts 10 and 5 per relation, layout ``blocks`` (that of both peers): on
a generated graph of the size of ogbn-mag, 42 M edges with their reverses, and on archives. Every contender
is a process of its own, all take turns, and the median of the repeats counts. The contenders must agree on
the nodes and edges of a batch within 1 %.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, peer, run_in_turn
from benchmarks.common.options import (
    add_data_argument,
    add_graphs_argument,
    add_out_argument,
    add_peer_arguments,
    parser_of,
)
from benchmarks.common.rows import write_rows
from benchmarks.sampling.beside_peers import PEERS, summary
from benchmarks.sampling.typed_graphs import make

BATCH_SIZES = {"mag-like": 1024, "het_dblp": 256, "het_movielens_small": 256}


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows, each written as soon as it is there."""
    rows = []
    for graph, workers in product(options.names, (1, 2)):
        name = f"{graph}, {workers} workers"
        print(name, file=sys.stderr)
        folder = str(make(options.graphs / "typed", graph, options.data, options.share))
        flags = [folder, "--workers", str(workers), "--batches", str(options.batches)]
        flags += ["--batch-size", str(BATCH_SIZES[graph])]
        group = [Contender("graphbraid", ours("sampling.typed_ours", *flags))]
        group += [Contender(lib, peer(options.peer_python, "typed_sampling", lib, *flags)) for lib in PEERS]
        run_in_turn(group, options.repeats)
        row = {"graph": graph, "share": options.share, "workers": workers, **summary(group)}
        write_rows("typed_sampling", {name: row}, repeats=options.repeats, out=options.out)
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(
        "graph", "workers", "graphbraid ms", *[f"{p} ms" for p in PEERS], *[f"x {p}" for p in PEERS]
    )
    for row in rows:
        table.add_row(
            row["graph"],
            str(row["workers"]),
            f"{row['graphbraid']['ms_per_batch']:.2f}",
            *[f"{row[p]['ms_per_batch']:.1f}" for p in PEERS],
            *[f"{row['ratio'][p]:.1f}" for p in PEERS],
        )
    Console(width=120).print(table)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    add_peer_arguments(parser)
    add_data_argument(parser)
    parser.add_argument("--names", nargs="+", choices=list(BATCH_SIZES), default=list(BATCH_SIZES))
    parser.add_argument("--share", type=float, default=1.0, help="of the generated graph's size")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    add_out_argument(parser)
    show(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
