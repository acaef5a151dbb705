"""What ranks of a test learn with rows that they divide; each function is called with their communicator."""

import functools
import os
import re
import signal
from pathlib import Path

import torch
from tests.distributed.training import BASE, At, Losses, fitted, graph_of
from tests.train import linked_types
from tests.train.typed_communities import bibliography
from torch import Tensor, nn
from torch_geometric.nn import HeteroConv, SAGEConv

from graphbraid.distributed import Communicator, ShardedGraph
from graphbraid.errors import GraphbraidError
from graphbraid.graph import Graph
from graphbraid.graph.csc import coo_to_csc
from graphbraid.nn import RGCN, DotProduct, GraphSAGE, LinkModel, NodeEmbedding, ShardedEmbedding
from graphbraid.train import Trainer

RUN = BASE | {"optimizer": "adam", "lr": 0.05}


class BesideFeatures(nn.Module):
    """A user's model of PyG's layers, with learned rows beside the features; ``make`` makes the rows."""

    def __init__(self, graph: Graph, make=ShardedEmbedding) -> None:
        super().__init__()
        self.rows, self.few = make(graph.num_nodes, 6), make(graph.num_nodes, 3)
        self.layers = nn.ModuleList([SAGEConv(graph.num_features + 6, 8), SAGEConv(8 + 3, graph.num_classes)])

    def forward(self, x: Tensor, edge_index: Tensor, n_id: Tensor) -> Tensor:
        first, second = self.layers
        hidden = first(torch.cat((x, self.rows(n_id)), 1), edge_index).relu()
        few, read = torch.zeros(len(n_id), 3), edge_index[1].unique()  # others of the batch get no gradient
        few[read] = self.few(n_id[read])
        return second(torch.cat((hidden, few), 1), edge_index)


def make(kind: str, graph: Graph) -> nn.Module:
    torch.manual_seed(0)
    if kind == "pyg":
        return BesideFeatures(graph)
    model = GraphSAGE(8, 8, graph.num_classes, num_layers=2)
    return NodeEmbedding(graph.num_nodes, 8, model, sharded=True)


CASES: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("own", {}),
    # A last batch of 3 seeds, so that of 4 ranks one has none.
    "layers of PyG, few seeds, one cycle": (
        "pyg",
        {"layout": "subgraph", "batch_size": 197, "scheduler": "onecycle"},
    ),
    "adagrad, accumulated, clipped, falling": (
        "own",
        {"optimizer": "adagrad", "accumulate": 3, "clip": 0.05, "scheduler": "cosine"},
    ),
    "sgd, exact evaluation": ("own", {"optimizer": "sgd", "lr": 1.0, "eval_mode": "exact", "epochs": 1}),
}
ON_WHOLE = ("plain", "layers of PyG, few seeds, one cycle")
"""Cases of ranks that each have the whole graph, whose batches take no exchange."""


def every_case(comm: Communicator, folder: str, files: str) -> dict[str, object]:
    """Train each case on parts, and some on the whole graph; the first also with rows in files."""
    whole, parts = graph_of(), ShardedGraph.open(folder, comm)
    found: dict[str, object] = {}
    for name, (kind, options) in CASES.items():
        graphs = (parts, whole) if name in ON_WHOLE else (parts,)
        found[name] = [fitted(Trainer(make(kind, one), one, **RUN | options)) for one in graphs]
    of_files = Trainer(make("own", parts), parts, **RUN | {"embedding_files": f"{files}/{comm.rank}"})
    found["files"] = [fitted(of_files)]
    held = of_files.runner.learned
    assert held is not None
    found["owned"] = sum(one.nodes.owned.numel() for one in held.groups)
    return found


def links(comm: Communicator, folder: str) -> dict[str, object]:
    """Learn links on parts, on the whole graph, and between node types."""
    found: dict[str, object] = {}
    options = RUN | {"task": "link", "epochs": 1, "batch_size": 300, "eval_batch_size": 200, "lr": 0.02}
    for name, graph in (("parts", ShardedGraph.open(folder, comm)), ("whole", graph_of())):
        torch.manual_seed(0)
        encoder = NodeEmbedding(graph.num_nodes, 8, GraphSAGE(8, 8, 8, num_layers=2), sharded=True)
        trainer = Trainer(LinkModel(encoder, DotProduct()), graph, **options)
        found[name] = fitted(trainer) | {
            "scores": trainer.predict_links(torch.arange(80).view(2, 40), mode="exact").tolist()
        }
    graph = linked_types.films()
    torch.manual_seed(0)
    model = linked_types.by_type(graph, sharded=True)
    found["types"] = fitted(Trainer(model, graph, link_relation=linked_types.RATES, **options))
    return found


