"""Mini-batches prepared by GraphBolt, DGL or PyG on the CPU: milliseconds per batch; one JSON line.

    python -m benchmarks.peers.sampling graphbolt|dgl|pyg GRAPH [--workers 2] [--batches 40] [--no-features]

Each draws 15 neighbours of the seeds, then 10, then 5, and gathers the features of all nodes of a batch;
without features, those of one column. ``pyg`` needs ``PYTHONPATH=.peers/pyg`` and expands only new nodes per
hop (layout ``subgraph``), the others draw anew for every node of a layer (``blocks``). An epoch warms up,
the next one counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.common import edge_index, read_graph

Epoch = Callable[[], Iterator[tuple[int, int]]]
"""Prepares an epoch's batches; gives each one's nodes and edges."""


def graphbolt(graph: dict[str, Tensor], seeds: Tensor, options: Any) -> Epoch:
    """GraphBolt's data pipe; its loader's threads are PyTorch's."""
    import dgl.graphbolt as gb

    topology = gb.fused_csc_sampling_graph(graph["indptr"], graph["indices"])
    features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(graph["x"])})
    items = gb.ItemSet((seeds, graph["y"][seeds]), names=("seed_nodes", "labels"))

    def epoch() -> Iterator[tuple[int, int]]:
        pipe = gb.ItemSampler(items, batch_size=options.batch_size, shuffle=False)
        pipe = pipe.sample_neighbor(topology, options.fanouts[::-1])
        pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
        for batch in gb.DataLoader(pipe, num_workers=0):
            nodes = batch.input_nodes() if callable(batch.input_nodes) else batch.input_nodes
            yield len(nodes), sum(len(drawn.sampled_csc.indices) for drawn in batch.sampled_subgraphs)

    return epoch


def dgl(graph: dict[str, Tensor], seeds: Tensor, options: Any) -> Epoch:
    """dgl.dataloading; it samples with PyTorch's threads."""
    import dgl

    csc = ("csc", (graph["indptr"], graph["indices"], torch.tensor([], dtype=torch.int64)))
    topology = dgl.graph(csc, num_nodes=graph["x"].shape[0])
    sampler = dgl.dataloading.NeighborSampler(options.fanouts[::-1])
    loader = dgl.dataloading.DataLoader(
        topology, seeds, sampler, batch_size=options.batch_size, num_workers=0
    )

    def epoch() -> Iterator[tuple[int, int]]:
        for input_nodes, _, blocks in loader:
            graph["x"][input_nodes]
            yield len(input_nodes), sum(block.num_edges() for block in blocks)

    return epoch


def pyg(graph: dict[str, Tensor], seeds: Tensor, options: Any) -> Epoch:
    """PyG's NeighborLoader; more than one worker are processes."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    data = Data(x=graph["x"], y=graph["y"], edge_index=edge_index(graph), num_nodes=graph["x"].shape[0])
    loader = NeighborLoader(
        data,
        num_neighbors=options.fanouts,
        input_nodes=seeds,
        batch_size=options.batch_size,
        num_workers=options.workers if options.workers > 1 else 0,
    )

    def epoch() -> Iterator[tuple[int, int]]:
        for batch in loader:
            yield batch.x.shape[0], batch.edge_index.shape[1]

    return epoch


LIBRARIES = {"graphbolt": graphbolt, "dgl": dgl, "pyg": pyg}


def main() -> None:
    """Prepare and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=list(LIBRARIES))
    parser.add_argument("graph", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=40, help="at most; only full ones count")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--no-features", action="store_true", help="sampling alone")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.workers)
    graph = read_graph(options.graph)
    if options.no_features:
        graph["x"] = graph["x"][:, :1].contiguous()
    num_batches = min(options.batches, len(graph["train_idx"]) // options.batch_size)
    seeds = graph["train_idx"][: num_batches * options.batch_size].contiguous()
    epoch = LIBRARIES[options.library](graph, seeds, options)
    list(epoch())
    started = time.perf_counter()
    sizes = list(epoch())
    seconds = time.perf_counter() - started
    nodes, edges = (sum(size) for size in zip(*sizes, strict=True))
    found = {"lib": options.library, "feat": not options.no_features, "graph": options.graph.name}
    found |= {"workers": options.workers, "batches": len(sizes), "ms_per_batch": 1e3 * seconds / len(sizes)}
    print(
        json.dumps(found | {"nodes_per_batch": nodes // len(sizes), "edges_per_batch": edges // len(sizes)})
    )


if __name__ == "__main__":
    main()
