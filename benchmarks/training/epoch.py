"""Epochs of a 3-layer GraphSAGE by sampled mini-batches, side by side with DGL and GraphBolt, in one run.

    python -m benchmarks.training.epoch --graphs GRAPHS

CPU only, hidden width 256, fanouts 15,10,5, 1,024 seeds, Adam; every contender starts from the same weights,
so the losses per epoch must lie on one curve. A peer runs with and without a loader process and counts with
its better time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, peer, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, add_peer_arguments, parser_of
from benchmarks.common.rows import write_rows

HIDDEN, LAYERS = 256, 3


def write_weights(graph: Path, path: Path, *, hidden: int = HIDDEN, layers: int = LAYERS) -> None:
    """Glorot-uniform weights for every contender."""
    rng = np.random.default_rng(0)
    width, classes = np.load(graph / "x.npy", mmap_mode="r").shape[1], int(np.load(graph / "y.npy").max()) + 1
    widths = [width] + [hidden] * (layers - 1) + [classes]
    weights = {}
    for i in range(layers):
        bound = np.sqrt(6 / (widths[i] + widths[i + 1]))
        for part in ("own", "neighbours"):
            weights[f"{part}{i}"] = rng.uniform(-bound, bound, (widths[i + 1], widths[i])).astype(np.float32)
        weights[f"bias{i}"] = np.zeros(widths[i + 1], np.float32)
    np.savez(path, **weights)


def contenders(graph: Path, weights: Path, options: argparse.Namespace) -> list[Contender]:
    """Ours, ours in bfloat16, and the peers with 0 and 1 loader processes."""
    common = [str(graph), str(weights), "--epochs", str(options.epochs)]
    common += ["--batch-size", str(options.batch_size)]
    peers = [
        Contender(
            f"{lib}, {n} loader processes", peer(options.peer_python, "epoch", lib, *common, "--loaders", n)
        )
        for lib in ("dgl", "graphbolt")
        for n in ("0", "1")
    ]
    mine = [
        Contender("graphbraid", ours("training.epoch_ours", *common)),
        Contender("graphbraid, bfloat16", ours("training.epoch_ours", *common, "--bfloat16")),
    ]
    return mine + peers


def check_same_curve(group: list[Contender]) -> None:
    """A contender that learns less must not win by it."""
    mine = np.array(group[0].runs[0]["losses"])
    worst = max(float(np.abs(np.array(c.runs[0]["losses"]) / mine - 1).max()) for c in group)
    if worst > 0.01:
        sys.exit(f"the loss curves differ by {worst:.2%}: {[(c.name, c.runs[0]['losses']) for c in group]}")


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per contender."""
    graph = options.graphs / options.name
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.npz"
        write_weights(graph, weights)
        group = contenders(graph, weights, options)
        run_in_turn(group, options.repeats)
    check_same_curve(group)
    mine = group[0].median("epoch_s")
    return [
        {
            "graph": options.name,
            "name": c.name,
            "epoch_s": c.median("epoch_s"),
            "ratio": c.median("epoch_s") / mine,
            "runs": c.runs,
        }
        for c in group
    ]


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    add_peer_arguments(parser)
    parser.add_argument("--name", default="products-lite")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not timed")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    add_out_argument(parser)
    options = parser.parse_args()
    rows = measure(options)
    table = Table("contender", "s per epoch", "x graphbraid", "loss per epoch")
    for row in rows:
        losses = " ".join(f"{loss:.4f}" for loss in row["runs"][0]["losses"])
        table.add_row(row["name"], f"{row['epoch_s']:.2f}", f"{row['ratio']:.2f}", losses)
    Console(width=130).print(table)
    named = {row["name"]: row for row in rows}
    print("wrote", write_rows("epoch", named, repeats=options.repeats, out=options.out))


if __name__ == "__main__":
    main()
