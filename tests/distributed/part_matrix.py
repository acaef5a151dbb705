"""Runs on parts that numbers draw: models, placements, layouts and options."""

import random
from dataclasses import replace
from typing import Any

import torch
import torch_geometric.nn as pyg
from tests.distributed import shard_training, typed_shard_training
from tests.distributed.same_learning import CHANNELS, LAYERS, NATIVE, Hetero
from tests.distributed.training import BASE, fitted
from tests.train import linked_communities, linked_times, linked_types
from tests.train.typed_communities import CITES
from torch import Tensor, nn

import graphbraid.nn as native
from graphbraid.datasets import split_edges
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
LINKED = {
    "relations": linked_communities.relations,
    "films": linked_types.films,
    "times": linked_times.meetings,
}
"""Graphs of which only links are learned."""
LINKS = 1000
"""Numbers from here on draw links and labels of edges."""
READ = {"weights", "features", "data"}
"""What a model may read of edges, by arguments or as the whole ``data``."""
READING_EDGES: list[tuple[str, bool, str, list[str], str]] = [
    ("gcn", False, "blocks", ["kept"], "binary"),
    ("gcn", False, "subgraph", ["exact"], "triplet"),
    ("gat", True, "subgraph", ["weights"], "shared"),
    ("sage", True, "subgraph", ["exact", "features"], "binary"),
    ("gcn", True, "subgraph", ["resumed", "weights"], "binary"),
    ("sage", False, "blocks", [], "one-vs-all"),
    ("relations", False, "subgraph", [], "one-vs-all"),
    ("relations", False, "subgraph", [], "shared"),
    ("films", False, "subgraph", [], "binary"),
    ("films", False, "subgraph", [], "self-adversarial"),
    ("times", False, "subgraph", [], "triplet"),
    ("times", False, "subgraph", [], "binary"),
]
"""Kind, whether of PyG, layout, options and negatives of encoders that read degrees, weights or features, and
of those of relations, types and times."""
READING = 10_000
"""Numbers from here on are those, for links on parts."""


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
    if number >= READING:
        names = ("kind", "by_pyg", "layout", "options", "negatives")
        drawn = dict(zip(names, READING_EDGES[number - READING], strict=True))
        lists = "whole" if drawn["kind"] in LINKED else "parts"
        strategy = "last" if drawn["negatives"] == "binary" else "uniform"
        times = {"temporal_strategy": strategy} if drawn["kind"] == "times" else {}
        return drawn | times | {"task": "link", "lists": lists, "batch_size": 200 if times else 997}
    return cell_of_links(number) if number >= LINKS else cell_of_nodes(number)


def cell_of_links(number: int) -> dict[str, Any]:
    """Return what a number draws of links and labels of edges: models of nodes are their encoders."""
    draw, drawn = random.Random(number), cell_of_nodes(number)
    task = draw.choice(["link", "link", "edge"])
    options = {*drawn["options"]} - {"learned", "data"}
    kinds = [*TYPED] if task == "edge" else [*PLAIN, *TYPED, *LINKED, *LINKED]
    drawn |= {"task": task, "kind": draw.choice(kinds), "lists": "whole"}
    of_many = drawn["kind"] in ("rgcn", "relations")
    negatives = ["binary", "triplet", "shared", "self-adversarial", *(["one-vs-all"] if of_many else [])]
    if drawn["kind"] in {*TYPED, *LINKED}:
        options -= READ | {"norm", "dropout"} if drawn["kind"] in LINKED else {"norm"}
        drawn["layout"] = "subgraph"
    elif READ & options:
        drawn |= {"layout": "subgraph", "by_pyg": True}
    negatives, strategy = draw.choice(negatives), draw.choice(["uniform", "last"])
    if drawn["kind"] == "own message":
        drawn["by_pyg"] = True
    if task == "link" and drawn["kind"] in PLAIN:
        drawn["lists"] = draw.choice(["parts", "parts", "whole"])
    given = {"batch_size": draw.choice([499, 997, 1500]), "options": sorted(options)}
    if task == "link":
        given |= {"negatives": negatives}
    if drawn["kind"] == "times":
        given |= {"temporal_strategy": strategy}
    return drawn | given


def cell_of_nodes(number: int) -> dict[str, Any]:
    """Return what a number draws of labels of nodes."""
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


