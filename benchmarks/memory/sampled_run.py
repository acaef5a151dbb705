"""One training run for ``benchmarks.memory.sampled``: peak RSS beside its data; one line of JSON."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

from benchmarks.peers.common import peak_gb
from graphbraid import Graph, Trainer, datasets
from graphbraid.nn import GraphSAGE

FANOUTS = (15, 10)
BUDGET = 256 << 20
"""Bytes the exact evaluation of the test nodes may hold."""


def main() -> None:
    """Open a store, train a while, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--steps-seeds", type=int, default=30 * 1024, help="training seeds of the one epoch")
    options = parser.parse_args()
    torch.set_num_threads(2)
    stored = datasets.open_store(options.store, mmap=False)
    graph = stored.replace(splits={**stored.splits, "train": stored.split("train")[: options.steps_seeds]})
    at_start = peak_rss()
    with tempfile.TemporaryDirectory() as folder:
        model = GraphSAGE(graph.num_features, 64, graph.num_classes, len(FANOUTS))
        trainer = Trainer(
            model,
            graph,
            epochs=1,
            fanouts=FANOUTS,
            batch_size=1024,
            out_dir=folder,
            eval_mode="sampled",
            workers=2,
            memory_budget_bytes=BUDGET,
        )
        trainer.fit()
    print(json.dumps({**sizes(graph), "rss_loaded": at_start, "peak_rss": peak_rss()}))


def sizes(graph: Graph) -> dict[str, int]:
    """Nodes, edges and bytes of the graph with its features."""
    return {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges, "graph_bytes": graph.nbytes}


def peak_rss() -> int:
    """Bytes."""
    return round(1e9 * peak_gb())


if __name__ == "__main__":
    main()
