"""Test accuracy of R-GCN on graphs with node types, beside PyG's training of the same model.

    python -m benchmarks.accuracy.relational [--data ../shared/data] [--seeds 10] [--names het_acm het_dblp]

Both have a linear layer per node type with features, a learned row per node without, and two relational
layers; each relation has its reverse. Ours trains by ``Trainer`` on mini-batches, whose one batch of all
training nodes draws all neighbours; PyG's ``RGCNConv`` trains on the whole graph, all types' nodes one after
the other. The optimizer, its options, the number of epochs and the choice of the best one by validation loss
are the same. Without dropout (``--dropout 0``) both have the same losses up to rounding, as they start from
the same weights; the row says how far they are apart in the first epochs.
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
from torch_geometric.nn import RGCNConv

import graphbraid
from benchmarks.accuracy.beside_pyg import difference
from benchmarks.accuracy.literature import DATA
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import Graph, Trainer, datasets
from graphbraid.train import Callback, StepRecord

NAMES = ("het_acm", "het_dblp")
HIDDEN, EPOCHS, LEARNING_RATE, WEIGHT_DECAY, DROPOUT = 64, 100, 0.01, 5e-4, 0.5
COMPARED_EPOCHS = 10
"""Epochs whose losses are compared where there is no dropout."""


class Relational(nn.Module):
    """The model on PyG's layers, over all nodes.

    Args:
        graph: the graph with types.
        ours: graphbraid's model, whose weights are taken.
    """

    def __init__(self, graph: Graph, ours: graphbraid.nn.RGCN) -> None:
        super().__init__()
        self.node_types, self.node_type, self.dropout = ours.node_types, ours.node_type, ours.dropout
        self.inputs = nn.ModuleList()
        for theirs in ours.inputs:
            assert isinstance(theirs, nn.Linear | nn.Embedding)
            if isinstance(theirs, nn.Linear):
                made: nn.Module = nn.Linear(theirs.in_features, theirs.out_features)
            else:
                made = nn.Embedding(theirs.num_embeddings, theirs.embedding_dim)
            self.inputs.append(made)
        widths = [(conv.in_channels, conv.out_channels) for conv in ours.convs]
        self.convs = nn.ModuleList(RGCNConv(*both, len(graph.edge_types)) for both in widths)
        self.load_state_dict(ours.state_dict())
        counts = [graph.nodes_of(name).num_nodes for name in graph.node_types]
        first = dict(zip(graph.node_types, torch.tensor([0, *counts]).cumsum(0).tolist(), strict=False))
        lists = graph.to_edge_indices()
        self.edge_index = torch.cat(
            [pairs + torch.tensor([[first[one[0]]], [first[one[2]]]]) for one, pairs in lists.items()], 1
        )
        self.edge_type = torch.repeat_interleave(torch.tensor([pairs.shape[1] for pairs in lists.values()]))
        begin = first[self.node_type or ""]
        self.rows = slice(begin, begin + graph.nodes_of(self.node_type or "").num_nodes)

    def forward(self, x_dict: dict[str, Tensor]) -> Tensor:
        rows = []
        for name, layer in zip(self.node_types, self.inputs, strict=True):
            x = layer.weight if isinstance(layer, nn.Embedding) else F.relu(layer(x_dict[name]))
            rows.append(F.dropout(x, self.dropout, self.training))
        x = torch.cat(rows)
        for number, conv in enumerate(self.convs):
            x = conv(x, self.edge_index, self.edge_type)
            if number < len(self.convs) - 1:
                x = F.dropout(F.relu(x), self.dropout, self.training)
        return x[self.rows]


def new_model(graph: Graph, seed: int, dropout: float) -> graphbraid.nn.RGCN:
    """The weights that both begin with."""
    torch.manual_seed(seed)
    return graphbraid.nn.RGCN.of(graph, HIDDEN, dropout=dropout)


def by_trainer(graph: Graph, seed: int, epochs: int, dropout: float) -> dict[str, Any]:
    """One run of ours."""
    losses: list[float] = []

    class Record(Callback):
        def on_step_end(self, trainer: Trainer, step: StepRecord) -> None:
            losses.append(step.loss)

    trainer = Trainer(
        new_model(graph, seed, dropout),
        graph,
        callbacks=[Record()],
        epochs=epochs,
        fanouts=(-1, -1),
        batch_size=1 << 16,
        layout="blocks",
        eval_batch_size=1 << 16,
        optimizer="adam",
        lr=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        monitor="loss",
        seed=seed,
    )
    result = trainer.fit()
    return {
        "seed": seed,
        "test": 100 * result.test["accuracy"],
        "losses": losses[:COMPARED_EPOCHS],
        "seconds": result.seconds,
    }


def by_pyg(graph: Graph, seed: int, epochs: int, dropout: float) -> dict[str, Any]:
    """One run of PyG's layers, with a loop as its examples have."""
    model = Relational(graph, new_model(graph, seed, dropout))
    assert model.node_type is not None
    nodes = graph.nodes_of(model.node_type)
    assert nodes.y is not None
    x_dict = _dense_features(graph)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    train, val, test = (nodes.split(name) for name in ("train", "val", "test"))
    losses, best, weights = [], float("inf"), model.state_dict()
    started = time.perf_counter()
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x_dict)[train], nodes.y[train])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            of_val = F.cross_entropy(model(x_dict)[val], nodes.y[val]).item()
        if of_val < best:
            best, weights = of_val, {name: value.clone() for name, value in model.state_dict().items()}
    seconds = time.perf_counter() - started
    model.load_state_dict(weights)
    with torch.no_grad():
        right = model(x_dict)[test].argmax(1) == nodes.y[test]
    return {
        "seed": seed,
        "test": 100 * float(right.float().mean()),
        "losses": losses[:COMPARED_EPOCHS],
        "seconds": seconds,
    }


