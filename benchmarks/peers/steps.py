"""Steps of models on given mini-batches by DGL: milliseconds of processor time per step; one JSON line.

    python -m benchmarks.peers.steps MODEL BATCHES [--hidden 64] [--repeats 3] [--threads 1]

``BATCHES`` is a file of :func:`torch.save`: a list of batches, each a dict with ``x``, ``y``, the local
``edge_index`` and the numbers of nodes and edges by hop, in PyG's order. A step is forward, loss and backward
of three layers. Layer by layer its blocks hold what the seeds need, as PyG's ``trim_to_layer`` leaves it;
blocks and their formats are made before the step. Of a batch's turns the least counts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import dgl
import dgl.function as fn
import torch
import torch.nn.functional as F
from dgl import nn as dnn
from torch import nn


class SAGEMax(nn.Module):
    """The layer that PyG's ``SAGEConv(aggr="max")`` is: DGL's pooling layer has one more map."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.neighbours, self.own = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, block, h):
        with block.local_scope():
            block.srcdata["h"] = h
            block.update_all(fn.copy_u("h", "m"), fn.max("m", "n"))
            return self.neighbours(block.dstdata["n"]) + self.own(h[: block.num_dst_nodes()])


def gat(layer, inputs: int, outputs: int, last: bool):
    """Four heads side by side; in the last layer their mean."""
    return layer(inputs, outputs if last else outputs // 4, 4, allow_zero_in_degree=True)


def gin(inputs: int, outputs: int, _: bool):
    """PyG's: two maps with ReLU between."""
    return dnn.GINConv(nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs)))


LAYERS = {
    "GCN": lambda i, o, _: dnn.GraphConv(i, o, allow_zero_in_degree=True),
    "SAGE": lambda i, o, _: dnn.SAGEConv(i, o, "mean"),
    "SAGE max": lambda i, o, _: SAGEMax(i, o),
    "GIN": gin,
    "GAT": lambda i, o, last: gat(dnn.GATConv, i, o, last),
    "GATv2": lambda i, o, last: gat(dnn.GATv2Conv, i, o, last),
}


def blocks_of(batch: dict) -> list:
    """A block for each layer, the widest first."""
    nodes, edges = torch.tensor(batch["nodes"]).cumsum(0), torch.tensor(batch["edges"]).cumsum(0)
    blocks = []
    for hop in range(len(edges) - 1, -1, -1):
        source, target = batch["edge_index"][:, : edges[hop]]
        sizes = int(nodes[hop + 1]), int(nodes[hop])
        block = dgl.create_block((source, target), num_src_nodes=sizes[0], num_dst_nodes=sizes[1])
        block.create_formats_()
        blocks.append(block)
    return blocks


def forward(layers, blocks, h):
    """Run layers on blocks, with ReLU between; heads stand side by side, those of the last are averaged."""
    for number, (layer, block) in enumerate(zip(layers, blocks)):  # noqa: B905 - the peers' Python
        h = layer(block, h)
        is_last = number == len(layers) - 1
        if h.dim() == 3:
            h = h.mean(1) if is_last else h.flatten(1)
        h = h if is_last else h.relu()
    return h


class Layers(nn.Module):
    """Three layers on blocks."""

    def __init__(self, make, sizes: list):
        super().__init__()
        self.layers = nn.ModuleList(make(sizes[i], sizes[i + 1], i == 2) for i in range(3))

    def forward(self, prepared):
        """Return the rows of the seeds."""
        h, blocks = prepared
        return forward(self.layers, blocks, h)


def options_of(description: str, models: list) -> argparse.Namespace:
    """The options of a run; seeds torch and sets its threads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", choices=models)
    parser.add_argument("batches", type=Path)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    return options


def print_steps(options: argparse.Namespace, batches: list, prepare, model: nn.Module) -> None:
    """Time a model's steps on each batch, which ``prepare`` makes its input of; print them."""
    turns = [[] for _ in batches]
    for _ in range(options.repeats):
        for batch, taken in zip(batches, turns):  # noqa: B905 - the peers' Python
            prepared = prepare(batch)
            started = time.process_time()
            model.zero_grad()
            F.cross_entropy(model(prepared), batch["y"]).backward()
            taken.append(time.process_time() - started)
    # The first batch's step pays for the memory that the others use again.
    least = [min(taken) for taken in turns[1:]]
    print(json.dumps({"lib": "dgl", "model": options.model, "ms": 1e3 * sum(least) / len(least)}))


def main() -> None:
    """Compute and time."""
    options = options_of(__doc__, list(LAYERS))
    batches = torch.load(options.batches)
    sizes = [batches[0]["x"].shape[1], options.hidden, options.hidden, options.classes]
    model = Layers(LAYERS[options.model], sizes)
    print_steps(options, batches, lambda batch: (batch["x"], blocks_of(batch)), model)


if __name__ == "__main__":
    main()
