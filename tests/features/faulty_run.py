"""Rows read and a run trained where reads are cut short or fail: tests/features/test_disk_faults.py.

python -m tests.features.faulty_run STORE
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from graphbraid import Trainer, nn
from graphbraid.datasets import open_store
from graphbraid.errors import GraphbraidError
from graphbraid.features import DiskOptions, DiskRows, TieredFeatures, TieredTopology
from graphbraid.graph import Graph

Found = dict[str, object]
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


def rows(graph: Graph, kind: str, options: DiskOptions) -> Found:
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


def train(graph: Graph, kind: str, options: DiskOptions) -> Found:
    """Losses of an epoch with everything on disk."""
    torch.manual_seed(0)
    model = nn.GraphSAGE(graph.num_features, 8, graph.num_classes, num_layers=2)
    tiers = TieredFeatures.build(graph, host=0, disk=options)
    topology = TieredTopology.build(graph, host=0, disk=options)
    given = {"epochs": 1, "fanouts": (4, 3), "batch_size": 64, "eval_every": 0, "test_at_end": False}
    with faults(kind):
        result = Trainer(model, graph, tiers=tiers, topology=topology, **given).fit()
    return {"losses": [row["train_loss"] for row in result.history]}


def main() -> None:
    """Do each with each kind of fault by each reader, and print one JSON line."""
    graph = open_store(Path(sys.argv[1]))
    found = {"rows": by_kind(rows, graph, "short", "fail"), "train": by_kind(train, graph, "none", "short")}
    print(json.dumps(found))


def by_kind(run: Callable[[Graph, str, DiskOptions], Found], graph: Graph, *kinds: str) -> dict[str, Any]:
    """What it finds with each kind of fault by each reader, and how many faults there were."""
    so_far = ctypes.CDLL(None).faults_so_far
    found: dict[str, dict[str, Found]] = {kind: {} for kind in kinds}
    for kind in kinds:
        for name, options in READERS.items():
            before = so_far()
            found[kind][name] = run(graph, kind, options) | {"faults": so_far() - before}
    return found


if __name__ == "__main__":
    main()
