"""ComplEx on a knowledge graph beside PyKEEN, in one run: an epoch among all entities, and filtered ranks.

    python -m benchmarks.training.knowledge --data ARCHIVES [--name kg_fb15k237] [--threads 2]

Both train the same model with the same batches of questions (reciprocal relations, cross entropy among all
entities, Adagrad, float32, without N3), and rank the test triples by the weights that ours has after
``--epochs`` epochs: the MRR must be the same. Losses differ by weights: PyKEEN's is a mean over questions,
ours one over their answers. PyKEEN runs in an environment of its own, which ``make peers-pykeen`` makes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, peer, run_in_turn
from benchmarks.common.options import (
    PYKEEN_PYTHON,
    absolute_path,
    add_data_argument,
    add_out_argument,
    parser_of,
)
from benchmarks.common.rows import write_rows
from graphbraid import Trainer, datasets, nn

SECONDS = ("epoch_s", "epoch_processor_s", "ranks_s", "ranks_processor_s")
"""Measured times. Those of the processor hardly change beside other programs on the machine."""


def train(options: argparse.Namespace) -> None:
    """Ours: train, rank, leave triples and weights in the folder; print one JSON line."""
    graph = datasets.load(options.data / f"{options.name}.npz")
    torch.manual_seed(0)
    count = len(graph.edge_types)
    rows = nn.NodeEmbedding(graph.num_nodes, options.channels)
    model = nn.LinkModel(rows, nn.ComplEx(count, options.channels, reciprocal=True))
    trainer = Trainer(
        model,
        graph,
        task="link",
        negatives="one-vs-all",
        metrics=("mrr", "hits@10"),
        optimizer="adagrad",
        lr=options.lr,
        batch_size=options.batch_size,
        epochs=options.epochs,
        fanouts=(0,),
        threads=options.threads,
        eval_every=0,
        test_at_end=False,
    )
    start, before = time.perf_counter(), time.process_time()
    history = trainer.fit().history
    line = {"epoch_s": (time.perf_counter() - start) / options.epochs, "loss": history[-1]["train_loss"]}
    line["epoch_processor_s"] = (time.process_time() - before) / options.epochs
    start, before = time.perf_counter(), time.process_time()
    found = trainer.evaluate("test")
    line |= {"ranks_s": time.perf_counter() - start, "ranks_processor_s": time.process_time() - before}
    with np.load(options.data / f"{options.name}.npz") as archive:
        triples = np.stack([archive["edge_index"][0], archive["edge_type"], archive["edge_index"][1]], 1)
        ends = archive["edge_split_ptr"][1:]
    arrays = {"triples": triples.astype(np.int64), "ends": ends.astype(np.int64)}
    arrays |= {
        "entities": rows.rows.detach().numpy(),
        "relations": model.predictor.relations.detach().numpy(),
    }
    for name, array in arrays.items():
        np.save(options.folder / f"{name}.npy", array)
    print(json.dumps(line | {"mrr": found["mrr"], "hits@10": found["hits@10"]}))


def measure(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """The row, once both rank alike."""
    shared = [
        "--threads",
        str(options.threads),
        "--batch-size",
        str(options.batch_size),
        "--lr",
        str(options.lr),
    ]
    own = ["--data", str(options.data), "--name", options.name, "--channels", str(options.channels)]
    own += ["--epochs", str(options.epochs), "--folder", folder]
    group = [
        Contender("graphbraid", ours("training.knowledge", *own, *shared)),
        Contender("pykeen", peer(str(options.pykeen_python), "knowledge", folder, *shared)),
    ]
    run_in_turn(group, options.repeats)
    mrr = [contender.runs[-1]["mrr"] for contender in group]
    if abs(mrr[0] - mrr[1]) > 1e-4:
        sys.exit(f"the filtered MRR of the same weights differs: {mrr}")
    row: dict[str, Any] = {"dataset": options.name, "channels": options.channels, "threads": options.threads}
    row["batch_size"] = options.batch_size
    for contender in group:
        figures = {key: contender.median(key) for key in (*SECONDS, "mrr")}
        row[contender.name] = figures | {"runs": contender.runs}
    row["ratio"] = {key: row["pykeen"][key] / row["graphbraid"][key] for key in SECONDS}
    return row


def show(row: dict[str, Any]) -> None:
    """Print the table."""
    table = Table("contender", *SECONDS, "filtered MRR")
    for name in ("graphbraid", "pykeen"):
        table.add_row(name, *(f"{row[name][key]:.1f}" for key in SECONDS), f"{row[name]['mrr']:.5f}")
    Console(width=100).print(table)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_data_argument(parser)
    parser.add_argument("--name", default="kg_fb15k237")
    parser.add_argument(
        "--pykeen-python", default=str(PYKEEN_PYTHON), type=lambda given: str(absolute_path(given))
    )
    parser.add_argument("--channels", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="train and leave the weights there: one contender's part")
    add_out_argument(parser)
    options = parser.parse_args()
    if options.folder is not None:
        train(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        row = measure(options, folder)
    print(
        "wrote", write_rows("knowledge_epoch", {options.name: row}, repeats=options.repeats, out=options.out)
    )
    show(row)


if __name__ == "__main__":
    main()
