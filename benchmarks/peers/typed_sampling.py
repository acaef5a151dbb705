"""Mini-batches of a graph with types prepared by GraphBolt or DGL: milliseconds per batch; one JSON line.

    python -m benchmarks.peers.typed_sampling graphbolt|dgl GRAPH [--workers 2] [--batches 40]

Each draws so many neighbours per relation and hop, anew for every node of a layer. An epoch warms up, the
next one counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Epoch = Callable[[], Iterator[tuple[int, int]]]
"""Prepares an epoch's batches; gives each one's nodes and edges."""


def read(folder: Path) -> tuple[Any, str, Tensor]:
    """The graph as DGL's, the type of its seeds, and these."""
    import dgl

    told = json.loads((folder / "types.json").read_text(encoding="utf-8"))
    edges = {}
    for number, edge_type in enumerate(told["edge_types"]):
        pairs = torch.from_numpy(np.load(folder / f"{number}.npy"))
        edges[tuple(edge_type)] = pairs[0], pairs[1]
    graph = dgl.heterograph(edges, num_nodes_dict=told["num_nodes"])
    return graph, told["seed_type"], torch.from_numpy(np.load(folder / "seeds.npy"))


def graphbolt(graph: Any, seed_type: str, seeds: Tensor, options: Any) -> Epoch:
    """GraphBolt's data pipe; its loader's threads are PyTorch's."""
    import dgl.graphbolt as gb

    topology = gb.from_dglgraph(graph, is_homogeneous=False)
    items = gb.ItemSetDict({seed_type: gb.ItemSet(seeds, names="seed_nodes")})
    per_relation = [torch.full((len(graph.canonical_etypes),), fanout) for fanout in options.fanouts[::-1]]

    def epoch() -> Iterator[tuple[int, int]]:
        pipe = gb.ItemSampler(items, batch_size=options.batch_size, shuffle=False)
        pipe = pipe.sample_neighbor(topology, per_relation)
        for batch in gb.DataLoader(pipe, num_workers=0):
            nodes = batch.input_nodes() if callable(batch.input_nodes) else batch.input_nodes
            drawn = [csc for layer in batch.sampled_subgraphs for csc in layer.sampled_csc.values()]
            yield sum(map(len, nodes.values())), sum(len(csc.indices) for csc in drawn)

    return epoch


def dgl(graph: Any, seed_type: str, seeds: Tensor, options: Any) -> Epoch:
    """dgl.dataloading; it samples with PyTorch's threads."""
    import dgl as package

    sampler = package.dataloading.NeighborSampler(options.fanouts[::-1])
    loader = package.dataloading.DataLoader(
        graph.formats("csc"), {seed_type: seeds}, sampler, batch_size=options.batch_size, num_workers=0
    )

    def epoch() -> Iterator[tuple[int, int]]:
        for input_nodes, _, blocks in loader:
            yield sum(map(len, input_nodes.values())), sum(block.num_edges() for block in blocks)

    return epoch


LIBRARIES = {"graphbolt": graphbolt, "dgl": dgl}


def main() -> None:
    """Prepare and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=list(LIBRARIES))
    parser.add_argument("graph", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=40, help="at most; only full ones count")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.workers)
    graph, seed_type, seeds = read(options.graph)
    steps = min(options.batches, len(seeds) // options.batch_size)
    epoch = LIBRARIES[options.library](graph, seed_type, seeds[: steps * options.batch_size], options)
    list(epoch())
    started = time.perf_counter()
    sizes = list(epoch())
    seconds = time.perf_counter() - started
    nodes, edges = (sum(size) / len(sizes) for size in zip(*sizes, strict=True))
    found = {"lib": options.library, "graph": options.graph.name, "workers": options.workers}
    found |= {"batches": len(sizes), "ms_per_batch": 1e3 * seconds / len(sizes)}
    print(json.dumps(found | {"nodes_per_batch": nodes, "edges_per_batch": edges}))


if __name__ == "__main__":
    main()
