"""Epochs of PyG's models on sampled mini-batches, compiled, beside PyG, DGL and GraphBolt, in one run.

    python -m benchmarks.training.epoch --graphs GRAPHS

CPU only, three layers, fanouts 15,10,5, 1,024 seeds, Adam. Every contender of GraphSAGE starts from the same
weights, so the losses per epoch must lie on one curve. GCN and GAT draw their own weights, and DGL's have no
self-loops, so there the losses stand beside the times. PyG samples by torch-sparse, which ``make peers``
compiles. A peer runs with and without a loader process and counts with its better time.
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

LAYERS = 3
MODELS = {"SAGE 256": ("SAGE", 256), "SAGE 64": ("SAGE", 64), "GCN 64": ("GCN", 64), "GAT 64": ("GAT", 64)}


def write_weights(graph: Path, path: Path, *, hidden: int, layers: int = LAYERS) -> None:
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


def contenders(name: str, graph: Path, weights: Path, options: argparse.Namespace) -> list[Contender]:
    """Ours, ours in bfloat16, and the peers with 0 and 1 loader processes."""
    sampler = Path(options.peer_python).parents[1] / "pyg"
    with_pyg = ["env", f"PYTHONPATH={sampler}", *ours("peers.epoch_pyg")]
    model, hidden = MODELS[name]
    common = [str(graph), str(weights), "--epochs", str(options.epochs), "--model", model]
    common += ["--batch-size", str(options.batch_size), "--hidden", str(hidden)]
    commands = {lib: peer(options.peer_python, "epoch", lib) for lib in ("dgl", "graphbolt")}
    peers = [
        Contender(f"{lib}, {n} loader processes", [*command, *common, "--loaders", n])
        for lib, command in {**commands, "pyg": with_pyg}.items()
        for n in ("0", "1")
    ]
    mine = Contender("graphbraid", ours("training.epoch_ours", *common))
    half = Contender("graphbraid, bfloat16", ours("training.epoch_ours", *common, "--bfloat16"))
    return [mine, half, *peers]


def check_same_curve(group: list[Contender]) -> None:
    """A contender that learns less must not win by it."""
    mine = np.array(group[0].runs[0]["losses"])
    worst = max(float(np.abs(np.array(c.runs[0]["losses"]) / mine - 1).max()) for c in group)
    if worst > 0.01:
        sys.exit(f"the loss curves differ by {worst:.2%}: {[(c.name, c.runs[0]['losses']) for c in group]}")


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per contender of a model."""
    graph = options.graphs / options.name
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.npz"
        write_weights(graph, weights, hidden=MODELS[name][1])
        group = contenders(name, graph, weights, options)
        run_in_turn(group, options.repeats)
    if MODELS[name][0] == "SAGE":
        check_same_curve(group)
    mine = group[0].median("epoch_s")
    return [
        {
            "graph": options.name,
            "model": name,
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
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--epochs", type=int, default=4, help="the first is not timed")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    add_out_argument(parser)
    options = parser.parse_args()
    table = Table("model", "contender", "s per epoch", "x graphbraid", "loss per epoch")
    for model in options.models:
        rows = measure(model, options)
        for row in rows:
            losses = " ".join(f"{loss:.4f}" for loss in row["runs"][0]["losses"])
            table.add_row(model, row["name"], f"{row['epoch_s']:.2f}", f"{row['ratio']:.2f}", losses)
        named = {f"{model}, {row['name']}": row for row in rows}
        write_rows("epoch", named, repeats=options.repeats, out=options.out)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
