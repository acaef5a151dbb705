"""One estimate, or the run that it is of, for ``benchmarks.planning.estimate``; one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import graphbraid
from benchmarks.peers.common import peak_gb
from graphbraid import Graph, Trainer
from graphbraid.datasets import open_store
from graphbraid.estimates.records import PartSeconds
from graphbraid.machine.measurements import OtherPrograms
from graphbraid.nn import make_model


def main() -> None:
    """Open a store, estimate or train, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--what", choices=("estimate", "run"), required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--options", type=json.loads, required=True)
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    torch.manual_seed(0)
    options: dict[str, Any] = {"epochs": given.epochs} | dict(given.options)
    graph = open_store(given.store, mmap="host" in options)
    if options.get("host") == "quarter":
        assert isinstance(graph.x, torch.Tensor)
        options["host"] = graph.x.nbytes // 4 + 16 * graph.num_nodes + (4 << 20)
    if "out_dir" in options:  # beside the store, which is removed with it
        options["out_dir"] = given.store.parent / f"{options['out_dir']}-{os.getpid()}"
    model = make_model(given.model, graph.num_features, graph.num_classes, hidden_channels=64)
    found = _estimated(model, graph, options) if given.what == "estimate" else _ran(model, graph, options)
    print(json.dumps(found))


def _estimated(model: torch.nn.Module, graph: Graph, options: dict[str, Any]) -> dict[str, float | None]:
    started = time.perf_counter()
    found = graphbraid.estimate(model, graph, **options)
    chosen = found.of(options.get("mode", "sampled"))
    assert chosen.host is not None
    assert chosen.seconds is not None
    said = chosen.seconds
    return {
        "memory_bytes": chosen.host.nbytes,
        "epoch_seconds": said.train.known + seconds_of(said.validation),
        "run_seconds": said.of_run(chosen.epochs),
        "train": said.train.known,
        "validation": seconds_of(said.validation),
        "first": said.first,
        "once": seconds_of(said.test) + chosen.epochs * seconds_of(said.checkpoints),
        "seconds": time.perf_counter() - started,
        "others": said.others or 0.0,
    }


def seconds_of(part: PartSeconds | None) -> float:
    """Return the seconds of a part of a run; 0 without it, or where they are not known."""
    return 0.0 if part is None else part.seconds or 0.0


def _ran(model: torch.nn.Module, graph: Graph, options: dict[str, Any]) -> dict[str, float]:
    trainer, others = Trainer(model, graph, **options), OtherPrograms()
    result = trainer.fit()
    return {
        "memory_bytes": round(1e9 * peak_gb()),
        **parts_of(result.history, result.seconds),
        "seconds": result.seconds,
        "others": others.share() or 0.0,
    }


def parts_of(history: Sequence[Mapping[str, Any]], run_seconds: float) -> dict[str, float]:
    """Return the parts of a run as an estimate names them; of an epoch, the median of those after the first.

    Epochs of the history end before their checkpoints are written; these, and the test, are what remains.
    """
    epochs = [row["epoch_seconds"] for row in history]
    validations = [row["evaluate_seconds"] for row in history]
    trainings = [whole - part for whole, part in zip(epochs, validations, strict=True)]
    epoch, train, validation = (
        statistics.median(seconds[1:] or seconds) for seconds in (epochs, trainings, validations)
    )
    return {
        "epoch_seconds": epoch,
        "run_seconds": run_seconds,
        "train": train,
        "validation": validation,
        "first": epochs[0] - epoch,
        "once": run_seconds - sum(epochs),
    }


if __name__ == "__main__":
    main()
