"""Temporal mini-batches side by side with GraphBolt, in one run.

    python -m benchmarks.sampling.temporal --graphs GRAPHS --data ARCHIVES

Sampling alone with 1 and 2 workers: nodes with a time each, whose neighbours are drawn uniformly from the
edges up to that time; one hop of 10, and hops of 10 and 5, layout ``blocks`` (GraphBolt's). DGL's own loader
has no temporal sampling. Every contender is a process of its own, both take turns, and the median of the
repeats counts.

Of one hop both must draw the same number of edges within 1 %. At the second hop GraphBolt draws anew for each
edge of the first, where a tree here has each node once, which counts in graphs where the same nodes meet
again and again. The ratio is therefore that of the time for each edge drawn, not of the time for each batch.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
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

GENERATED = "temporal-like"
NAMES = (GENERATED, "tmp_mathoverflow")
HOPS = ((10,), (10, 5))
_NODES, _EDGES = 1_000_000, 20_000_000


def make(folder: Path, name: str, data: Path, share: float) -> Path:
    """Write a graph's folder (edges, times, number of nodes) unless it is there; returns it."""
    path = folder / (name if name != GENERATED or share == 1.0 else f"{name}-{share:g}")
    if (path / "graph.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    if name == GENERATED:
        draw, num_nodes = np.random.default_rng(0), max(int(_NODES * share), 2)
        ends = (num_nodes * draw.random((2, max(int(_EDGES * share), 1))) ** 2).astype(np.int64)
        times = np.arange(ends.shape[1])  # the ends follow a power law: density 1 / sqrt(id)
    else:
        with np.load(data / f"{name}.npz") as file:
            ends, times = file["edge_index"].astype(np.int64), file["edge_time"].astype(np.int64)
            num_nodes = int(file["num_nodes"])
        order = np.argsort(times, kind="stable")
        ends, times = ends[:, order], times[order]
    np.save(path / "edges.npy", ends)
    np.save(path / "times.npy", times)
    (path / "graph.json").write_text(json.dumps({"num_nodes": num_nodes}), encoding="utf-8")
    return path


def summary(mine: Contender, other: Contender, hops: tuple[int, ...]) -> dict[str, Any]:
    """One row of the table."""
    edges = {one.name: one.median("edges_per_batch") for one in (mine, other)}
    if len(hops) == 1 and max(edges.values()) > 1.01 * min(edges.values()):
        sys.exit(f"the contenders do not do the same work: edges per batch {edges}")
    row: dict[str, Any] = {
        one.name: {
            "ms_per_batch": one.median("ms_per_batch"),
            "edges_per_batch": edges[one.name],
            "ns_per_edge": 1e6 * one.median("ms_per_batch") / edges[one.name],
            "runs": one.runs,
        }
        for one in (mine, other)
    }
    return row | {"ratio": row[other.name]["ns_per_edge"] / row[mine.name]["ns_per_edge"]}


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows, each written as soon as it is there."""
    rows = []
    for graph, hops, workers in product(options.names, HOPS, (1, 2)):
        told = ",".join(map(str, hops))
        name = f"{graph}, {told}, {workers} workers"
        print(name, file=sys.stderr)
        folder = str(make(options.graphs / "temporal", graph, options.data, options.share))
        flags = [folder, "--workers", str(workers), "--batches", str(options.batches)]
        flags += ["--batch-size", str(options.batch_size), "--fanouts", *map(str, hops)]
        mine = Contender("graphbraid", ours("sampling.temporal_ours", *flags))
        other = Contender("graphbolt", peer(options.peer_python, "temporal_sampling", *flags))
        run_in_turn([mine, other], options.repeats)
        found = {"graph": graph, "share": options.share, "fanouts": list(hops), "workers": workers}
        rows.append(found | summary(mine, other, hops))
        write_rows("temporal_sampling", {name: rows[-1]}, repeats=options.repeats, out=options.out)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(
        "graph", "fanouts", "workers", "graphbraid ms", "graphbolt ms", "ns an edge", "theirs", "ratio"
    )
    for row in rows:
        mine, other = row["graphbraid"], row["graphbolt"]
        table.add_row(
            row["graph"],
            ",".join(map(str, row["fanouts"])),
            str(row["workers"]),
            f"{mine['ms_per_batch']:.2f}",
            f"{other['ms_per_batch']:.1f}",
            f"{mine['ns_per_edge']:.0f}",
            f"{other['ns_per_edge']:.0f}",
            f"{row['ratio']:.1f}",
        )
    Console(width=120).print(table)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    add_peer_arguments(parser)
    add_data_argument(parser)
    parser.add_argument("--names", nargs="+", choices=list(NAMES), default=list(NAMES))
    parser.add_argument("--share", type=float, default=1.0, help="of the generated graph's size")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    add_out_argument(parser)
    show(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
