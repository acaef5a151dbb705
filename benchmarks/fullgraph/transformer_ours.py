"""Our side of ``benchmarks.fullgraph.transformer``: the peer's PyG model, compiled; one JSON line.

The model is the one that ``benchmarks.peers.transformer`` builds, after the same seed.
"""

from __future__ import annotations

import argparse
import json

import torch

import graphbraid
from benchmarks.peers.common import median, peak_gb
from benchmarks.peers.relational import task_of, told_of
from benchmarks.peers.transformer import Net, add_arguments, trained
from benchmarks.sampling.typed_graphs import read
from graphbraid import Graph


def main() -> None:
    """Train and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    plain, seed_type, _ = read(options.folder)
    task = task_of(options.folder, options.features)
    sizes = {name: plain.nodes_of(name).num_nodes for name in plain.node_types}
    graph = Graph.from_relations(plain.to_edge_indices(), sizes, x=task.x)
    del plain
    net, data_gb = Net(told_of(options.folder), options), peak_gb()
    engine = graphbraid.compile(net, graph, nodes=task.nodes, node_type=seed_type)
    explained = engine.explain()
    if "attention over relations" not in explained:
        raise SystemExit(f"the layers are not lowered:\n{explained}")
    seconds, loss = trained(net, task, engine, options.epochs)
    times = {"epoch_s": median(seconds), "epochs_s": seconds}
    memory = {"peak_rss_gb": peak_gb(), "data_rss_gb": data_gb}
    print(json.dumps({"lib": "graphbraid", **times, **memory, "loss": loss}))


if __name__ == "__main__":
    main()
