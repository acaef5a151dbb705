"""Runs on parts that numbers draw: models, placements, layouts and options."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch_geometric.nn as pyg
from tests.distributed import shard_training, typed_shard_training
from tests.distributed.same_learning import CHANNELS, LAYERS, NATIVE, Hetero
from tests.distributed.training import BASE, fitted
from torch import Tensor, nn

import graphbraid.nn as native
from graphbraid.distributed import Communicator, ShardedGraph
from graphbraid.errors import GraphbraidError
from graphbraid.graph import Graph
from graphbraid.train import Trainer

PLAIN, TYPED = ("sage", "gcn", "gat", "gin", "own message"), ("rgcn", "hgt", "hetero")
TRAINER: dict[str, dict[str, Any]] = {
    "bfloat16": {"precision": "bfloat16"},
    "exact": {"eval_mode": "exact"},
    "as written": {"compiled": False},
    "accumulated": {"accumulate": 3},
    "clipped": {"clip": 0.1, "class_weights": (1.0, 2.0, 0.5)},
    "all neighbours": {"fanouts": (-1, -1)},
    "kept": {},
    "resumed": {},
}
READ = {"weights", "features", "data"}
"""What a model may read of edges, by arguments or as the whole ``data``."""


class OfPyg(nn.Module):
    """Two layers of PyG, of which the last may read what belongs to edges."""

    def __init__(self, kind: str, options: set[str]) -> None:
        super().__init__()
        width = 8 if "learned" in options else CHANNELS
        self.first, self.last = LAYERS[kind](width, 8), LAYERS[kind](8, 3)
        if "weights" in options:
            self.last = pyg.GraphConv(8, 3)
        elif READ & options:
            self.last = pyg.GINEConv(nn.Linear(8, 3), edge_dim=3)
        self.norm = nn.BatchNorm1d(8) if "norm" in options else nn.Identity()
        self.drop = nn.Dropout(0.5 if "dropout" in options else 0.0)

    def through(self, x: Tensor, edge_index: Tensor, *of_edges: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(x, edge_index)).relu()), edge_index, *of_edges)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.through(x, edge_index)


class OfWeights(OfPyg):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.through(x, edge_index, edge_weight)


class OfFeatures(OfPyg):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.through(x, edge_index, edge_attr)


class OfData(OfPyg):
    def forward(self, data: Any) -> Tensor:
        return self.through(data.x, data.edge_index, data.edge_attr + data.edge_weight[:, None])


def cell(number: int) -> dict[str, Any]:
    """Return what a number draws."""
    draw = random.Random(number)
    options = {
        *draw.sample([*TRAINER, "dropout", "norm", "learned", *sorted(READ)], draw.choice([1, 2, 2, 3, 4]))
    }
    kind = draw.choice([*PLAIN, *TYPED])
    by_pyg = draw.random() < 0.5 or kind == "own message"
    if reads := READ & options and (by_pyg or kind in TYPED):
        options -= {"learned"}
    if "as written" in options:  # then torch itself draws: dropout depends on the rank, and a warning says so
        options -= {"dropout"}
    blocks = draw.random() < 0.5 and not reads and (kind == "rgcn" or not (by_pyg or kind in TYPED))
    return {
        "kind": kind,
        "lists": draw.choice(["parts", "whole"]),
        "layout": "blocks" if blocks else "subgraph",
        "by_pyg": by_pyg,
        "options": sorted(options),
        "batch_size": draw.choice([32, 67, 99, 197]),
    }


def graph_of(kind: str) -> Graph:
    """Return the graph of a kind of models, with weights and features of edges."""
    return typed_shard_training.with_edges() if kind in TYPED else shard_training.with_edges()


def model_of(drawn: dict[str, Any], graph: Graph) -> nn.Module:
    """Make the model of a cell."""
    torch.manual_seed(0)
    kind, options = drawn["kind"], {*drawn["options"]}
    dropout = 0.5 if "dropout" in options else 0.0
    if kind in TYPED:
        if "weights" in options:
            return typed_shard_training.WeightedCitations(graph)
        if "features" in options:
            return typed_shard_training.AttributedCitations(graph)
        if kind == "rgcn":
            return native.RGCN.of(graph, 8, dropout=dropout, sharded="learned" in options)
        return (typed_shard_training.Transformer if kind == "hgt" else Hetero)(graph)
    if drawn["by_pyg"]:
        classes = {"weights": OfWeights, "features": OfFeatures, "data": OfData}
        model = next((made for name, made in classes.items() if name in options), OfPyg)(kind, options)
    else:
        norm = {"norm": "batch"} if "norm" in options and kind != "gin" else {}
        model = NATIVE[kind](8 if "learned" in options else CHANNELS, 8, 3, dropout=dropout, **norm)
    return native.NodeEmbedding(graph.num_nodes, 8, model, sharded=True) if "learned" in options else model


def run_of(graph: Graph, drawn: dict[str, Any], out: str) -> dict[str, Any] | str:
    """Train on a graph by one cell; what was learned, or why it is refused."""
    options = {*drawn["options"]}
    given = BASE | {name: drawn[name] for name in ("layout", "batch_size")} | {"optimizer": "sgd", "lr": 0.05}
    for name in sorted(options & TRAINER.keys()):
        given |= TRAINER[name]
    if drawn["kind"] in TYPED and (READ & options or drawn["kind"] == "hgt"):
        given["fanouts"] = given["fanouts"][:1]
    if "kept" in options and isinstance(graph, ShardedGraph):
        given["remote"] = "16KiB"
    runs: list[dict[str, Any]] = [{}]
    if "resumed" in options:
        runs = [{"epochs": 1, "out_dir": out}, {"epochs": 2, "out_dir": out, "resume": True}]
    losses = []
    try:
        for run in runs:
            trainer = Trainer(model_of(drawn, graph), graph, **given | run)
            found = fitted(trainer)
            losses += found["losses"]
        predicted = trainer.predict(torch.arange(90)).double().abs().sum(1).tolist()
        return found | {"losses": losses, "predicted": predicted}
    except GraphbraidError as error:
        return f"{type(error).__name__}: {error}"


def cells(comm: Communicator, folder: str, first: str, count: str, graphs: str) -> dict[str, Any]:
    """Train cells on the whole graph, and on parts if ``graphs`` says so."""
    found: dict[str, Any] = {}
    for number in range(int(first), int(first) + int(count)):
        drawn = cell(number)
        given = {"whole": graph_of(drawn["kind"])}
        if graphs == "both":
            parts = f"{folder}/{given['whole'].is_typed}-{drawn['lists']}"
            given["parts"] = ShardedGraph.open(parts, comm)
        found[f"{number}: {drawn}"] = {
            name: run_of(one, drawn, f"{folder}/{number}-{name}-{comm.size}-{graphs}")
            for name, one in given.items()
        }
    return found
