"""Rows read and a run trained where reads are cut short or fail: tests/features/test_disk_faults.py.

python -m tests.features.faulty_run rows|train STORE
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from graphbraid.datasets import open_store
from graphbraid.errors import GraphbraidError
from graphbraid.features import DiskOptions, DiskRows, TieredFeatures, TieredTopology
from graphbraid.graph import Graph

READERS = {
    f"{reader} {'past' if direct else 'through'} the cache": DiskOptions(reader=reader, direct=direct)
    for reader in ("auto", "threads")
    for direct in (True, False)
}


@contextmanager
def faults(kind: str) -> Iterator[None]:
    """Have the library that was loaded first spoil reads."""
    os.environ["FAULTS"] = kind
    try:
        yield
    finally:
        del os.environ["FAULTS"]


def rows(graph: Graph, kind: str, options: DiskOptions) -> dict[str, object]:
    """All rows by requests of many blocks, beside those in memory."""
    x = graph.x
    assert isinstance(x, torch.Tensor)
    found = DiskRows.behind(x, options=options)
    try:
        with faults(kind):
            got = found.gather(torch.arange(len(x)))
    except GraphbraidError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"same": torch.equal(got, x.clone()), "how": found.how()}


def train(graph: Graph, kind: str, options: DiskOptions) -> dict[str, object]:
    """Losses of an epoch with everything on disk."""
    from graphbraid import Trainer, nn  # which takes as long to import as the rows to read

    torch.manual_seed(0)
    model = nn.GraphSAGE(graph.num_features, 8, graph.num_classes, num_layers=2)
    tiers = TieredFeatures.build(graph, host=0, disk=options)
    topology = TieredTopology.build(graph, host=0, disk=options)
    given = {"epochs": 1, "fanouts": (4, 3), "batch_size": 64, "eval_every": 0, "test_at_end": False}
    with faults(kind):
        result = Trainer(model, graph, tiers=tiers, topology=topology, **given).fit()
    return {"losses": [row["train_loss"] for row in result.history]}


def main() -> None:
    """Run with each kind of fault by each reader, and print one JSON line."""
    graph, what, so_far = open_store(Path(sys.argv[2])), sys.argv[1], ctypes.CDLL(None).faults_so_far
    run, kinds = {"rows": (rows, ("short", "fail")), "train": (train, ("none", "short"))}[what]
    found: dict[str, dict[str, object]] = {kind: {} for kind in kinds}
    for kind in kinds:
        for name, options in READERS.items():
            before = so_far()
            found[kind][name] = run(graph, kind, options) | {"faults": so_far() - before}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
