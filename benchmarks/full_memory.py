"""Peak memory of full-graph training while the edges double at fixed nodes, beside PyG and DGL.

    python -m benchmarks.full_memory --peer-python DGL_ENV/bin/python

Block-model graphs; a three-layer GCN of width 32, Adam, five epochs; every contender is a process of its own.
"Above the data" is the process's peak less what it held once the graph was loaded. Ours keeps the reversed
edges of a directed graph beside its matrices: 4 to 8 bytes an edge, and nothing that has an edge's rows.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import fullgraph, graphs
from benchmarks.common import add_peer_arguments, run_in_turn, write_results
from graphbraid.datasets.blockmodel import BlockModel, generate

GROWTH = (1, 2, 4)
SHOWN = ("graphbraid", "pyg", "dgl")


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per number of edges."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        options.graphs, options.model = Path(folder), "gcn"
        for factor in GROWTH:
            spec = BlockModel(
                num_nodes=options.nodes,
                num_edges=options.edges * factor,
                num_classes=16,
                blocks_per_class=12,
                num_features=options.features,
            )
            graph = generate(spec)
            graphs.save(graph, options.graphs / "graph")
            group = [c for c in fullgraph.contenders("graph", options) if c.name in SHOWN]
            run_in_turn(group, options.repeats)
            row: dict[str, Any] = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
            for c in group:
                above = c.median("peak_rss_gb") - c.median("data_rss_gb")
                row[c.name] = {"above_data_gb": above, "runs": c.runs}
            rows.append(row)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_peer_arguments(parser)
    parser.add_argument("--nodes", type=int, default=300_000)
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = measure(options)
    table = Table("nodes", "edges", *[f"{name} MB above the data" for name in SHOWN])
    for row in rows:
        megabytes = [f"{1e3 * row[name]['above_data_gb']:.0f}" for name in SHOWN]
        table.add_row(f"{row['num_nodes']:,}", f"{row['num_edges']:,}", *megabytes)
    Console(width=110).print(table)
    print("wrote", write_results("full_memory", {"rows": rows}, options.out))


if __name__ == "__main__":
    main()
