"""Peak memory of a training run while the graph grows 1, 4 and 16 times.

    python -m benchmarks.memory.sampled

Block-model graphs of one average degree and feature width, loaded into memory; the Trainer runs the same
number of steps of sampled GraphSAGE on each. A run may need graph + features + a constant (the interpreter,
PyTorch, the batches): the constant is what the smallest run needs beyond its data, and the table shows how
near the larger ones stay to data + constant.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, run_in_turn
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import Graph, datasets
from graphbraid.datasets.synthetic import BlockModel, generate

GROWTH = (1, 4, 16)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per size."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for factor in GROWTH:
            store = Path(folder) / str(factor)
            datasets.save_store(make_graph(options, nodes=factor, edges=factor), store)
            run = Contender(f"{factor}x", ours("memory.sampled_run", str(store)))
            run_in_turn([run], options.repeats)
            data = run.runs[0]["graph_bytes"]
            rows.append(
                {"growth": factor, **run.runs[0], "peak_rss": run.median("peak_rss"), "runs": run.runs}
            )
            rows[-1]["beyond_data"] = rows[-1]["peak_rss"] - data
    constant = rows[0]["beyond_data"]
    for row in rows:
        row["ratio"] = row["peak_rss"] / (row["graph_bytes"] + constant)
    return rows


def make_graph(options: argparse.Namespace, *, nodes: int, edges: int) -> Graph:
    """A graph of the embedded kind with so many times the nodes and edges."""
    spec = BlockModel(
        num_nodes=options.nodes * nodes,
        num_edges=options.edges * edges,
        num_classes=16,
        blocks_per_class=12 * nodes,
        num_features=options.features,
    )
    return generate(spec)


def add_graph_arguments(parser: argparse.ArgumentParser, *, edges: int) -> None:
    """The size of the smallest graph."""
    parser.add_argument("--nodes", type=int, default=300_000)
    parser.add_argument("--edges", type=int, default=edges)
    parser.add_argument("--features", type=int, default=64)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graph_arguments(parser, edges=6_000_000)
    parser.add_argument("--repeats", type=int, default=1)
    add_out_argument(parser)
    options = parser.parse_args()
    rows = measure(options)
    heads = ["growth", "nodes", "edges", "data GB", "peak RSS GB", "beyond the data GB"]
    table = Table(*heads, "peak / (data + constant)")
    for row in rows:
        giga = [row[key] / 1e9 for key in ("graph_bytes", "peak_rss", "beyond_data")]
        table.add_row(
            f"{row['growth']}x",
            f"{row['num_nodes']:,}",
            f"{row['num_edges']:,}",
            *[f"{g:.2f}" for g in giga],
            f"{row['ratio']:.2f}",
        )
    Console(width=130).print(table)
    named = {f"{row['growth']}x": row for row in rows}
    print("wrote", write_rows("memory", named, repeats=options.repeats, out=options.out))


if __name__ == "__main__":
    main()
