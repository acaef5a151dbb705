"""Peers' side of ``benchmarks.fullgraph`` for what ``peer_fullbatch.py`` does not train; one JSON line.

    python fullgraph_peer.py pyg|dgl GRAPH_DIR --heads 4

A three-layer GAT whose heads are averaged, trained as ``peer_fullbatch.py`` trains its models: the same seed,
optimizer, loss and clock. Runs in the peers' environment.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F


def peak_gb() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def pyg_layers(graph, widths, heads):
    """PyG's layers and what they take beside the rows."""
    from torch_geometric.nn import GATConv

    degrees = graph["indptr"][1:] - graph["indptr"][:-1]
    destinations = torch.repeat_interleave(torch.arange(degrees.numel()), degrees)
    edge_index = torch.stack([graph["indices"], destinations])
    layers = [GATConv(a, b, heads=heads, concat=False) for a, b in zip(widths, widths[1:])]  # noqa: B905, RUF007
    return layers, lambda layer, x: layer(x, edge_index)


def dgl_layers(graph, widths, heads):
    """DGL's layers and how they are called; their heads are averaged as PyG's."""
    import dgl

    csc = ("csc", (graph["indptr"], graph["indices"], torch.tensor([], dtype=torch.int64)))
    edges = dgl.add_self_loop(dgl.graph(csc, num_nodes=len(graph["indptr"]) - 1))
    edges = edges.formats(["coo", "csr", "csc"])  # its attention reads by edge, too
    edges.create_formats_()
    layers = [dgl.nn.GATConv(a, b, heads) for a, b in zip(widths, widths[1:])]  # noqa: B905, RUF007
    return layers, lambda layer, x: layer(edges, x).mean(1)


def main() -> None:
    """Train and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lib", choices=["pyg", "dgl"])
    parser.add_argument("graph", type=Path)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("THREADS", "2")))
    names = ("indptr", "indices", "x", "y", "train_idx")
    graph = {name: torch.from_numpy(np.load(options.graph / f"{name}.npy")) for name in names}
    data_gb = peak_gb()
    x, train = graph["x"], graph["train_idx"]
    labels = graph["y"][train]
    widths = [x.shape[1], *[options.hidden] * (options.layers - 1), int(graph["y"].max()) + 1]
    layers, call = (pyg_layers if options.lib == "pyg" else dgl_layers)(graph, widths, options.heads)
    layers = torch.nn.ModuleList(layers)
    optimizer = torch.optim.Adam(layers.parameters(), 0.01)
    seconds = []
    for _ in range(options.epochs + 1):
        started = time.perf_counter()
        optimizer.zero_grad()
        h = x
        for i, layer in enumerate(layers):
            h = call(layer, F.relu(h) if i else h)
        loss = F.cross_entropy(h[train], labels)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    found = {
        "lib": options.lib,
        "graph": options.graph.name,
        "epoch_s": sorted(seconds[1:])[options.epochs // 2],
    }
    memory = {"peak_rss_gb": peak_gb(), "data_rss_gb": data_gb}
    print(json.dumps({**found, **memory, "loss": round(loss.item(), 4)}))


if __name__ == "__main__":
    main()
