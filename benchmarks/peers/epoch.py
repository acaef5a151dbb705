"""Epochs of sampled GraphSAGE by DGL or GraphBolt, from given weights: the median epoch; one JSON line.

    python -m benchmarks.peers.epoch dgl|graphbolt GRAPH WEIGHTS [--loaders 1]

The first epoch is not timed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.peers.common import median, read_graph


class GraphSAGE(torch.nn.Module):
    """The stack of dgl.nn.SAGEConv, with the weights every contender starts from."""

    def __init__(self, weights: dict[str, np.ndarray], num_layers: int):
        super().__init__()
        self.convs = torch.nn.ModuleList()
        for i in range(num_layers):
            names = (f"{part}{i}" for part in ("own", "neighbours", "bias"))
            own, neighbours, bias = (torch.from_numpy(weights[name]) for name in names)
            conv = dgl.nn.SAGEConv(own.shape[1], own.shape[0], "mean")
            conv.fc_self.weight.data.copy_(own)
            conv.fc_neigh.weight.data.copy_(neighbours)
            conv.fc_self.bias.data.copy_(bias)
            self.convs.append(conv)

    def forward(self, blocks, h):
        for i, (conv, block) in enumerate(zip(self.convs, blocks, strict=True)):
            h = conv(block, h)
            if i < len(self.convs) - 1:
                h = F.relu(h)
        return h


def dgl_batches(part, options):
    """(blocks, x, y) of an epoch, from dgl.dataloading."""
    csc = ("csc", (part["indptr"], part["indices"], torch.tensor([], dtype=torch.int64)))
    graph = dgl.graph(csc, num_nodes=len(part["indptr"]) - 1)
    sampler = dgl.dataloading.NeighborSampler(options.fanouts[::-1])
    loader = dgl.dataloading.DataLoader(
        graph,
        part["train_idx"],
        sampler,
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=options.loaders,
    )

    def epoch():
        for input_nodes, output_nodes, blocks in loader:
            yield blocks, part["x"][input_nodes], part["y"][output_nodes]

    return epoch


def graphbolt_batches(part, options):
    """(blocks, x, y) of an epoch, from GraphBolt's data pipe."""
    graph = gb.fused_csc_sampling_graph(part["indptr"], part["indices"])
    features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(part["x"])})
    items = gb.ItemSet((part["train_idx"], part["y"][part["train_idx"]]), names=("seed_nodes", "labels"))
    pipe = gb.ItemSampler(items, batch_size=options.batch_size, shuffle=True)
    pipe = pipe.sample_neighbor(graph, options.fanouts[::-1]).fetch_feature(
        features, node_feature_keys=["feat"]
    )
    loader = gb.DataLoader(pipe, num_workers=options.loaders)

    def epoch():
        for batch in loader:
            yield batch.blocks, batch.node_features["feat"], batch.labels

    return epoch


def main() -> None:
    """Train and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lib", choices=["dgl", "graphbolt"])
    parser.add_argument("graph", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--loaders", type=int, default=0, help="processes that prepare batches")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.003)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    part = read_graph(options.graph)
    weights = dict(np.load(options.weights))
    model = GraphSAGE(weights, len(options.fanouts))
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    epoch = (dgl_batches if options.lib == "dgl" else graphbolt_batches)(part, options)
    seconds, losses = [], []
    for _ in range(options.epochs):
        started, total = time.perf_counter(), 0.0
        for blocks, x, y in epoch():
            loss = F.cross_entropy(model(blocks, x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        seconds.append(time.perf_counter() - started)
        losses.append(total / len(part["train_idx"]))
    found = {"lib": options.lib, "epoch_s": median(seconds[1:]), "losses": losses}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
