"""Renumbering the nodes of a large graph beside ``dgl.reorder_graph``: seconds and peak memory.

    python -m benchmarks.tiers.reordering --graphs GRAPHS [--edges 100000000]

A generated graph without communities or features; the order is by falling degree and is made beforehand.
Both libraries' graphs must have the same edges under the same ids afterwards. Each contender is a process of
its own; they take turns, and the median counts. Peak memory counts graph, order and result, from where the
library was imported, and stands beside the bytes of the library's own topology.
"""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, peer, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, add_peer_arguments, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.tiers import topology

GOAL, MOST_MEMORY = 10.0, 2.2
"""How much faster than the peer, and the peak as a multiple of the topology."""


def summary(mine: Contender, theirs: Contender) -> dict[str, Any]:
    """One row of the results."""
    if len({run["digest"] for run in (*mine.runs, *theirs.runs)}) != 1:
        sys.exit("the reordered graphs differ: the libraries' edges or ids are not the same")
    row: dict[str, Any] = {"num_edges": mine.runs[0]["num_edges"]}
    for contender in (mine, theirs):
        times = {key: contender.median(key) for key in contender.runs[0] if key.endswith("seconds")}
        peak = max(run["peak_bytes"] / run["topology_bytes"] for run in contender.runs)
        row[contender.name] = {**times, "peak_of_topology": peak, "runs": contender.runs}
    row["ratio"] = theirs.median("seconds") / mine.median("seconds")
    # What a reordering cannot do without: the topology read and written once, each edge's new id looked up.
    row["floor_seconds"] = max(mine.median("copy_seconds"), mine.median("lookup_seconds"))
    return row


def show(row: dict[str, Any]) -> None:
    """Print the table."""
    table = Table("library", "seconds", "peak / topology", title=f"{row['num_edges']:,} edges")
    for name in ("graphbraid", "dgl"):
        found = row[name]
        table.add_row(name, f"{found['seconds']:.2f}", f"{found['peak_of_topology']:.2f}")
    console, mine = Console(width=120), row["graphbraid"]
    console.print(table)
    console.print(f"{row['ratio']:.1f}x dgl.reorder_graph (goal {GOAL:g}x); peak goal {MOST_MEMORY}")
    console.print(
        f"a copy of the ids takes {mine['copy_seconds']:.2f} s, looking all of them up "
        f"{mine['lookup_seconds']:.2f} s, ordering by degree as well {mine['degree_seconds']:.2f} s"
    )


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    add_peer_arguments(parser)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    add_out_argument(parser)
    options = parser.parse_args()
    folder = str(topology.make(options.graphs, options.edges))
    flags = ("--threads", str(options.threads))
    mine = Contender("graphbraid", ours("tiers.reordering_ours", folder, *flags))
    theirs = Contender("dgl", peer(options.peer_python, "reordering", folder, *flags))
    run_in_turn([mine, theirs], options.repeats)
    row = summary(mine, theirs) | {"threads": options.threads}
    name = f"{options.edges} edges, {options.threads} threads"
    write_rows("tiers_reordering", {name: row}, repeats=options.repeats, out=options.out)
    show(row)


if __name__ == "__main__":
    main()
