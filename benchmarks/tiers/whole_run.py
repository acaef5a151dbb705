"""One process of benchmarks.tiers.whole; prints one JSON line.

    python -m benchmarks.tiers.whole_run train STORE --warm STORE --model gcn ... [--limit BYTES --host BYTES]
    python -m benchmarks.tiers.whole_run disk STORE

Without ``--host`` the whole store is read into memory first. The warm store is a small one, trained on
beforehand: what the libraries take for themselves is then there before the limit is.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import time
from pathlib import Path
from typing import Any

import torch
import xxhash

import graphbraid
from benchmarks.common.options import parser_of
from benchmarks.peers.common import peak_gb
from benchmarks.tiers.limited import MemoryLimit, drop, read_bytes
from graphbraid import Graph
from graphbraid.datasets import open_store
from graphbraid.fullgraph import Evidence
from graphbraid.nn import make_model

PIECE = 16 << 20
"""Bytes that a plain reader asks for at a time."""
MOST_SECONDS = 8.0
"""Seconds for which the disk is read, at most."""


PASSES = graphbraid.fullgraph.ALL - {"hoist"}
"""All but hoisting, which aggregates features in memory once if they fit, and so rounds otherwise."""


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Train on the small store, then on the large one under the limit."""
    trained(open_store(options.warm), options)
    if options.host is None:
        return trained(open_store(options.store, mmap=False), options) | {"limit": "none"}
    for file in options.store.iterdir():
        drop(file)  # pages that are there already count for who read them
    limit = MemoryLimit(options.limit)
    try:
        found = trained(open_store(options.store), options)
        if not limit.is_in_force:
            return found | {"limit": f"none ({limit.reason})"}
        return found | {"limit": "cgroup", "group_bytes": limit.peak_bytes()}
    finally:
        limit.end()


def trained(graph: Graph, options: argparse.Namespace) -> dict[str, Any]:
    """What a run learns, to the bit, and what it takes."""
    torch.manual_seed(0)
    model = make_model(
        options.model, graph.num_features, graph.num_classes, hidden_channels=options.hidden, num_layers=2
    )
    engine = graphbraid.compile(
        model, graph, host=options.host, passes=PASSES, evidence=_evidence_of(options, graph)
    )
    assert isinstance(engine, graphbraid.Engine)
    _keep(engine, options, graph)
    assert graph.y is not None
    optimizer, y = torch.optim.Adam(model.parameters(), lr=0.01), graph.y[graph.split("train")]
    losses, seconds, read = [], [], []
    for _ in range(options.epochs):
        started, before = time.perf_counter(), read_bytes()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(engine(), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item().hex())
        seconds.append(time.perf_counter() - started)
        read.append(read_bytes() - before)
    weights = xxhash.xxh3_64()
    for weight in model.parameters():
        weights.update(weight.detach().numpy().tobytes())
    return {
        "losses": losses,
        "weights": weights.hexdigest(),
        "epoch_seconds": seconds,
        "read_bytes": read,
        "engine_bytes": engine.nbytes,
        "peak_bytes": round(1e9 * peak_gb()),
    }


def _evidence_of(options: argparse.Namespace, graph: Graph) -> Evidence | None:
    """The rates by which the first of two runs was lowered, so that the other one is lowered alike."""
    file = _file_of(options, graph)
    return Evidence.from_json(json.loads(file.read_text())) if file.exists() else None


def _keep(engine: graphbraid.Engine, options: argparse.Namespace, graph: Graph) -> None:
    _file_of(options, graph).write_text(json.dumps(engine.evidence.to_json()))


def _file_of(options: argparse.Namespace, graph: Graph) -> Path:
    place: Path = options.store
    return place.with_name(f"{options.model}-{options.hidden}-{graph.num_nodes}.evidence.json")


def disk(options: argparse.Namespace) -> dict[str, Any]:
    """What the disk gives a plain reader of the features' file, in order and past the page cache."""
    path = options.store / "x.npy"
    drop(path)
    buffer, read = mmap.mmap(-1, PIECE), 0  # of whole pages, as reads past the cache want it
    is_direct = True
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # a file system that has no such reads: its pages were dropped
        file, is_direct = os.open(path, os.O_RDONLY), False
    try:
        started = time.perf_counter()
        while time.perf_counter() - started < MOST_SECONDS:
            count = os.preadv(file, [buffer], read)
            read += count
            if count < PIECE:
                break
        seconds = time.perf_counter() - started
    finally:
        os.close(file)
    return {"bytes_per_second": read / seconds, "read_bytes": read, "is_direct": is_direct}


def main() -> None:
    """Run once."""
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=("train", "disk"))
    parser.add_argument("store", type=Path)
    parser.add_argument("--warm", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--host", type=int)
    options = parser.parse_args()
    print(json.dumps(train(options) if options.what == "train" else disk(options)))


if __name__ == "__main__":
    main()
