"""One training run on a store, under a limit of memory where one is given; prints what it learned as JSON.

    python -m tests.features.limited_run STORE WARM_STORE [--limit BYTES --host SIZE]

Without a limit, the whole store is read into memory first. WARM_STORE is a small one, trained on beforehand:
what the libraries take for themselves is then there before the limit is.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from benchmarks.tiers.limited import MemoryLimit, drop

import graphbraid
from graphbraid import Graph, Trainer
from graphbraid.datasets import open_store
from graphbraid.estimates import limits

OPTIONS: dict[str, Any] = {
    "epochs": 2,
    "fanouts": (5, 4),
    "batch_size": 64,
    "eval_batch_size": 64,
    "seed": 1,
    "lr": 0.01,
    "workers": 1,
    "threads": 1,
    "test_at_end": False,
}


def main() -> None:
    """Train twice: to warm up, and for what is printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("warm_store", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--host")
    given = parser.parse_args()
    trained(open_store(given.warm_store), host=1 << 20)
    if given.limit is None:
        _, found = trained(open_store(given.store, mmap=False), host=None)
        print(json.dumps(found))
        return
    bound = MemoryLimit(given.limit)
    if not bound.is_in_force:
        print(json.dumps({"refused": bound.reason}))
        return
    for file in given.store.iterdir():
        drop(file)  # pages that are there already count for who read them
    limits._RESERVE_BYTES = 0  # half of so small a limit
    try:
        trainer, found = trained(open_store(given.store), host=given.host)
        tiers, topology = trainer.tiers, trainer.topology
        found["peak"] = bound.peak_bytes()
        found["host_share"] = [tiers.counts.host_share, topology.counts.host_share]
        found["disk"] = [tiers.counts.disk_rows, topology.counts.disk_rows]
    finally:
        bound.end()
    print(json.dumps(found))


def trained(graph: Graph, host: int | str | None) -> tuple[Any, dict[str, Any]]:
    """A trainer that has run, and its losses, scores and weights to the bit."""
    torch.manual_seed(0)
    model = graphbraid.nn.GraphSAGE(graph.num_features, 16, graph.num_classes, num_layers=2)
    trainer = Trainer(model, graph, host=host, **OPTIONS)
    result = trainer.fit()
    losses = [[epoch["train_loss"].hex(), epoch["val_loss"].hex()] for epoch in result.history]
    weights = [float(weight.detach().double().sum()).hex() for weight in model.parameters()]
    return trainer, {"losses": losses, "weights": weights}


if __name__ == "__main__":
    main()
