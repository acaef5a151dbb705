"""Epochs of a model by DGL or GraphBolt, GraphSAGE from given weights: the median epoch; one JSON line.

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
from benchmarks.peers.steps import LAYERS, forward


class Model(torch.nn.Module):
    """A stack of DGL's layers; GraphSAGE's with the weights every contender starts from."""

    def __init__(self, name: str, hidden: int, weights: dict[str, np.ndarray], num_layers: int):
        super().__init__()
        widths = [weights["own0"].shape[1]] + [hidden] * (num_layers - 1)
        widths.append(weights[f"own{num_layers - 1}"].shape[0])
        self.convs = torch.nn.ModuleList()
        for i in range(num_layers):
            conv = LAYERS[name](widths[i], widths[i + 1], i == num_layers - 1)
            if name == "SAGE":
                own, neighbours, bias = (
                    torch.from_numpy(weights[f"{part}{i}"]) for part in ("own", "neighbours", "bias")
                )
                conv.fc_self.weight.data.copy_(own)
                conv.fc_neigh.weight.data.copy_(neighbours)
                conv.fc_self.bias.data.copy_(bias)
            self.convs.append(conv)

    def forward(self, blocks, h):
        return forward(self.convs, blocks, h)


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
    parser.add_argument("--model", default="SAGE", choices=["SAGE", "GCN", "GAT"])
    parser.add_argument("--hidden", type=int, default=256)
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
    model = Model(options.model, options.hidden, weights, len(options.fanouts))
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