def graph_of(name: str) -> Graph:
    """Return a graph by its name; the first three have weights and features of edges."""
    if name in LINKED:
        return LINKED[name]()
    if name == "plain":
        return shard_training.with_edges()
    graph = typed_shard_training.with_edges()
    assert graph.types is not None
    if name == "typed":
        return graph
    cites = graph.types.edges[CITES]
    labels = torch.randint(2, (cites.num_edges,), generator=torch.Generator().manual_seed(4))
    edges = {**graph.types.edges, CITES: replace(cites, y=labels)}
    return split_edges(graph.replace(types=replace(graph.types, edges=edges)), CITES, "0.6,0.2")


def name_of(drawn: dict[str, Any]) -> str:
    """Return the name of the graph that a cell learns."""
    if drawn["kind"] in LINKED:
        return str(drawn["kind"])
    return "labelled" if drawn.get("task") == "edge" else "typed" if drawn["kind"] in TYPED else "plain"


def model_of(drawn: dict[str, Any], graph: Graph) -> nn.Module:
    """Make the model of a cell."""
    if drawn["kind"] in LINKED:
        made = {"relations": linked_communities.rgcn, "films": linked_types.by_type}
        return made.get(drawn["kind"], linked_communities.sage)(graph)
    task, options = drawn.get("task"), {*drawn["options"]}
    by_type = task is not None and drawn["kind"] == "rgcn" and not options & {"weights", "features"}
    model = linked_types.by_type(graph).encoder if by_type else model_of_nodes(drawn, graph)
    if task is not None and isinstance(model, Hetero):  # PyTorch draws its masks, which depend on the rank
        model.drop.p = 0.0
    if task == "edge":
        return native.EdgeModel(model, native.EdgeDecoder(16 if by_type else 3, 2, edge_channels=2))
    return model if task is None else native.LinkModel(model, native.DotProduct())


def model_of_nodes(drawn: dict[str, Any], graph: Graph) -> nn.Module:
    """Make a model of nodes, which links may have as their encoder."""
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
    if (drawn["kind"] in TYPED and (READ & options or drawn["kind"] == "hgt")) or drawn[
        "kind"
    ] == "relations":
        given["fanouts"] = given["fanouts"][:1]
    if "task" in drawn:
        given |= of_links(drawn, given)
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
        if drawn.get("task") == "link":
            pairs = torch.arange(80).view(2, 40)
            kinds = torch.zeros(40, dtype=torch.int64) if drawn["kind"] == "relations" else None
            rows = trainer.predict_links(pairs % 60, kinds).view(-1, 1)
        else:
            rows = trainer.predict(torch.arange(90))
        predicted = rows.double().abs().sum(1).tolist()
        return found | {"losses": losses, "predicted": predicted}
    except GraphbraidError as error:
        return f"{type(error).__name__}: {error}"


def of_links(drawn: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the Trainer by which a cell learns links or labels of edges."""
    found = {"epochs": 1, "eval_batch_size": 200}
    found |= {name: drawn[name] for name in ("task", "negatives", "temporal_strategy") if name in drawn}
    if drawn["kind"] in TYPED:
        found["link_relation"] = CITES
    if drawn["kind"] == "films":
        found["link_relation"] = linked_types.RATES
    if drawn["kind"] == "relations" and drawn["negatives"] == "one-vs-all":
        found["n3"] = 0.01
    if "class_weights" in given:
        found["class_weights"] = (1.0, 2.0) if drawn["task"] == "edge" else None
    return found


def cells(comm: Communicator, folder: str, first: str, count: str, graphs: str) -> dict[str, Any]:
    """Train cells on the whole graph, and on parts if ``graphs`` says so."""
    found: dict[str, Any] = {}
    for number in range(int(first), int(first) + int(count)):
        drawn = cell(number)
        given = {"whole": graph_of(name_of(drawn))}
        if graphs == "both":
            parts = f"{folder}/{name_of(drawn)}-{drawn['lists']}"
            given["parts"] = ShardedGraph.open(parts, comm)
        found[f"{number}: {drawn}"] = {
            name: run_of(one, drawn, f"{folder}/{number}-{name}-{comm.size}-{graphs}")
            for name, one in given.items()
        }
    return found
