"""What ranks of a test train on their parts of a graph; each function is called with their communicator."""

from __future__ import annotations

import torch
from tests.distributed.training import BASE, CASES, graph_of, make, trained

from graphbraid.distributed import Communicator, ShardedGraph
from graphbraid.train import Trainer

ALL = CASES | {
    "all neighbours, as a model of PyG": ("pyg", {"layout": "subgraph", "fanouts": (-1, -1)}),
    "layout subgraph, exact": ("pyg", {"layout": "subgraph", "eval_mode": "exact", "epochs": 1}),
}


def every_case(comm: Communicator, folder: str) -> dict[str, object]:
    """Train each case on parts and on the whole graph."""
    whole, parts = graph_of(), ShardedGraph.open(folder, comm)
    found: dict[str, object] = {}
    for name, (kind, options) in ALL.items():
        found[name] = [trained(graph, make(kind, graph), **options) for graph in (parts, whole)]
    return found


def outputs(comm: Communicator, folder: str) -> list[list[float]]:
    """Predict the same nodes on parts and on the whole graph, with other nodes on each rank."""
    whole, parts = graph_of(), ShardedGraph.open(folder, comm)
    nodes = torch.arange(comm.rank * 90, 600 - 50 * comm.rank)
    found = []
    for graph in (parts, whole):
        trainer = Trainer(make("sage", whole), graph, **BASE | {"memory_budget_bytes": 1 << 20})
        found.append(trainer.predict(nodes).double().abs().sum(1).tolist())
    return found


def with_checkpoints(
    comm: Communicator, folder: str, out_dir: str, epochs: str, resume: str
) -> dict[str, object]:
    """Train on parts into a folder that only the first rank can write to."""
    parts = ShardedGraph.open(folder, comm)
    own = out_dir if comm.rank == 0 else f"{out_dir}-not-there/{comm.rank}"
    options = {"out_dir": own, "epochs": int(epochs), "resume": resume == "resume"}
    return trained(parts, make("sage", parts), **options)
