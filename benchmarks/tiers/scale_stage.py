"""One stage of benchmarks.tiers.scale, in a process of its own; prints one JSON line.

python -m benchmarks.tiers.scale_stage make|reorder|train|evaluate STORE ...
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.options import parser_of
from benchmarks.tiers.limited import MemoryLimit, drop
from graphbraid import Graph, Trainer
from graphbraid.datasets import open_store, save_store
from graphbraid.datasets.synthetic import BlockModel, generate_in_parts
from graphbraid.features import TieredFeatures, TieredTopology
from graphbraid.nn import GraphSAGE
from graphbraid.train import Callback
from graphbraid.train.callbacks import StepRecord

NUM_CLASSES = 32
NODES_A_BLOCK = 2000
SIGNAL = 0.12
"""How much of a node's class is in its own features: so little that its neighbours' must help."""


def make(options: argparse.Namespace) -> dict[str, Any]:
    """Draw the graph and write its store, features in parts."""
    spec = BlockModel(
        num_nodes=options.nodes,
        num_edges=options.edges,
        num_classes=NUM_CLASSES,
        blocks_per_class=max(options.nodes // (NODES_A_BLOCK * NUM_CLASSES), 1),
        num_features=options.width,
        signal=SIGNAL,
        train_share=options.train_share,
        val_share=options.train_share,
    )
    graph, parts = generate_in_parts(spec, "scale")
    save_store(graph, options.store, feature_parts=parts, if_exists="replace")
    del graph, parts
    stored = open_store(options.store, verify=True)  # as `graphbraid convert` does
    return sizes_of(stored) | {"what": f"{stored.num_nodes:,} nodes, {stored.num_edges:,} edges"}


def reorder(options: argparse.Namespace) -> dict[str, Any]:
    """Renumber the store by degree, by the command that a user gives."""
    from graphbraid.cli.main import app

    command = ["reorder", "--data", str(options.store), "--by", "degree", "--out", str(options.out)]
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            app([*command, "--overwrite", "--json"])
        except SystemExit as ended:  # as it always does
            if ended.code:
                raise
    stored = open_store(options.out)
    return sizes_of(stored) | {"what": "nodes most often read first, written and verified"}


def train(options: argparse.Namespace) -> dict[str, Any]:
    """An epoch of training; without ``--host`` with the whole graph in memory."""
    graph, opened = timed_open(options)
    losses, started = StepLosses(), time.perf_counter()
    trainer = trainer_of(graph, options, losses)
    built = time.perf_counter()
    result = trainer.fit()
    epoch = result.history[-1]
    found = {
        "open_seconds": opened,
        "fill_seconds": built - started,
        "fit_seconds": time.perf_counter() - built,
        "steps": result.global_step,
        "losses": losses.found,
        "epoch": {name: value for name, value in epoch.items() if isinstance(value, int | float)},
    }
    what = f"{result.global_step} steps, loss {losses.found[0]:.3f} to {losses.found[-1]:.3f}"
    return found | read_of(trainer) | {"what": what + told(trainer)}


def evaluate(options: argparse.Namespace) -> dict[str, Any]:
    """Loss and accuracy of the test nodes by exact inference."""
    graph, opened = timed_open(options)
    graph = with_fewer_tested(graph, options.test_share)
    trainer = trainer_of(graph, options)
    trainer.load_weights(options.run / "checkpoints" / "last.pt")
    started = time.perf_counter()
    scores = trainer.evaluate("test", mode="exact")
    seconds = time.perf_counter() - started
    nodes = graph.split("test").numel()
    what = f"accuracy {scores['accuracy']:.4f} of {nodes:,} test nodes" + told(trainer)
    found = {"open_seconds": opened, "evaluate_seconds": seconds, "test_nodes": nodes, "scores": scores}
    return found | read_of(trainer) | {"what": what}


def with_fewer_tested(graph: Graph, share: float) -> Graph:
    """The graph with as many of its test nodes, drawn at random, as are a share of all nodes."""
    nodes, draw = graph.split("test"), torch.Generator().manual_seed(0)
    chosen = torch.randperm(nodes.numel(), generator=draw)[: max(1, int(share * graph.num_nodes))]
    return graph.replace(splits={**graph.splits, "test": nodes[chosen].sort().values})


class StepLosses(Callback):
    """Keeps the loss of each step, to the bit."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_step_end(self, trainer: Trainer, record: StepRecord) -> None:
        """Keep one."""
        self.found.append(record.loss)


