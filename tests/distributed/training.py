"""What ranks of a test train; each function is called with their communicator."""

import os
import signal
import subprocess
import time
from pathlib import Path

import torch
from benchmarks.common.emulated import EmulatedAccelerator
from benchmarks.distributed.links import INTERFACE
from tests.collective.cases import stage_times
from tests.train.communities import community_graph, new_model
from tests.train.labelled_edges import TO, own_model, people
from torch import nn

from graphbraid.datasets import split_edges
from graphbraid.graph import Graph
from graphbraid.graph.graph_set import GraphSet
from graphbraid.nn import GCN, GraphSAGE, PooledModel
from graphbraid.train import Callback, Trainer

# 200 training nodes: 7 steps an epoch, the last one of 8 seeds.
BASE = {
    "epochs": 2,
    "batch_size": 32,
    "fanouts": (4, 3),
    "layout": "blocks",
    "lr": 0.01,
    "eval_batch_size": 50,
}


def graph_of() -> Graph:
    return community_graph(num_nodes=600)


class Losses(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step_end(self, trainer, record) -> None:
        self.losses.append(record.loss)


def with_missing_cells(graph: Graph) -> Graph:
    """A graph whose nodes know some of their labels: 1 of 3 or 2 of 3."""
    y = torch.nn.functional.one_hot(graph.y, graph.num_classes).float()
    place = torch.arange(graph.num_nodes)
    y[place, place % 3] = torch.nan
    y[place[::2], (place[::2] + 1) % 3] = torch.nan
    return graph.replace(y=y)


def trained(graph: Graph, model: nn.Module, **options: object) -> dict[str, object]:
    """What a run gives, in plain values."""
    return fitted(Trainer(model, graph, **(BASE | options)))


def fitted(trainer: Trainer) -> dict[str, object]:
    """What the run of a trainer gives, in plain values."""
    losses = Losses()
    trainer.callbacks.append(losses)
    result = trainer.fit()
    metrics = [name for name in ("loss", "accuracy", "auc") if name in result.test]
    return {
        "losses": list(losses.losses),
        "history": [[row["train_loss"], *(row[f"val_{name}"] for name in metrics)] for row in result.history],
        "test": [result.test[name] for name in metrics],
        "weights": [float(p.detach().double().abs().sum()) for p in trainer.model.parameters()],
        "status": result.status,
    }


def make(kind: str, graph: Graph, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    if kind == "pyg":
        return new_model(graph, dropout=dropout)
    made = {"sage": GraphSAGE, "gcn": GCN}[kind]
    return made(graph.num_features, 8, graph.num_classes, num_layers=2, dropout=dropout)


CASES: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("sage", {}),
    "accumulated": ("sage", {"accumulate": 3}),
    "class weights and clipping": ("gcn", {"class_weights": (1.0, 2.0, 0.5), "clip": 0.1}),
    "few seeds": ("sage", {"batch_size": 197}),  # a last batch of 3, so that of 4 ranks one has no seed
    "exact evaluation": ("sage", {"eval_mode": "exact", "epochs": 1}),
}


def every_case(comm) -> dict[str, object]:
    from tests.train.molecules import SPLITS, molecules  # imports PyG, which ranks of a launcher do without

    graph = graph_of()
    found = {name: trained(graph, make(kind, graph), **options) for name, (kind, options) in CASES.items()}
    sparse = with_missing_cells(graph)
    found["missing cells"] = trained(sparse, make("sage", sparse), metrics=("accuracy", "f1_macro"))
    graphs = GraphSet.from_pyg(molecules(dtype=torch.float32), splits=SPLITS)
    torch.manual_seed(0)
    pooled = PooledModel(GraphSAGE(3, 8, 8, dropout=0.5), nn.Linear(8, 2))
    found["graphs"] = fitted(Trainer(pooled, graphs, task="graph", epochs=2, batch_size=7, lr=0.01))
    labelled = split_edges(people(), TO, "0.6,0.2")
    found["edges"] = trained(labelled, own_model(), task="edge", batch_size=64)
    found["all neighbours, as a model of PyG"] = trained(
        graph, make("pyg", graph), layout="subgraph", fanouts=(-1, -1), epochs=1
    )
    found["dropout"] = trained(graph, make("sage", graph, dropout=0.5), epochs=1)
    return found


def trained_in_a_given_group(comm) -> dict[str, object]:
    """Train in the process group that the process had before it called ``init``."""
    graph = graph_of()
    found = trained(graph, make("sage", graph), epochs=1)
    comm.close()
    lives = torch.distributed.is_initialized()
    comm.close = lambda: None
    return {"losses": found["losses"], "name": comm.name, "group_lives": lives}


def restarted(comm, folder: str) -> dict[str, object]:
    """Train with checkpoints within epochs; before torchrun starts the job again, the last rank is killed."""
    callbacks = [Losses()]
    if not Path(folder, ".job").exists():  # torchrun need not count a restart on each machine
        callbacks.append(At(comm, comm.size - 1, 8, lambda _: os.kill(os.getpid(), signal.SIGKILL)))
    graph, own = graph_of(), folder if comm.rank == 0 else f"{folder}-not-there/{comm.rank}"
    options = BASE | {"out_dir": own, "checkpoint_every_steps": 2, "overwrite": True}
    Trainer(make("sage", graph), graph, callbacks=callbacks, **options).fit()
    return {"attempt": os.environ["TORCHELASTIC_RESTART_COUNT"], "steps": len(callbacks[0].losses)}


def with_checkpoints(comm, folder: str, epochs: str, resume: str) -> dict[str, object]:
    """Train into a folder that only the first rank can write to."""
    graph = graph_of()
    own = folder if comm.rank == 0 else f"{folder}-not-there/{comm.rank}"
    options = {"out_dir": own, "epochs": int(epochs), "resume": resume == "resume"}
    return trained(graph, make("sage", graph, dropout=0.5), **options)


def misled(comm, what: str) -> None:
    """Ranks that differ in what they train."""
    graph, options = graph_of(), {}
    odd = comm.rank == comm.size - 1
    if what == "seed":
        options["seed"] = int(odd)
    elif what == "lr":
        options["lr"] = 0.02 if odd else 0.01
    elif what == "mode" and odd:
        options["mode"] = "full"
    elif what == "graph" and odd:
        graph = graph.replace(x=graph.x + 1)
    elif what == "batch":
        options["batch_size"] = 1
    elif what == "precision":
        options |= {"mode": "full", "precision": "bfloat16"}
    elif what == "plan":
        options["plan"] = "cpu"
    elif what == "few nodes":
        graph = graph.replace(splits=graph.splits | {"train": graph.splits["train"][:1]})
        options |= {
            "plan": "auto",
            "accelerator": EmulatedAccelerator(stage_times(0.001, 0.001, 0.001, 0.001)),
        }
    elif what == "fanouts":
        options["fanouts"] = (3, 2) if odd else (3, 3)
    width = 9 if what == "model" and odd else 8
    dropout = 0.5 if what == "dropout" and odd else 0.1
    model = GraphSAGE(graph.num_features, width, graph.num_classes, num_layers=2, dropout=dropout)
    trained(graph, model, **options)


class At(Callback):
    """Does something at a step, on one rank."""

    def __init__(self, comm, rank: int, step: int, act) -> None:
        self._here, self._step, self._act = comm.rank == rank, step, act

    def on_step_end(self, trainer, record) -> None:
        if self._here and record.global_step == self._step:
            self._act(trainer)


def _raise(error: BaseException):
    def act(trainer) -> None:
        raise error

    return act


def _spoil(trainer) -> None:
    with torch.no_grad():
        next(trainer.model.parameters()).add_(0.25)


def _unplug() -> None:
    """Take down the link of this rank's host, a network namespace."""
    subprocess.run(["ip", "link", "set", INTERFACE, "down"], check=True)


def faulty(comm, what: str, folder: str) -> dict[str, object]:
    """Train, with something going wrong on the last rank, or as said."""
    last = comm.size - 1
    acts = {
        "killed": (last, lambda _: os.kill(os.getpid(), signal.SIGKILL)),
        "first killed": (0, lambda _: os.kill(os.getpid(), signal.SIGKILL)),
        "stopped": (last, lambda _: os.kill(os.getpid(), signal.SIGSTOP)),
        "unplugged": (last, lambda _: _unplug()),
        "stuck": (last, lambda _: time.sleep(600)),
        "memory": (last, lambda _: torch.empty(1 << 50)),
        "raises": (last, _raise(ValueError("a user's own mistake"))),
        "drifts": (last, _spoil),
        "asks to stop": (last, lambda trainer: trainer.request_stop()),
        "terminated": (last, lambda _: os.kill(os.getpid(), signal.SIGTERM)),
    }
    rank, act = acts[what]

    def marked(trainer: Trainer) -> None:
        Path(folder, "lost").touch()
        act(trainer)

    graph = graph_of()
    callbacks = [At(comm, rank, 9, marked)]
    trainer = Trainer(
        make("sage", graph), graph, callbacks=callbacks, out_dir=f"{folder}/run", **(BASE | {"epochs": 3})
    )
    result = trainer.fit()
    return {"status": result.status, "steps": result.global_step}
