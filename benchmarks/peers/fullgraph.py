"""Full-graph training by PyG or DGL: the median epoch and peak memory; one JSON line.

    python -m benchmarks.peers.fullgraph pyg|pyg-csr|dgl GRAPH [--model gcn|sage|gin|gat] [--hidden 32]

``pyg`` hands PyG's layers an ``edge_index``, as its examples do; ``pyg-csr`` a ``torch.sparse`` CSR matrix,
which its documentation advises where speed and memory count, for GCN normalised beforehand. Adam, learning
rate 0.01; the first epoch is not timed. Memory counts from where the library is imported and the graph
loaded.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers.common import edge_index, median, peak_gb, read_graph

LIBRARIES = ("pyg", "pyg-csr", "dgl")
Layer = Callable[[nn.Module, Tensor], Tensor]
"""Calls one layer on the rows of all nodes."""


def pyg_layers(graph: dict[str, Tensor], widths: list[int], options: Any) -> tuple[list[nn.Module], Layer]:
    """PyG's layers, and how each is called."""
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

    csr = options.library == "pyg-csr"
    make: dict[str, Callable[[int, int], nn.Module]] = {
        "gcn": lambda i, o: GCNConv(i, o, cached=not csr, normalize=not csr),
        "sage": SAGEConv,
        "gin": lambda i, o: GINConv(nn.Linear(i, o)),
        "gat": lambda i, o: GATConv(i, o, heads=options.heads, concat=False),
    }
    edges = pyg_matrix(graph, options.model) if csr else edge_index(graph)
    return [make[options.model](i, o) for i, o in pairwise(widths)], lambda layer, x: layer(x, edges)


def pyg_matrix(graph: dict[str, Tensor], model: str) -> Tensor:
    """The transposed adjacency, in CSR: a row per destination. GCN's holds the normalised weights."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import to_torch_csr_tensor

    edges, num_nodes = edge_index(graph), graph["x"].shape[0]
    weight = None
    if model == "gcn":
        edges, weight = gcn_norm(edges, None, num_nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls its CSR a beta
        return to_torch_csr_tensor(edges.flip(0), weight, size=(num_nodes, num_nodes))


def dgl_layers(graph: dict[str, Tensor], widths: list[int], options: Any) -> tuple[list[nn.Module], Layer]:
    """DGL's layers, and how each is called; the heads of GAT are averaged."""
    import dgl
    from dgl.nn import GATConv, GINConv, GraphConv, SAGEConv

    csc = ("csc", (graph["indptr"], graph["indices"], torch.tensor([], dtype=torch.int64)))
    edges = dgl.graph(csc, num_nodes=graph["x"].shape[0])
    if options.model in ("gcn", "gat"):  # PyG's layers add the loops themselves
        edges = dgl.add_self_loop(edges)
    attends = options.model == "gat"
    edges = edges.formats(
        ["coo", "csr", "csc"] if attends else ["csc", "csr"]
    )  # attention reads by edge, too
    edges.create_formats_()
    make: dict[str, Callable[[int, int], nn.Module]] = {
        "gcn": lambda i, o: GraphConv(i, o, norm="both"),
        "sage": lambda i, o: SAGEConv(i, o, "mean"),
        "gin": lambda i, o: GINConv(nn.Linear(i, o)),
        "gat": lambda i, o: GATConv(i, o, options.heads),
    }
    layers = [make[options.model](i, o) for i, o in pairwise(widths)]
    return layers, lambda layer, x: layer(edges, x).mean(1) if attends else layer(edges, x)


def train(graph: dict[str, Tensor], options: Any) -> tuple[list[float], float]:
    """Seconds of the epochs but the first, and the last one's loss."""
    x, nodes = graph["x"], graph["train_idx"]
    labels = graph["y"][nodes]
    widths = [x.shape[1], *[options.hidden] * (options.layers - 1), int(graph["y"].max()) + 1]
    make = dgl_layers if options.library == "dgl" else pyg_layers
    layers, call = make(graph, widths, options)
    parameters = nn.ModuleList(layers).parameters()
    # The fused form, where the library's PyTorch has it for the CPU: DGL's does not.
    optimizer = torch.optim.Adam(parameters, 0.01, fused=options.library != "dgl")
    seconds, loss = [], torch.tensor(0.0)
    for _ in range(options.epochs + 1):
        started = time.perf_counter()
        optimizer.zero_grad()
        rows = x
        for i, layer in enumerate(layers):
            rows = call(layer, F.relu(rows) if i else rows)
        loss = F.cross_entropy(rows[nodes], labels)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    return seconds[1:], loss.item()


def main() -> None:
    """Train and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--model", default="gcn", choices=["gcn", "sage", "gin", "gat"])
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=1, help="of GAT; they are averaged")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    __import__("dgl" if options.library == "dgl" else "torch_geometric.nn")
    graph = read_graph(options.graph)
    data_gb = peak_gb()
    seconds, loss = train(graph, options)
    what = {"lib": options.library, "model": options.model, "graph": options.graph.name}
    times = {"epoch_s": median(seconds), "epochs_s": seconds}
    memory = {"peak_rss_gb": peak_gb(), "data_rss_gb": data_gb}
    print(json.dumps({**what, **times, **memory, "loss": round(loss, 4)}))


if __name__ == "__main__":
    main()
