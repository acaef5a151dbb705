"""What graphbraid makes of each listed model on a whole graph, and whether it equals PyG.

    python -m benchmarks.fullgraph.models
    python -m benchmarks.fullgraph.models --only GCN --times --nodes 20000
    python -m benchmarks.fullgraph.models --only "plain forward" --times --graph GRAPHS/arxiv-like

The models are written as PyG's examples, OGB's baselines and published repositories have them. Each is
compared on a small graph with PyG in float64: outputs, gradients and buffers of ten steps of Adam, and
predictions; then on sampled mini-batches, trained and evaluated. With ``--times``, steps on a larger
generated graph, or on one of :mod:`benchmarks.graphs`, are timed beside PyG's, in turns.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.fullgraph.models.check import (
    MESSAGES,
    MODELS,
    WHOLLY,
    data_of,
    epochs,
    find,
    find_on_batches,
    stored,
)
from benchmarks.fullgraph.models.listed import Sizes


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="words of the families or names to run")
    parser.add_argument("--times", action="store_true", help="time steps beside PyG's, too")
    parser.add_argument("--nodes", type=int, default=20_000, help="nodes of the graph for --times")
    parser.add_argument("--graph", type=Path, help="folder of another graph for --times")
    parser.add_argument("--degree", type=int, default=20, help="its edges per node")
    parser.add_argument("--hidden", type=int, default=64, help="hidden width for --times")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    add_out_argument(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    columns = ("model", "status", "what stops it", "error", "on batches", "what stops it", "error")
    rows, table = {}, Table(*columns, "ms", "PyG ms")
    for listed in MODELS:
        name = f"{listed.family}: {listed.name}"
        if options.only and not any(word in name for word in options.only):
            continue
        found = find(listed)
        row = {"family": listed.family, "model": listed.name, **asdict(found), "equal": found.equal}
        batched = find_on_batches(listed)
        row |= {f"batches_{key}": value for key, value in asdict(batched).items()}
        row["batches_equal"] = batched.equal
        row["batches_why_other"] = listed.batched.why if listed.batched else ""
        if options.times:
            sizes = Sizes(nodes=options.nodes, channels=options.hidden, hidden=options.hidden)
            if options.graph is None or listed.data == "types":
                data = data_of(listed.data, sizes, options.degree)
            else:
                data, sizes = stored(options.graph, listed.data, sizes)
                row["graph"] = options.graph.name
            row |= epochs(listed, sizes, data, options.repeats)
        rows[name] = row
        times = [f"{1e3 * row[key]:.1f}" if key in row else "" for key in ("graphbraid_s", "pyg_s")]
        texts = []
        for one in (found, batched):
            why = f"{one.part}: {one.reason}" if one.part else ""
            texts += [one.status, why, f"{one.error:.2g}"]
        table.add_row(name, *texts, *times)
        print(name, *texts, *times, file=sys.stderr, flush=True)
    Console(width=160).print(table)
    lowered = [sum(row["status"] == status for row in rows.values()) for status in (WHOLLY, MESSAGES)]
    print(
        f"of {len(rows)} models {lowered[0]} are lowered, and of {lowered[1]} all message passing;", end=" "
    )
    print(f"{sum(row['equal'] for row in rows.values())} equal to PyG")
    lowered = [sum(row["batches_status"] == status for row in rows.values()) for status in (WHOLLY, MESSAGES)]
    print(f"on mini-batches {lowered[0]} are lowered, and of {lowered[1]} all message passing;", end=" ")
    print(f"{sum(row['batches_equal'] for row in rows.values())} equal to PyG")
    print("wrote", write_rows("fullgraph_coverage", rows, repeats=options.repeats, out=options.out))


if __name__ == "__main__":
    main()
