"""Epochs of a model by DGL or GraphBolt, GraphSAGE from given weights: the median epoch; one JSON line.

    python -m benchmarks.peers.epoch dgl|graphbolt GRAPH WEIGHTS [--loaders 1]

The first epoch is not timed.
"""

from __future__ import annotations

import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.peers.common import epoch_options, read_graph, train_epochs
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
    parser = epoch_options(__doc__, "dgl", "graphbolt")
    parser.add_argument("--loaders", type=int, default=0, help="processes that prepare batches")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    part = read_graph(options.graph)
    weights = dict(np.load(options.weights))
    model = Model(options.model, options.hidden, weights, len(options.fanouts))
    epoch = (dgl_batches if options.lib == "dgl" else graphbolt_batches)(part, options)

    def batches():
        for blocks, x, y in epoch():
            yield F.cross_entropy(model(blocks, x), y), len(y)

    train_epochs(options.lib, model, options, len(part["train_idx"]), batches)


if __name__ == "__main__":
    main()
