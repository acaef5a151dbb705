"""Epochs of PyG's ready models and propagating layers, compiled beside PyG itself.

    python -m benchmarks.fullgraph.ready braid-100k cora.npz

Two layers of width 64 (propagation as the model's name says), Adam, two threads. Both contenders start from
the same weights and take turns by the epoch in one process; medians of the epochs. After the last one their
losses must agree.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch_geometric import nn as pyg

import graphbraid
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import Graph, datasets
from graphbraid.fullgraph import Engine

HIDDEN = 64
Run = Callable[[], Tensor]


class Stack(nn.Module):
    """Two layers, and what PyG's examples have between and after them."""

    def __init__(self, make: Callable[[int, int], nn.Module], widths: tuple[int, int]) -> None:
        super().__init__()
        self.first, self.second = make(widths[0], HIDDEN), make(HIDDEN, widths[1])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return F.log_softmax(self.second(F.relu(self.first(x, edge_index)), edge_index), dim=1)


class Appnp(nn.Module):
    """A perceptron, then personalised propagation."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.mlp = pyg.MLP([in_channels, HIDDEN, out_channels], norm=None)
        self.propagate = pyg.APPNP(K=10, alpha=0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(self.mlp(x), edge_index)


class Gcn2(nn.Module):
    """Four layers with an initial residual."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first, self.last = pyg.Linear(in_channels, HIDDEN), pyg.Linear(HIDDEN, out_channels)
        self.convs = nn.ModuleList(pyg.GCN2Conv(HIDDEN, 0.1, 0.5, layer=i + 1) for i in range(4))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = first = F.relu(self.first(x))
        for conv in self.convs:
            x = F.relu(conv(x, first, edge_index))
        return self.last(x)


def ready(kind: Any, **options: Any) -> Callable[[int, int], nn.Module]:
    """One of PyG's ready models."""
    return lambda i, o: kind(i, HIDDEN, 2, o, **options)


def stack(make: Callable[[int, int], nn.Module]) -> Callable[[int, int], nn.Module]:
    """Two of a layer."""
    return lambda i, o: Stack(make, (i, o))


MODELS = {
    "GCN, jk=cat": ready(pyg.models.GCN, jk="cat"),
    "GraphSAGE, gelu": ready(pyg.models.GraphSAGE, act="gelu"),
    "GIN, batch norm": ready(pyg.models.GIN, norm="batch_norm"),
    "GraphConv, mean": stack(lambda i, o: pyg.GraphConv(i, o, aggr="mean")),
    "SGConv, K=2": lambda i, o: pyg.SGConv(i, o, K=2),
    "SSGConv, K=4": lambda i, o: pyg.SSGConv(i, o, alpha=0.1, K=4),
    "APPNP, K=10": Appnp,
    "GCN2Conv, 4 layers": Gcn2,
    "TAGConv, K=3": stack(pyg.TAGConv),
    "ChebConv, K=3": stack(lambda i, o: pyg.ChebConv(i, o, K=3)),
    "ARMAConv": stack(pyg.ARMAConv),
}


def with_training_nodes(graph: Graph) -> Graph:
    """The graph with its own training nodes, or with a tenth of all, from one seed, where it names none."""
    if "train" in graph.splits:
        return graph
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))
    return graph.replace(splits={"train": order[: graph.num_nodes // 10].clone()})


def measure(name: str, graph: Graph, epochs: int) -> dict[str, Any]:
    """One model on one graph: both epochs."""
    num_classes = int(graph.y.max()) + 1
    torch.manual_seed(0)
    model = MODELS[name](int(graph.x.shape[1]), num_classes)
    theirs = copy.deepcopy(model)
    started = time.perf_counter()
    engine = graphbraid.compile(model, graph)
    if not isinstance(engine, Engine):
        sys.exit(f"{name} is not lowered: {engine.explain()}")
    engine()
    compile_seconds = time.perf_counter() - started
    train = graph.split("train")
    x = graph.dense_x()
    edge_index = torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])
    runs: dict[str, tuple[nn.Module, Run]] = {
        "graphbraid": (model, engine),
        "pyg": (theirs, lambda: theirs(x, edge_index)[train]),
    }
    optimizers = {who: torch.optim.Adam(m.parameters(), 0.01, fused=True) for who, (m, _) in runs.items()}
    seconds: dict[str, list[float]] = {who: [] for who in runs}
    losses: dict[str, float] = {}
    for _ in range(epochs + 1):
        for who, (_, run) in runs.items():
            started = time.perf_counter()
            optimizers[who].zero_grad()
            loss = F.cross_entropy(run(), graph.y[train])
            loss.backward()
            optimizers[who].step()
            losses[who] = loss.item()
            seconds[who].append(time.perf_counter() - started)
    if abs(losses["graphbraid"] - losses["pyg"]) > 2e-3 * max(1.0, abs(losses["pyg"])):
        sys.exit(f"{name}: the losses differ: {losses}")
    row: dict[str, Any] = {f"{who}_s": statistics.median(taken[1:]) for who, taken in seconds.items()}
    return {"model": name, "compile_s": compile_seconds, "loss": losses, **row}


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("graphs", nargs="+", help="embedded datasets or .npz files")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    add_out_argument(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    table = Table("graph", "model", "graphbraid ms", "PyG ms", "PyG / graphbraid", "made in s")
    for name in options.graphs:
        graph = with_training_nodes(datasets.load(name))
        for model in MODELS:
            print(name, model, file=sys.stderr, flush=True)
            row = {"graph": Path(name).stem, **measure(model, graph, options.epochs)}
            rows.append(row)
            times = [f"{1e3 * row[key]:.1f}" for key in ("graphbraid_s", "pyg_s")]
            ratio = f"{row['pyg_s'] / row['graphbraid_s']:.1f}"
            table.add_row(row["graph"], model, *times, ratio, f"{row['compile_s']:.2f}")
    Console(width=110).print(table)
    named = {f"{row['graph']}, {row['model']}": row for row in rows}
    print("wrote", write_rows("fullgraph_ready", named, repeats=options.epochs, out=options.out))


if __name__ == "__main__":
    main()
