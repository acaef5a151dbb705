"""A timed epoch of a loader, as every one of our sides of the sampling benchmarks measures it."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from graphbraid.loader import NeighborLoader


def parse_options(description: str | None, batches: int) -> argparse.Namespace:
    """The options of a run: the graph's folder, workers, batches, their size and fanouts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=batches)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    return parser.parse_args()


def epoch(loader: NeighborLoader) -> tuple[float, int, int]:
    """Seconds, nodes and edges of an epoch."""
    nodes = edges = 0
    started = time.perf_counter()
    for batch in loader:
        nodes, edges = nodes + batch.num_nodes, edges + batch.num_edges
    return time.perf_counter() - started, nodes, edges


def print_epoch(loader: NeighborLoader, options: argparse.Namespace, steps: int) -> None:
    """Run an epoch to warm up, then one that counts, and print that as one JSON line."""
    epoch(loader)
    seconds, nodes, edges = epoch(loader)
    found = {"lib": "graphbraid", "graph": options.graph.name, "workers": options.workers, "batches": steps}
    found |= {"ms_per_batch": 1e3 * seconds / steps}
    print(json.dumps(found | {"nodes_per_batch": nodes / steps, "edges_per_batch": edges / steps}))
