"""What ranks of a test train on their parts of a graph; each function is called with their communicator."""

import os
import signal
import threading

import torch
from tests.distributed.training import BASE, At, fitted, graph_of, make, trained
from torch import nn

from graphbraid.distributed import Communicator, ShardedGraph
from graphbraid.errors import GraphbraidError
from graphbraid.graph import Graph, ScaledFeatures
from graphbraid.graph.csc import Csc
from graphbraid.train import Trainer


def outputs(comm: Communicator, folder: str) -> list[list[float]]:
    """Predict the same nodes on parts and on the whole graph, with other nodes on each rank."""
    whole, parts = graph_of(), ShardedGraph.open(folder, comm)
    nodes = torch.arange(comm.rank * 90, 600 - 50 * comm.rank)
    found = []
    for graph in (parts, whole):
        trainer = Trainer(make("sage", whole), graph, **BASE | {"memory_budget_bytes": 1 << 20})
        found.append(trainer.predict(nodes).double().abs().sum(1).tolist())
    return found


class Centred(nn.Module):
    """Reads all rows of a batch: it takes their mean from each."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.inner = make("pyg", graph)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.inner(x - x.mean(0), edge_index)


def reads_the_batch(comm: Communicator, folder: str) -> list[str]:
    """Predict few nodes by a model that reads all of a batch; the first rank asks for one without edges."""
    parts = ShardedGraph.open(folder, comm)
    own = torch.arange(3) if comm.rank else torch.tensor([599])
    asked = {"others have edges": own, "none has edges": torch.tensor([599])}
    said = []
    for nodes in asked.values():
        trainer = Trainer(Centred(parts), parts, **BASE | {"layout": "subgraph"})
        try:
            trainer.predict(nodes)
            said.append("")
        except GraphbraidError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def with_few_nodes(comm: Communicator, folder: str) -> list[dict[str, object]]:
    """Train on fewer nodes than there are ranks, on parts and on the whole graph."""
    graphs = (ShardedGraph.open(folder, comm), few_nodes())
    return [trained(graph, make("sage", graph), batch_size=8, fanouts=(1, 0)) for graph in graphs]


def few_nodes() -> Graph:
    """Return the graph of the tests with three training nodes."""
    graph = graph_of()
    return graph.replace(splits=graph.splits | {"train": graph.splits["train"][:3]})


def with_checkpoints(
    comm: Communicator, folder: str, out_dir: str, epochs: str, resume: str
) -> dict[str, object]:
    """Train on parts into a folder that only the first rank can write to."""
    parts = ShardedGraph.open(folder, comm)
    own = out_dir if comm.rank == 0 else f"{out_dir}-not-there/{comm.rank}"
    options = {"out_dir": own, "epochs": int(epochs), "resume": resume == "resume"}
    return trained(parts, make("sage", parts), **options)


def with_kept_rows(comm: Communicator, folder: str) -> dict[str, dict[str, object]]:
    """Train with memory for none, some and all rows of other ranks."""
    parts = ShardedGraph.open(folder, comm)
    some = 8 * parts.num_nodes + 40 * (parts.shards.only.row_bytes + 32)
    found = {}
    for name, remote in (("none", None), ("some", some), ("all", "all")):
        trainer = Trainer(make("sage", parts), parts, **BASE | {"remote": remote, "epochs": 1})
        found[name] = fitted(trainer) | {"table": trainer.exchange, "traffic": parts.shards.traffic._asdict()}
    return found


def with_edges() -> Graph:
    """Return the graph of the tests with weights and features of its edges."""
    graph = graph_of()
    drawn = torch.rand(graph.num_edges, 4, generator=torch.Generator().manual_seed(1))
    csc = Csc(graph.csc.indptr, graph.csc.indices, graph.num_nodes, drawn[:, 0].contiguous())
    return graph.replace(csc=csc, edge_attr=drawn[:, 1:].contiguous(), edge_id=None)


def of_int8() -> Graph:
    """Return the graph of the tests with features of int8."""
    graph = graph_of()
    return graph.replace(x=ScaledFeatures.from_dense(graph.dense_x()))


def trained_of_int8(comm: Communicator, folder: str) -> list[dict[str, object]]:
    """Train on parts and on the whole graph, whose features are int8."""
    graphs = (ShardedGraph.open(folder, comm), of_int8())
    return [trained(graph, make("sage", graph), epochs=1, remote=None) for graph in graphs]


def faulty(comm: Communicator, folder: str, what: str) -> None:
    """Train on parts, with something going wrong on the last rank in the second epoch."""
    acts = {
        "killed": lambda trainer: os.kill(os.getpid(), signal.SIGKILL),
        "raises": lambda trainer: torch.empty(1 << 50),
    }
    parts = ShardedGraph.open(folder, comm)
    fault = At(comm, comm.size - 1, 9, acts[what])
    Trainer(make("sage", parts), parts, callbacks=[fault], **BASE | {"remote": "all", "epochs": 3}).fit()


def without_pauses(comm: Communicator, folder: str) -> dict[str, object]:
    """Train three epochs without a validation on parts and on the whole graph; stop another run after two."""
    parts, found = ShardedGraph.open(folder, comm), dict[str, object]()
    for name, graph, last in (("parts", parts, 99), ("whole", graph_of(), 99), ("stopped", parts, 14)):
        stop = At(comm, 0, last, Trainer.request_stop)
        options = BASE | {"epochs": 3, "eval_every": 0}
        result = Trainer(make("sage", graph), graph, callbacks=[stop], **options).fit()
        found[name] = [result.status, [row["train_loss"] for row in result.history], result.test["loss"]]
    return found | {"threads": [one.name for one in threading.enumerate()]}