def _dense_features(graph: Graph) -> dict[str, Tensor]:
    held = {name: graph.nodes_of(name).x for name in graph.node_types}
    return {
        name: x.float() if isinstance(x, Tensor) else x.to_dense().float()
        for name, x in held.items()
        if x is not None
    }


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row: both over all seeds."""
    graph = datasets.load(options.data / f"{name}.npz", symmetrize=True)
    given = options.epochs, options.dropout
    ours = [by_trainer(graph, seed, *given) for seed in range(options.seeds)]
    theirs = [by_pyg(graph, seed, *given) for seed in range(options.seeds)]
    row: dict[str, Any] = {"dataset": name, "epochs": options.epochs, "dropout": options.dropout}
    for contender, runs in (("graphbraid", ours), ("pyg", theirs)):
        row[f"{contender}_mean"] = statistics.mean(run["test"] for run in runs)
        row[f"{contender}_deviation"] = statistics.stdev(run["test"] for run in runs)
    row |= difference(ours, theirs)
    row["largest_relative_loss_difference"] = max(
        abs(a / b - 1)
        for one, other in zip(ours, theirs, strict=True)
        for a, b in zip(one["losses"], other["losses"], strict=True)
    )
    return row | {"runs": {"graphbraid": ours, "pyg": theirs}}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("dataset", "graphbraid", "PyG", "ours less PyG's", "losses apart")
    for row in rows:
        cells = [f"{row[f'{c}_mean']:.2f} ± {row[f'{c}_deviation']:.2f}" for c in ("graphbraid", "pyg")]
        less = f"{row['difference']:+.2f} ± {row['standard_error']:.2f}"
        # With dropout each draws masks of its own.
        apart = "" if row["dropout"] else f"{row['largest_relative_loss_difference']:.1e}"
        table.add_row(row["dataset"], *cells, less, apart)
    Console(width=110).print(table)


def main() -> None:
    """Train, print, write; a dataset's row as soon as it is there."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--names", nargs="+", default=list(NAMES))
    parser.add_argument("--seeds", type=int, default=10, help="at least 2")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--dropout", type=float, default=DROPOUT)
    add_out_argument(parser)
    options = parser.parse_args()
    rows = []
    for name in options.names:
        rows.append(compare(name, options))
        key = name if options.dropout else f"{name} without dropout"
        path = write_rows("relational_accuracy", {key: rows[-1]}, repeats=options.seeds, out=options.out)
        print("wrote", path)
    show(rows)


if __name__ == "__main__":
    main()
