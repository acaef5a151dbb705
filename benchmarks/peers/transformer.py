"""Full-graph heterogeneous graph transformer (HGT) by PyG: the median epoch and peak memory; one JSON line.

    python -m benchmarks.peers.transformer FOLDER [--hidden 64] [--heads 4]

FOLDER is one of ``benchmarks.sampling.typed_graphs``. The model is that of PyG's example: a linear layer and
ReLU for each node type, two ``HGTConv``, and a linear layer for the type with labels. Adam, learning rate
0.01; the first epoch is not timed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import HGTConv

from benchmarks.peers.common import median, peak_gb
from benchmarks.peers.relational import CLASSES, Task, add_model_arguments, task_of, told_of

Relations = dict[tuple[str, str, str], Tensor]


class Net(nn.Module):
    """PyG's example of HGT."""

    def __init__(self, told: dict[str, Any], options: Any) -> None:
        super().__init__()
        kinds = list(told["num_nodes"]), [tuple(one) for one in told["edge_types"]]
        width = options.hidden
        self.inputs = nn.ModuleDict({name: nn.Linear(options.features, width) for name in kinds[0]})
        self.convs = nn.ModuleList(HGTConv(width, width, kinds, options.heads) for _ in range(2))
        self.output = nn.Linear(width, CLASSES)
        self.seed_type = told["seed_type"]

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Relations) -> Tensor:
        """Outputs of all nodes of the type with labels."""
        rows = {name: self.inputs[name](x).relu() for name, x in x_dict.items()}
        for conv in self.convs:
            rows = conv(rows, edge_index_dict)
        out: Tensor = self.output(rows[self.seed_type])
        return out


def relations_of(folder: Path) -> Relations:
    """The edges of each relation, in the order of the graph's relations."""
    types = enumerate(told_of(folder)["edge_types"])
    return {tuple(one): torch.from_numpy(np.load(folder / f"{number}.npy")) for number, one in types}


def trained(net: Net, task: Task, outputs: Callable[[], Tensor], epochs: int) -> tuple[list[float], float]:
    """Seconds of the epochs but the first, and the last one's loss."""
    optimizer = torch.optim.Adam(net.parameters(), 0.01, fused=True)
    seconds, loss = [], torch.tensor(0.0)
    for _ in range(epochs + 1):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(outputs(), task.y)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    return seconds[1:], loss.item()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The graph, the widths and the threads."""
    add_model_arguments(parser)
    parser.add_argument("--heads", type=int, default=4)


def main() -> None:
    """Train and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    task, edges = task_of(options.folder, options.features), relations_of(options.folder)
    net, data_gb = Net(told_of(options.folder), options), peak_gb()
    seconds, loss = trained(net, task, lambda: net(task.x, edges)[task.nodes], options.epochs)
    times = {"epoch_s": median(seconds), "epochs_s": seconds}
    memory = {"peak_rss_gb": peak_gb(), "data_rss_gb": data_gb}
    print(json.dumps({"lib": "pyg", **times, **memory, "loss": loss}))


if __name__ == "__main__":
    main()
