"""Our side of ``benchmarks.sampling.typed``: mini-batches of a graph with types; prints one JSON line."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from benchmarks.sampling.typed_graphs import read
from graphbraid.loader import NeighborLoader


def epoch(loader: NeighborLoader) -> tuple[float, int, int]:
    """Seconds, nodes and edges of an epoch."""
    nodes = edges = 0
    started = time.perf_counter()
    for batch in loader:
        nodes, edges = nodes + batch.num_nodes, edges + batch.num_edges
    return time.perf_counter() - started, nodes, edges


def main() -> None:
    """An epoch to warm up, then one that counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    options = parser.parse_args()
    torch.set_num_threads(options.workers)
    graph, seed_type, seeds = read(options.graph)
    steps = min(options.batches, len(seeds) // options.batch_size)
    loader = NeighborLoader(
        graph,
        options.fanouts,
        input_nodes=(seed_type, seeds[: steps * options.batch_size]),
        batch_size=options.batch_size,
        num_workers=options.workers,
        layout="blocks",
        return_edge_id=False,
        seed=0,
    )
    epoch(loader)
    seconds, nodes, edges = epoch(loader)
    found = {"lib": "graphbraid", "graph": options.graph.name, "workers": options.workers, "batches": steps}
    found |= {"ms_per_batch": 1e3 * seconds / steps}
    print(json.dumps(found | {"nodes_per_batch": nodes / steps, "edges_per_batch": edges / steps}))


if __name__ == "__main__":
    main()
