"""Epochs of PyG's models by PyG, GraphSAGE from given weights: the median epoch; one JSON line.

    PYTHONPATH=.peers/pyg python -m benchmarks.peers.epoch_pyg GRAPH WEIGHTS [--loaders 1]

``make peers`` compiles torch-sparse into that folder; PyG samples by it. The batches of PyG's loader go
through the whole model, as in PyG's examples: torch-sparse does not count nodes per hop, which
``trim_to_layer`` needs. The first epoch is not timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

from benchmarks.peers.common import edge_index, epoch_options, read_graph, train_epochs

MODELS = {"SAGE": pyg.GraphSAGE, "GCN": pyg.GCN, "GAT": pyg.GAT}


def make_model(name: str, hidden: int, weights: dict[str, np.ndarray], num_layers: int) -> nn.Module:
    """PyG's model; GraphSAGE with the weights every contender starts from."""
    channels, classes = weights["own0"].shape[1], weights[f"own{num_layers - 1}"].shape[0]
    heads = {"heads": 4} if name == "GAT" else {}
    model: nn.Module = MODELS[name](channels, hidden, num_layers, classes, **heads)
    for i, conv in enumerate(cast("Any", model).convs if name == "SAGE" else []):
        conv.lin_r.weight.data.copy_(torch.from_numpy(weights[f"own{i}"]))
        conv.lin_l.weight.data.copy_(torch.from_numpy(weights[f"neighbours{i}"]))
        conv.lin_l.bias.data.copy_(torch.from_numpy(weights[f"bias{i}"]))
    return model


def main() -> None:
    """Train and time."""
    parser = epoch_options(__doc__)
    parser.add_argument("--loaders", type=int, default=0, help="processes that prepare batches")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    graph = read_graph(options.graph)
    weights = dict(np.load(options.weights))
    model = make_model(options.model, options.hidden, weights, len(options.fanouts))
    loader = NeighborLoader(
        Data(x=graph["x"], y=graph["y"], edge_index=edge_index(graph)),
        options.fanouts,
        input_nodes=graph["train_idx"],
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=options.loaders,
        persistent_workers=options.loaders > 0,
    )

    def batches() -> Iterator[tuple[Tensor, int]]:
        for batch in loader:
            size = batch.batch_size
            yield F.cross_entropy(model(batch.x, batch.edge_index)[:size], batch.y[:size]), size

    train_epochs("pyg", model, options, len(graph["train_idx"]), batches)


if __name__ == "__main__":
    main()