def timed_open(options: argparse.Namespace) -> tuple[Graph, float]:
    """The store's graph, mapped where rows are in tiers, and the seconds until it is there."""
    started = time.perf_counter()
    graph = open_store(options.store, mmap=options.host is not None)
    return graph, time.perf_counter() - started


def trainer_of(graph: Graph, options: argparse.Namespace, losses: StepLosses | None = None) -> Trainer:
    """A trainer of GraphSAGE, the same whatever lies where; one that keeps losses writes its run."""
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    model = GraphSAGE(graph.num_features, options.hidden, graph.num_classes, num_layers=len(options.fanouts))
    return Trainer(
        model,
        graph,
        epochs=1,
        fanouts=tuple(options.fanouts),
        batch_size=options.batch_size,
        workers=options.threads,
        host=options.host,
        eval_every=0,
        test_at_end=False,
        memory_budget_bytes=options.budget,
        out_dir=None if losses is None else options.run,
        overwrite=losses is not None,
        callbacks=[] if losses is None else [losses],
    )


def sizes_of(graph: Graph) -> dict[str, Any]:
    """What was stored."""
    x = graph.x
    assert isinstance(x, torch.Tensor)
    return {"num_edges": graph.num_edges, "topology_bytes": graph.csc.nbytes, "feature_bytes": x.nbytes}


def read_of(trainer: Trainer) -> dict[str, Any]:
    """What was read of which tier."""
    tiers = trainer.tiers
    if not isinstance(tiers, TieredFeatures):
        return {}
    counts = tiers.counts
    found: dict[str, Any] = {"reads": counts._asdict() | {"host_share": counts.host_share}}
    if isinstance(trainer.topology, TieredTopology):
        found["list_reads"] = trainer.topology.counts._asdict()
    return found | {"how": tiers.disk.how()}


def told(trainer: Trainer) -> str:
    """The same in words."""
    if not isinstance(trainer.tiers, TieredFeatures):
        return ", all in memory"
    counts = trainer.tiers.counts
    return f", {counts.host_share:.1%} of the rows from memory, {counts.disk_bytes / 1e9:.1f} GB from disk"


@contextmanager
def limited(num_bytes: int | None, store: Path) -> Iterator[dict[str, Any]]:
    """Run under a limit where one is asked for, the store's pages dropped; gives what the row says of it.

    Pages that an earlier stage left in the cache would count for no limit.
    """
    if num_bytes is None:
        yield {"limit": "none"}
        return
    for path in store.iterdir():
        drop(path)
    limit = MemoryLimit(num_bytes)
    try:
        yield {"limit": "cgroup" if limit.is_in_force else f"none ({limit.reason})"}
    finally:
        limit.end()


def main(arguments: list[str] | None = None) -> None:
    """Run one stage."""
    parser = parser_of(__doc__)
    stages = {"make": make, "reorder": reorder, "train": train, "evaluate": evaluate}
    parser.add_argument("stage", choices=stages)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, help="of reorder: the new store")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--edges", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--train-share", type=float)
    parser.add_argument("--test-share", type=float, default=1.0)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--host")
    parser.add_argument("--budget", type=int, default=2 << 30)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--limit", type=int, help="bytes of memory, files' pages included")
    options = parser.parse_args(arguments)
    with limited(options.limit, options.store) as said:
        found = stages[options.stage](options)
    print(json.dumps(found | said))


if __name__ == "__main__":
    main()