def by_torch(comm: Communicator, folder: str) -> list[object]:
    """Train torch's own embeddings on parts and on the whole graph, and with sparse gradients."""
    said: list[object] = []
    for graph, sparse in ((ShardedGraph.open(folder, comm), False), (graph_of(), False), (graph_of(), True)):
        torch.manual_seed(0)
        model = BesideFeatures(graph, functools.partial(nn.Embedding, sparse=sparse))
        try:
            said.append(fitted(Trainer(model, graph, **RUN | {"layout": "subgraph", "epochs": 1}))["losses"])
        except GraphbraidError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def outputs(comm: Communicator, folder: str) -> list[list[float]]:
    """Predict other nodes on each rank, sampled and exactly, and on the last rank none but one."""
    graph = ShardedGraph.open(folder, comm)
    nodes = torch.arange(comm.rank * 90, 600 - 50 * comm.rank) if comm.rank < comm.size - 1 else [7]
    trainer = Trainer(make("own", graph), graph, **RUN | {"memory_budget_bytes": 1 << 20})
    assert trainer.embed(nodes).shape == (len(nodes), 8)
    return [trainer.predict(nodes, mode=mode).double().abs().sum(1).tolist() for mode in ("exact", "sampled")]


def with_checkpoints(
    comm: Communicator, folder: str, out_dir: str, epochs: str, resume: str
) -> dict[str, object]:
    """Train on parts, or on the whole graph if the folder is empty, into one folder of all ranks."""
    graph = ShardedGraph.open(folder, comm) if folder else graph_of()
    options = {"out_dir": out_dir, "epochs": int(epochs), "resume": resume == "resume"}
    trainer = Trainer(make("own", graph), graph, **RUN | options)
    return fitted(trainer) | {"predicted": trainer.predict(torch.arange(20)).flatten().tolist()}


def not_seen(comm: Communicator, out_dir: str) -> str:
    """Train into a folder that only the first rank sees."""
    own = Path(out_dir) if comm.rank == 0 else Path(out_dir, "not", "there")
    real = Path.is_dir
    if comm.rank:
        Path.is_dir = lambda path: False if out_dir in str(path) else real(path)  # type: ignore[method-assign]
    try:
        Trainer(make("own", graph_of()), graph_of(), **RUN | {"out_dir": own}).fit()
    except GraphbraidError as error:
        return f"{type(error).__name__}: {error}"
    return ""


LARGE_NODES, LARGE_WIDTH = 200_000, 64
"""Rows of 49 MiB; with Adam's two moments 146 MiB."""


def large_graph() -> Graph:
    """Return a ring without features, of which few nodes are trained on."""
    ends = torch.arange(LARGE_NODES)
    csc, _ = coo_to_csc(ends, ends.roll(1), LARGE_NODES, LARGE_NODES)
    graph = Graph(csc=csc, x=torch.empty(LARGE_NODES, 0), y=ends % 2)
    chosen = torch.randperm(LARGE_NODES, generator=torch.Generator().manual_seed(0))
    return graph.replace(splits={"train": chosen[:4096], "val": chosen[4096:4352]})


def peak_of(comm: Communicator, out_dir: str, files: str) -> dict[str, float]:
    """Train on many rows, with checkpoints; return MiB of memory at most and at the end, beside the graph."""

    def held(name: str) -> int:
        return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024

    graph = large_graph()
    model = NodeEmbedding(LARGE_NODES, LARGE_WIDTH, GraphSAGE(LARGE_WIDTH, 8, 2, num_layers=2), sharded=True)
    torch.manual_seed(0)
    small = NodeEmbedding(LARGE_NODES, 1, GraphSAGE(1, 8, 2, num_layers=2), sharded=True)
    options = {"epochs": 1, "fanouts": (3, 3), "batch_size": 512, "test_at_end": False, "optimizer": "adam"}
    Trainer(small, graph, **options, out_dir=f"{out_dir}-first").fit()  # what any run takes
    Path("/proc/self/clear_refs").write_text("5")
    before, anonymous = held("VmRSS"), held("RssAnon")
    at = f"{files}/{comm.rank}" if files else None
    trainer = Trainer(model, graph, **options, out_dir=out_dir, embedding_files=at)
    losses = fitted_losses(trainer)
    return {"peak": held("VmHWM") - before, "anonymous": held("RssAnon") - anonymous, "losses": losses}


