"""Full-graph R-GCN by PyG or DGL: the median epoch and peak memory; one JSON line.

    python -m benchmarks.peers.relational pyg|pyg-fast|dgl FOLDER [--hidden 64]

FOLDER is one of ``benchmarks.sampling.typed_graphs``. A linear layer and ReLU for each node type, then two
relational layers over all nodes in one numbering, with the mean over each relation. Features, labels and
weights are drawn by NumPy, alike for every contender. Adam, learning rate 0.01; the first epoch is not timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers.common import median, peak_gb

LIBRARIES = ("pyg", "pyg-fast", "dgl")
CLASSES = 40


@dataclass
class Task:
    """What is learned: features by node type, and labels of the training nodes of one type."""

    x: dict[str, Tensor]
    y: Tensor
    nodes: Tensor


def told_of(folder: Path) -> dict[str, Any]:
    """The numbers of nodes, the relations and the type of the seeds."""
    found: dict[str, Any] = json.loads((folder / "types.json").read_text(encoding="utf-8"))
    return found


def task_of(folder: Path, num_features: int) -> Task:
    """Half of the seeds are trained on."""
    draw, told = np.random.default_rng(2), told_of(folder)
    sizes = told["num_nodes"].items()
    x = {name: draw.standard_normal((count, num_features), dtype=np.float32) for name, count in sizes}
    seeds = np.load(folder / "seeds.npy")
    nodes = torch.from_numpy(seeds[: max(seeds.size // 2, 1)])
    y = torch.from_numpy(draw.integers(CLASSES, size=nodes.numel()))
    return Task({name: torch.from_numpy(rows) for name, rows in x.items()}, y, nodes)


def weights_of(num_types: int, num_relations: int, widths: list[int]) -> dict[str, Tensor]:
    """Weights by the names of ``graphbraid.nn.RGCN``; biases are zero."""
    draw = np.random.default_rng(3)

    def drawn(*shape: int) -> Tensor:
        most = (6 / sum(shape[-2:])) ** 0.5
        return torch.from_numpy(draw.uniform(-most, most, shape).astype(np.float32))

    found = {}
    for number in range(num_types):
        found[f"inputs.{number}.weight"] = drawn(widths[1], widths[0])
        found[f"inputs.{number}.bias"] = torch.zeros(widths[1])
    for number, (into, out) in enumerate(itertools.pairwise(widths[1:])):
        found[f"convs.{number}.weight"] = drawn(num_relations, into, out)
        found[f"convs.{number}.root"] = drawn(into, out)
        found[f"convs.{number}.bias"] = torch.zeros(out)
    return found


def whole_edges(folder: Path) -> tuple[Tensor, Tensor, dict[str, int]]:
    """All edges between nodes in one numbering, the relation of each, and each type's first id."""
    told, first, total = told_of(folder), {}, 0
    for name, count in told["num_nodes"].items():
        first[name], total = total, total + count
    pairs, types = [], []
    for number, (source, _, destination) in enumerate(told["edge_types"]):
        ends = torch.from_numpy(np.load(folder / f"{number}.npy"))
        pairs.append(ends + torch.tensor([[first[source]], [first[destination]]]))
        types.append(torch.full((ends.shape[1],), number))
    return torch.cat(pairs, 1), torch.cat(types), first


class Net(nn.Module):
    """Input layers by type, and relational layers over all nodes."""

    def __init__(self, layers: list[nn.Module], call: Callable[..., Tensor], inputs: list[nn.Linear]) -> None:
        super().__init__()
        self.inputs, self.convs, self._call = nn.ModuleList(inputs), nn.ModuleList(layers), call

    def forward(self, xs: list[Tensor]) -> Tensor:
        """Rows of all nodes."""
        rows = torch.cat([F.relu(layer(x)) for layer, x in zip(self.inputs, xs, strict=True)])
        for number, conv in enumerate(self.convs):
            rows = self._call(conv, F.relu(rows) if number else rows)
        return rows


def pyg_net(folder: Path, widths: list[int], options: Any, weights: dict[str, Tensor]) -> Net:
    """PyG's layers; ``FastRGCNConv`` keeps a row per edge."""
    from torch_geometric.nn import FastRGCNConv, RGCNConv

    edges, types, _ = whole_edges(folder)
    kind = FastRGCNConv if options.library == "pyg-fast" else RGCNConv
    count = len(told_of(folder)["edge_types"])
    layers = [kind(into, out, count, is_sorted=True) for into, out in itertools.pairwise(widths[1:])]
    inputs = [nn.Linear(widths[0], widths[1]) for _ in told_of(folder)["num_nodes"]]
    net = Net(layers, lambda conv, rows: conv(rows, edges, types), inputs)
    net.load_state_dict(weights)
    return net


def dgl_net(folder: Path, widths: list[int], weights: dict[str, Tensor]) -> Net:
    """DGL's ``RelGraphConv``, with the mean's factor of each edge."""
    import dgl
    from dgl.nn import RelGraphConv

    edges, types, _ = whole_edges(folder)
    told = told_of(folder)
    count, num_nodes = len(told["edge_types"]), sum(told["num_nodes"].values())
    graph = dgl.graph((edges[0], edges[1]), num_nodes=num_nodes)
    degrees = torch.bincount(edges[1] * count + types, minlength=num_nodes * count)
    norm = (1 / degrees[edges[1] * count + types].float())[:, None]
    layers = [RelGraphConv(into, out, count) for into, out in itertools.pairwise(widths[1:])]
    inputs = [nn.Linear(widths[0], widths[1]) for _ in told["num_nodes"]]
    net = Net(layers, lambda conv, rows: conv(graph, rows, types, norm, presorted=True), inputs)
    names = {"weight": "linear_r.W", "root": "loop_weight", "bias": "h_bias"}
    renamed = {}
    for name, value in weights.items():
        *place, last = name.split(".")
        renamed[".".join([*place, names[last] if place[0] == "convs" else last])] = value
    net.load_state_dict(renamed)
    return net


def train(options: Any) -> tuple[list[float], float, float]:
    """Seconds of the epochs but the first, the last one's loss, and the memory of the data."""
    task, told = task_of(options.folder, options.features), told_of(options.folder)
    widths = [options.features, options.hidden, options.hidden, CLASSES]
    weights = weights_of(len(told["num_nodes"]), len(told["edge_types"]), widths)
    if options.library == "dgl":
        net = dgl_net(options.folder, widths, weights)
    else:
        net = pyg_net(options.folder, widths, options, weights)
    first = whole_edges(options.folder)[2][told["seed_type"]]
    data_gb, nodes = peak_gb(), task.nodes + first
    # The fused form, where the library's PyTorch has it for the CPU: DGL's does not.
    optimizer = torch.optim.Adam(net.parameters(), 0.01, fused=options.library != "dgl")
    seconds, loss = [], torch.tensor(0.0)
    for _ in range(options.epochs + 1):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(net([task.x[name] for name in told["num_nodes"]])[nodes], task.y)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    return seconds[1:], loss.item(), data_gb


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The graph, the widths and the threads."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)


def main() -> None:
    """Train and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=LIBRARIES)
    add_model_arguments(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    __import__("dgl" if options.library == "dgl" else "torch_geometric.nn")
    seconds, loss, data_gb = train(options)
    times = {"epoch_s": median(seconds), "epochs_s": seconds}
    memory = {"peak_rss_gb": peak_gb(), "data_rss_gb": data_gb}
    print(json.dumps({"lib": options.library, **times, **memory, "loss": loss}))


if __name__ == "__main__":
    main()
