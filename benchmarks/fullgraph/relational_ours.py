"""Our side of ``benchmarks.fullgraph.relational``: ``graphbraid.nn.RGCN``, compiled; one JSON line."""

from __future__ import annotations

import argparse
import json
import time

import torch
import torch.nn.functional as F

import graphbraid
from benchmarks.peers.common import median, peak_gb
from benchmarks.peers.relational import CLASSES, add_model_arguments, task_of, weights_of
from benchmarks.sampling.typed_graphs import read
from graphbraid import Graph
from graphbraid.fullgraph import Engine
from graphbraid.nn import RGCN


def main() -> None:
    """Train and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--explain", action="store_true", help="print the lowered program, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plain, seed_type, _ = read(options.folder)
    task = task_of(options.folder, options.features)
    sizes = {name: plain.nodes_of(name).num_nodes for name in plain.node_types}
    graph = Graph.from_relations(plain.to_edge_indices(), sizes, x=task.x)
    del plain
    model = RGCN.of(graph, options.hidden, CLASSES, 2, node_type=seed_type, dropout=0.0)
    widths = [options.features, options.hidden, options.hidden, CLASSES]
    model.load_state_dict(weights_of(len(graph.node_types), len(graph.edge_types), widths))
    data_gb, started = peak_gb(), time.perf_counter()
    engine = graphbraid.compile(model, graph, nodes=task.nodes)
    assert isinstance(engine, Engine), engine.explain()
    engine()
    compile_seconds = time.perf_counter() - started
    optimizer = torch.optim.Adam(model.parameters(), 0.01, fused=True)
    seconds, loss = [], torch.tensor(0.0)
    for _ in range(options.epochs + 1):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(engine(), task.y)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    if options.explain:
        print(engine.explain(measure=True))
    peak, floor = peak_gb(), engine.floor()
    times = {"epoch_s": median(seconds[1:]), "epochs_s": seconds[1:], "compile_s": compile_seconds}
    memory = {"peak_rss_gb": peak, "data_rss_gb": data_gb, "engine_gb": engine.nbytes / 1e9}
    floors = {"floor_s": floor.floor_seconds, "doubt": floor.doubt}
    print(json.dumps({"lib": "graphbraid", **times, **memory, **floors, "loss": loss.item()}))


if __name__ == "__main__":
    main()
