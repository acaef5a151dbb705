"""Synthesised OpenMP programs beside the in-process engine and PyG, in one run.

    python -m benchmarks.synth.beside_engine --graphs GRAPHS --names arxiv-like --models gcn sage

The model is a plain PyG stack of three layers of width 32 (GAT: 4 heads, averaged) with Adam, on two
threads. The engine runs it compiled, and the program is written from it: all start from the same weights and
must have the same loss after six epochs. Contenders are processes of their own and take turns; the median of
the repeats counts. Memory is the process's peak with the pages of the files it maps. Loading is from the
program's start to its first epoch; building is CMake's two commands with all kernel variants, one compiler at
a time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from math import prod
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, ours, peer, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.fullgraph.ours import make_net
from benchmarks.graphs.folder import load
from graphbraid import datasets
from graphbraid.synth import OptimizerRecipe, Recipe, from_model, write_openmp

HEADS = 4
HIDDEN, LAYERS = 32, 3
EPOCHS = 6
MODELS = ("gcn", "sage", "gin", "gat")
RESULTS = "synth"


def written(graph: str, model: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write a program for a graph to a folder and build it; how long that took, and the binary's size."""
    torch.manual_seed(0)
    store = datasets.save_store(load(options.graphs / graph), place / "store")
    opened = datasets.open_store(store)
    shape = argparse.Namespace(model=model, hidden=HIDDEN, layers=LAYERS, heads=heads_of(model))
    adam = OptimizerRecipe(kind="adam", learning_rate=0.01)
    synthesis = from_model(make_net(opened, shape), Recipe(name=model, optimizer=adam, epochs=EPOCHS))
    started = time.perf_counter()
    folder = write_openmp(synthesis, opened, place / "program")
    wrote = time.perf_counter()
    for command in (["cmake", "-S", folder, "-B", folder / "build"], ["cmake", "--build", folder / "build"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return {
        "write_s": wrote - started,
        "build_s": time.perf_counter() - wrote,
        "binary_mb": (folder / "build" / "train").stat().st_size / 1e6,
        "input_path": synthesis.lower(opened).program.input_path,
    }


def heads_of(model: str) -> int:
    """Attention heads."""
    return HEADS if model == "gat" else 1


def contenders(graph: str, model: str, place: Path, options: argparse.Namespace) -> list[Contender]:
    """The program, the engine and PyG on one graph."""
    arguments = [str(options.graphs / graph), "--model", model, "--hidden", str(HIDDEN)]
    arguments += ["--layers", str(LAYERS), "--heads", str(heads_of(model)), "--epochs", str(EPOCHS - 1)]
    program = ours("synth.program", str(place / "program"), str(place / "store"), "--epochs", str(EPOCHS))
    return [
        Contender("program", program),
        Contender("engine", ours("fullgraph.ours", *arguments)),
        Contender("pyg", peer(sys.executable, "fullgraph", "pyg", *arguments)),
    ]


def measure(graph: str, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    print(graph, model, file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        place = Path(scratch)
        row: dict[str, Any] = {"graph": graph, "model": model, **written(graph, model, place, options)}
        group = contenders(graph, model, place, options)
        run_in_turn(group, options.repeats)
    losses = {c.name: c.runs[0]["loss"] for c in group}
    if any(abs(loss - losses["engine"]) > 2e-4 * max(1.0, losses["engine"]) for loss in losses.values()):
        sys.exit(f"{graph}, {model}: the losses differ: {losses}")
    for c in group:
        row[c.name] = {key: c.median(key) for key in ("epoch_s", "peak_rss_gb")} | {"runs": c.runs}
    row["load_s"] = group[0].median("load_s")
    return row


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    console = Console(width=170)
    table = Table(
        *("graph", "model", "input", "program ms", "engine ms (x)", "PyG ms (x)"),
        *("peak MB: program", "engine", "PyG", "load s", "write s", "build s", "binary MB"),
    )
    for row in rows:
        epoch = {name: row[name]["epoch_s"] for name in ("program", "engine", "pyg")}
        table.add_row(
            *(row["graph"], row["model"], row["input_path"], f"{1e3 * epoch['program']:.2f}"),
            *(f"{1e3 * epoch[c]:.2f} ({epoch[c] / epoch['program']:.2f})" for c in ("engine", "pyg")),
            *(f"{1e3 * row[c]['peak_rss_gb']:.0f}" for c in epoch),
            *(f"{row[key]:.2f}" for key in ("load_s", "write_s", "build_s", "binary_mb")),
        )
    console.print(table)
    for peer_name in ("engine", "pyg"):
        ratios = [row[peer_name]["epoch_s"] / row["program"]["epoch_s"] for row in rows]
        console.print(f"geometric mean over {peer_name}: {prod(ratios) ** (1 / len(ratios)):.2f}x")


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", required=True, help="graphs")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="folder for stores and programs, which are deleted")
    add_out_argument(parser)
    options = parser.parse_args()
    rows = []
    for graph in options.names:
        for model in options.models:
            rows.append(measure(graph, model, options))
            named = {f"{graph}, {model}": rows[-1]}
            print("wrote", write_rows(RESULTS, named, repeats=options.repeats, out=options.out))
    show(rows)


if __name__ == "__main__":
    main()
