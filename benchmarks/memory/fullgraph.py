"""Peak memory of full-graph training while the edges double at fixed nodes, beside PyG and DGL.

    python -m benchmarks.memory.fullgraph

Block-model graphs; a three-layer GCN of width 32, Adam, five epochs; every contender is a process of its own.
"Above the data" is the process's peak less what it held once the graph was loaded; "engine" what ours says it
takes. Its matrices do not depend on the edges; the ids of edges it keeps do (of renumbered or pruned levels,
and reversed ones), and so do the nodes that pruned levels reach.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import run_in_turn
from benchmarks.common.options import add_out_argument, add_peer_arguments, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.fullgraph.beside_peers import contenders
from benchmarks.graphs.folder import save
from benchmarks.memory.sampled import add_graph_arguments, make_graph

GROWTH = (1, 2, 4)
SHOWN = ("graphbraid", "pyg", "pyg-csr", "dgl")


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per number of edges."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        options.graphs, options.model = Path(folder), "gcn"
        for factor in GROWTH:
            graph = make_graph(options, nodes=1, edges=factor)
            save(graph, options.graphs / "graph")
            group = [c for c in contenders("graph", options) if c.name in SHOWN]
            run_in_turn(group, options.repeats)
            row: dict[str, Any] = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
            for c in group:
                above = c.median("peak_rss_gb") - c.median("data_rss_gb")
                row[c.name] = {"above_data_gb": above, "runs": c.runs}
            row["engine_gb"] = group[0].median("engine_gb")
            rows.append(row)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graph_arguments(parser, edges=2_000_000)
    add_peer_arguments(parser)
    parser.add_argument("--repeats", type=int, default=3)
    add_out_argument(parser)
    options = parser.parse_args()
    rows = measure(options)
    table = Table("nodes", "edges", *[f"{name} MB above the data" for name in SHOWN], "engine MB")
    for row in rows:
        megabytes = [f"{1e3 * row[name]['above_data_gb']:.0f}" for name in SHOWN]
        engine = f"{1e3 * row['engine_gb']:.0f}"
        table.add_row(f"{row['num_nodes']:,}", f"{row['num_edges']:,}", *megabytes, engine)
    Console(width=110).print(table)
    named = {f"{row['num_edges']} edges": row for row in rows}
    print("wrote", write_rows("full_memory", named, repeats=options.repeats, out=options.out))


if __name__ == "__main__":
    main()
