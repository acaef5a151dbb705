"""Test accuracy of full-graph training beside PyG's, the same module trained twice from the same weights.

    python -m benchmarks.full_accuracy [--data ../shared/data] [--seeds 10]

A two-layer GCN of PyG with dropout, once as it is and once through ``graphbraid.compile``: the same
initial weights, optimizer and number of epochs; the masks of dropout are each library's own. The test split
is evaluated once, after the last epoch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

import graphbraid
from benchmarks.accuracy import DATA
from benchmarks.accuracy_setups import CITATION, SPLIT_SEED
from benchmarks.common import write_results
from graphbraid import Graph, datasets

RANDOM_SPLIT: dict[str, Any] = {"normalize_features": True, "split_seed": SPLIT_SEED}
SETUPS: dict[str, dict[str, Any]] = {
    "cora": CITATION,
    "citeseer": CITATION,
    "amazon_computers": RANDOM_SPLIT | {"symmetrize": True},
    "coauthor_physics": RANDOM_SPLIT,
}


class GCN(nn.Module):
    """PyG's layers, two of them."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = GCNConv(in_channels, 16, cached=True)
        self.second = GCNConv(16, out_channels, cached=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.first(x, edge_index)), p=0.5, training=self.training)
        return self.second(x, edge_index)


def accuracy(outputs: Tensor, graph: Graph) -> float:
    """Percent of the test nodes."""
    test = graph.split("test")
    assert graph.y is not None
    return 100.0 * float((outputs[test].argmax(1) == graph.y[test]).float().mean())


def train(graph: Graph, seed: int, epochs: int, *, compiled: bool) -> dict[str, float]:
    """One run."""
    assert graph.y is not None
    torch.manual_seed(seed)
    model = GCN(graph.num_features, graph.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=5e-4)
    nodes = graph.split("train")
    labels = graph.y[nodes]
    x, edge_index = graph.dense_x().float(), torch.stack([graph.csc.indices.long(), graph.csc.destinations()])
    engine = graphbraid.compile(model, graph) if compiled else None
    started = time.perf_counter()
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        outputs = engine() if engine is not None else model(x, edge_index)[nodes]
        loss = F.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - started
    model.eval()
    with torch.no_grad():
        predicted = engine.predict() if engine is not None else model(x, edge_index)
    return {"seed": seed, "test": accuracy(predicted, graph), "loss": loss.item(), "seconds": seconds}


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row: both over all seeds."""
    graph = datasets.load(options.data / f"{name}.npz", **SETUPS[name])
    runs = {
        lib: [
            train(graph, seed, options.epochs, compiled=lib == "graphbraid") for seed in range(options.seeds)
        ]
        for lib in ("graphbraid", "pyg")
    }
    tests = {lib: [run["test"] for run in of] for lib, of in runs.items()}
    difference = [a - b for a, b in zip(tests["graphbraid"], tests["pyg"], strict=True)]
    spread = sum(statistics.variance(of) for of in tests.values()) / options.seeds
    return {
        "dataset": name,
        **{f"{lib}_mean": statistics.mean(of) for lib, of in tests.items()},
        "difference": statistics.mean(difference),
        "standard_error": spread**0.5,
        "runs": runs,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("dataset", "graphbraid", "PyG", "difference", "standard error", "seconds: ours", "PyG")
    for row in rows:
        figures = [row["graphbraid_mean"], row["pyg_mean"], row["difference"], row["standard_error"]]
        seconds = [sum(run["seconds"] for run in row["runs"][lib]) for lib in ("graphbraid", "pyg")]
        table.add_row(row["dataset"], *[f"{f:.2f}" for f in figures], *[f"{s:.1f}" for s in seconds])
    Console(width=110).print(table)


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--names", nargs="+", default=list(SETUPS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [compare(name, options) for name in options.names]
    show(rows)
    print("wrote", write_results("full_accuracy", {"epochs": options.epochs, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