def fitted_losses(trainer: Trainer) -> list[float]:
    """Train, and return the losses of the steps."""
    losses = Losses()
    trainer.callbacks.append(losses)
    trainer.fit()
    return losses.losses


def faulty(comm: Communicator, folder: str, out_dir: str, what: str) -> None:
    """Train on parts; the last rank is killed in a step, or while it writes its rows."""
    parts, last = ShardedGraph.open(folder, comm), comm.rank == comm.size - 1

    def kill(_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    callbacks = [At(comm, comm.size - 1, 9, kill)] if what == "step" else []
    if what == "checkpoint" and last:
        from graphbraid.distributed.shards import learned_files

        written, times = learned_files.xxh3_128_hexdigest, []

        def dies(data: memoryview) -> str:
            times.append(1)
            if len(times) > 6:  # those of the first checkpoint are 4: ids, rows and two states
                kill(data)
            return written(data)

        learned_files.xxh3_128_hexdigest = dies
    options = {"out_dir": out_dir, "checkpoint_every_steps": 4, "epochs": 3}
    Trainer(make("own", parts), parts, callbacks=callbacks, **RUN | options).fit()


class ByType(nn.Module):
    """Layers over relations, with learned rows of two types: of one beside its features."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        count = {one: graph.nodes_of(one).num_nodes for one in graph.node_types}
        self.venues = ShardedEmbedding(count["venue"], 5, "venue")
        self.authors = ShardedEmbedding(count["author"], 3, node_type="author")
        self.more = ShardedEmbedding(count["author"], 2, node_type="author")
        widths = {"paper": 12, "author": 12, "venue": 5}
        self.first = HeteroConv(
            {one: SAGEConv((widths[one[0]], widths[one[2]]), 8) for one in graph.edge_types}
        )
        self.last = HeteroConv({one: SAGEConv((8, 8), 3) for one in graph.edge_types})

    def forward(self, x_dict: dict, edge_index_dict: dict, n_id_dict: dict) -> dict[str, Tensor]:
        authors = n_id_dict["author"]
        rows = {
            "paper": x_dict["paper"],
            "author": torch.cat((x_dict["author"], self.authors(authors), self.more(authors)), 1),
            "venue": self.venues(n_id_dict["venue"]),
        }
        rows = {one: found.relu() for one, found in self.first(rows, edge_index_dict).items()}
        return self.last(rows, edge_index_dict)


TYPED: dict[str, tuple[str, dict[str, object]]] = {
    "rgcn": ("rgcn", {}),
    "of two types": ("own", {"layout": "subgraph", "accumulate": 2, "clip": 0.1}),
    "exact": ("rgcn", {"eval_mode": "exact", "epochs": 1}),
}


def of_types(kind: str, graph: Graph) -> nn.Module:
    """Return a model with learned rows that ranks divide, for a graph with types."""
    torch.manual_seed(0)
    return ByType(graph) if kind == "own" else RGCN.of(graph, 8, num_layers=2, dropout=0.2, sharded=True)


def typed_cases(comm: Communicator, folder: str, out_dir: str) -> dict[str, object]:
    """Train each case with types on parts and on the whole graph; then go on from a checkpoint of both."""
    whole, parts = bibliography(), ShardedGraph.open(folder, comm)
    found: dict[str, object] = {}
    for name, (kind, options) in TYPED.items():
        found[name] = [fitted(Trainer(of_types(kind, one), one, **RUN | options)) for one in (parts, whole)]
    first = Trainer(of_types("own", whole), parts, **RUN | {"layout": "subgraph", "out_dir": out_dir})
    fitted(first)
    nodes = torch.arange(comm.rank, 60)
    found["predicted"] = first.predict(nodes).double().abs().sum(1).tolist()
    second = Trainer(of_types("own", whole), whole, **RUN | {"layout": "subgraph"})
    second.load_weights(f"{out_dir}/checkpoints/last.pt")
    found["read"] = second.predict(nodes).double().abs().sum(1).tolist()
    return found


def typed_alone(out_dir: str) -> list[float]:
    """Return what one process predicts by the weights of a checkpoint."""
    graph = bibliography()
    trainer = Trainer(of_types("own", graph), graph, **RUN | {"layout": "subgraph"})
    trainer.load_weights(f"{out_dir}/checkpoints/last.pt")
    return trainer.predict(torch.arange(60)).double().abs().sum(1).tolist()
