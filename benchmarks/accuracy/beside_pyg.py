"""Test accuracy of full-graph training beside PyG's, the same module trained from the same weights.

    python -m benchmarks.accuracy.beside_pyg [--data ../shared/data] [--seeds 10] [--names cora citeseer]

A two-layer GCN of PyG with dropout: through ``graphbraid.compile``, as it is, and as it is but with the
dropout masks that the engine draws from the same seed, which leaves rounding as the only difference. All
start from the same weights, with the same optimizer and number of epochs; the test split is evaluated once,
after the last. With ``--names``, the rows of other datasets stay in the results.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

import graphbraid
from benchmarks.accuracy.literature import DATA
from benchmarks.accuracy.setups import CITATION, SPLIT_SEED
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import Graph, datasets
from graphbraid.fullgraph import Uncompiled
from graphbraid.ops.rng import draw_seed, keep_mask

RANDOM_SPLIT: dict[str, Any] = {"normalize_features": True, "split_seed": SPLIT_SEED}
SETUPS: dict[str, dict[str, Any]] = {
    "cora": CITATION,
    "citeseer": CITATION,
    "amazon_computers": RANDOM_SPLIT | {"symmetrize": True},
    "coauthor_physics": RANDOM_SPLIT,
}


EPOCHS = {"cora": 200, "citeseer": 200, "amazon_computers": 600, "coauthor_physics": 200}
"""Epochs until the loss no longer falls; Amazon's is still falling after 200."""
CONTENDERS = ("graphbraid", "pyg", "pyg_same_masks")
DROPOUT = 0.5
SPARSE_BELOW = 0.05


class GCN(nn.Module):
    """PyG's layers, two of them.

    Args:
        in_channels: width of the features.
        out_channels: number of classes.
        dropout: gives the rows of a training step with some elements dropped.
    """

    def __init__(self, in_channels: int, out_channels: int, dropout: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = GCNConv(in_channels, 16, cached=True)
        self.second = GCNConv(16, out_channels, cached=True)
        self._dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.first(x, edge_index))
        return self.second(self._dropout(x) if self.training else x, edge_index)


def by_pytorch(x: Tensor) -> Tensor:
    """Dropout with PyTorch's masks."""
    return F.dropout(x, p=DROPOUT)


def by_counter(x: Tensor) -> Tensor:
    """Dropout with the mask that graphbraid's kernels would draw next from torch's generator."""
    kept = keep_mask(torch.arange(x.shape[0]), x.shape[1], DROPOUT, draw_seed())
    return x * kept / (1 - DROPOUT)


def peer_features(graph: Graph) -> Tensor:
    """What PyG multiplies: a sparse matrix where that is the faster for it by far, of the same values."""
    x = graph.dense_x().float()
    return x.to_sparse_csr() if (x != 0).float().mean() < SPARSE_BELOW else x


def accuracy(outputs: Tensor, graph: Graph) -> float:
    """Percent of the test nodes."""
    test = graph.split("test")
    assert graph.y is not None
    return 100.0 * float((outputs[test].argmax(1) == graph.y[test]).float().mean())


def train(graph: Graph, seed: int, epochs: int, contender: str) -> dict[str, Any]:
    """One run; its losses are those of the first 20 epochs and the last."""
    assert graph.y is not None
    torch.manual_seed(seed)
    dropout = by_counter if contender == "pyg_same_masks" else by_pytorch
    model = GCN(graph.num_features, graph.num_classes, dropout)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=5e-4)
    nodes = graph.split("train")
    labels = graph.y[nodes]
    x, edge_index = peer_features(graph), torch.stack([graph.csc.indices.long(), graph.csc.destinations()])
    engine = graphbraid.compile(model, graph) if contender == "graphbraid" else None
    assert not isinstance(engine, Uncompiled), engine.explain()
    torch.manual_seed(seed)  # whatever was drawn to make the contender, its masks begin alike
    losses = []
    started = time.perf_counter()
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        outputs = engine() if engine is not None else model(x, edge_index)[nodes]
        loss = F.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - started
    model.eval()
    with torch.no_grad():
        predicted = engine.predict() if engine is not None else model(x, edge_index)
    return {
        "seed": seed,
        "test": accuracy(predicted, graph),
        "loss": losses[-1],
        "first_losses": losses[:20],
        "seconds": seconds,
    }


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row: all contenders over all seeds."""
    graph = datasets.load(options.data / f"{name}.npz", **SETUPS[name])
    epochs = options.epochs or EPOCHS[name]
    runs = {
        contender: [train(graph, seed, epochs, contender) for seed in range(options.seeds)]
        for contender in CONTENDERS
    }
    row: dict[str, Any] = {"dataset": name, "epochs": epochs}
    row |= {f"{c}_mean": statistics.mean(run["test"] for run in of) for c, of in runs.items()}
    for peer in CONTENDERS[1:]:
        row[peer] = difference(runs["graphbraid"], runs[peer])
    # One rounding's difference, before training can magnify it.
    row["pyg_same_masks"]["largest_relative_loss_difference"] = max(
        abs(a / b - 1)
        for ours, theirs in zip(runs["graphbraid"], runs["pyg_same_masks"], strict=True)
        for a, b in zip(ours["first_losses"], theirs["first_losses"], strict=True)
    )
    return row | {"runs": runs}


def difference(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, float]:
    """Mean of ours less theirs, and the standard error of the difference of two means of as many runs."""
    tests = [[run["test"] for run in of] for of in (ours, theirs)]
    spread = sum(statistics.variance(of) for of in tests) / len(ours)
    return {
        "difference": statistics.mean(tests[0]) - statistics.mean(tests[1]),
        "standard_error": spread**0.5,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("dataset", "epochs", "graphbraid", "PyG", "ours less PyG's", "PyG, same masks", "ours less")
    for row in rows:
        cells = [f"{row[f'{contender}_mean']:.2f}" for contender in CONTENDERS]
        less = [
            f"{row[peer]['difference']:+.2f} ± {row[peer]['standard_error']:.2f}" for peer in CONTENDERS[1:]
        ]
        table.add_row(row["dataset"], str(row["epochs"]), *cells[:2], less[0], cells[2], less[1])
    Console(width=110).print(table)


def main() -> None:
    """Train, print, write; a dataset's row as soon as it is there."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--names", nargs="+", default=list(SETUPS), choices=list(SETUPS))
    parser.add_argument("--seeds", type=int, default=10, help="at least 2")
    parser.add_argument("--epochs", type=int, help="of every dataset; default: each dataset's own")
    add_out_argument(parser)
    options = parser.parse_args()
    rows = []
    for name in options.names:
        rows.append(compare(name, options))
        print("wrote", write_rows("full_accuracy", {name: rows[-1]}, repeats=options.seeds, out=options.out))
    show(rows)


if __name__ == "__main__":
    main()
