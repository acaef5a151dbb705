"""What ranks of a test train on the whole graph; each function is called with their communicator."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tests.distributed import contract
from tests.distributed.training import At, fitted, graph_of, with_missing_cells
from torch import nn

from graphbraid import datasets
from graphbraid import nn as gnn
from graphbraid.errors import RankError
from graphbraid.fullgraph.step.operations.row_exchange import RowExchange
from graphbraid.graph import Graph
from graphbraid.train import Trainer

BASE = {"epochs": 4, "mode": "full", "lr": 0.01, "optimizer": "sgd"}
MODELS = {"gcn": gnn.GCN, "sage": gnn.GraphSAGE, "gat": gnn.GAT}


def make(kind: str, graph: Graph, **options: object) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind](graph.num_features, 8, graph.num_classes, num_layers=2, **options)


def trained(graph: Graph, model: nn.Module, **options: object) -> dict[str, object]:
    """What a run gives, in plain values."""
    trainer = Trainer(model, graph, **(BASE | options))
    return fitted(trainer) | {
        "outputs": trainer.predict([3, 5, 599]).flatten().tolist(),
        "reason": trainer.uncompiled_reason,
    }


CASES: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "dropout": ("gcn", {"dropout": 0.5}, {}),
    "batch normalisation": ("sage", {"dropout": 0.5, "norm": "batch"}, {}),
    "class weights and clipping": ("gcn", {}, {"class_weights": (1.0, 2.0, 0.5), "clip": 0.1}),
    "attention": ("gat", {"dropout": 0.2}, {"epochs": 2}),
}


def every_case(comm) -> dict[str, object]:
    graph = graph_of()
    found: dict[str, object] = {
        name: trained(graph, make(kind, graph, **model), **options)
        for name, (kind, model, options) in CASES.items()
    }
    sparse = with_missing_cells(graph)
    found["missing cells"] = trained(sparse, make("gcn", sparse), metrics=("accuracy", "f1_macro"))
    few = graph.replace(splits={**graph.splits, "train": graph.splits["train"][:1]})
    found["one training node"] = trained(few, make("gcn", graph), epochs=2)
    return found


def with_checkpoints(comm, folder: str, epochs: str, resume: str) -> dict[str, object]:
    """Train into a folder that only the first rank can write to."""
    graph = graph_of()
    own = folder if comm.rank == 0 else f"{folder}-not-there/{comm.rank}"
    options = {"out_dir": own, "epochs": int(epochs), "resume": resume == "resume", "optimizer": "adam"}
    return trained(graph, make("gcn", graph, dropout=0.5), **options)


def overflowing(comm) -> None:
    """Features that overflow on the rank that owns them, which all ranks hear of."""
    graph = graph_of()
    x = graph.x.clone()
    x[7] = float("inf")
    trained(graph.replace(x=x), make("gcn", graph))


def by_one(comm) -> list[float]:
    """After a run together, one rank evaluates and predicts by itself."""
    graph = graph_of()
    trainer = Trainer(make("gcn", graph), graph, **(BASE | {"epochs": 1}))
    trainer.fit()
    return [] if comm.rank else [*trainer.predict([1]).flatten().tolist(), trainer.evaluate("val")["loss"]]


def by_one_after_the_contract(comm) -> dict[str, object]:
    """The same, on ranks that have shown that they keep the contract of a communicator."""
    kept = contract.every_case(comm)
    by_one(comm)
    return kept


def by_parts(comm, folder: str, data: str) -> dict[str, object]:
    """Train on a store of which each rank reads its part; one rank by itself reads all of it."""
    graph = datasets.load(data)
    parts = {} if comm.size == 1 else {"partition": f"{folder}/{comm.size}"}
    options = {"dropout": 0.5, "norm": "batch"}
    found = {
        kind: trained(graph, make(kind, graph, **options), epochs=2, **parts) for kind in ("gcn", "sage")
    }
    found["gat"] = trained(graph, make("gat", graph, dropout=0.2), epochs=2, **parts)
    return found


def misled_parts(comm, folder: str, what: str) -> None:
    """Ranks of whom the last has another partition, a damaged part or none."""
    odd = comm.rank == comm.size - 1
    own = f"{folder}/odd" if odd else f"{folder}/2"
    graph = graph_of()
    given = {} if what == "none" and odd else {"partition": own}
    trained(graph, make("gcn", graph), epochs=1, **given)


# ---- what goes wrong on ranks

STEP = 3
"""The step after which something goes wrong; each epoch is one."""


def faulty(comm, what: str, folder: str) -> None:
    """Train, with something going wrong on the last rank; the others note how long they took to say so."""
    root, is_odd = Path(folder), comm.rank == comm.size - 1

    def note(trainer: object) -> None:
        (root / "began").write_text(str(time.time()))

    acts: dict[str, Callable[[object], object]] = {
        "killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
        "killed while rows travel": lambda _: _end_in_travel(),
    }
    graph = graph_of()
    calls = [At(comm, comm.size - 1, STEP, act) for act in (note, acts[what])]
    options = {"mode": "full", "epochs": 6, "lr": 0.01, "out_dir": root / "run" if comm.rank == 0 else None}
    trainer = Trainer(make("gcn", graph, dropout=0.5), graph, callbacks=calls, **options)
    try:
        trainer.fit()
    except RankError:
        if not is_odd:
            took = time.time() - float((root / "began").read_text())
            (root / f"took-{comm.rank}").write_text(str(took))
        raise


def _end_in_travel() -> None:
    """End this process at its next exchange, once the others wait for its rows."""

    def begin(*_: object) -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    RowExchange.begin = begin  # type: ignore[method-assign]


def resumed(comm, folder: str) -> int:
    """Go on with a run that a fault has ended; the number of its epochs."""
    graph = graph_of()
    own = Path(folder) / "run" if comm.rank == 0 else None
    options = {"mode": "full", "epochs": 6, "lr": 0.01, "out_dir": own, "resume": comm.rank == 0}
    return len(Trainer(make("gcn", graph, dropout=0.5), graph, **options).fit().history)
