"""Synthesised programs, with OpenMP and with MPI, beside the in-process engine and PyG, in one run.

    python -m benchmarks.synth.beside_engine --graphs GRAPHS --names arxiv-like --models gcn sage

The model is a plain PyG stack of three layers of width 32 (GAT: 4 heads, averaged) with Adam, on two
threads. The engine runs it compiled, and the programs are written from it: all start from the same weights
and must have the same loss after six epochs. The program with MPI has ranks that share the two threads; it
is left out with ``--ranks 0``. Contenders are processes of their own and take turns; the median of the
repeats counts. Memory is the process's peak with the pages of the files it maps, and of several ranks the
sum. Loading is from the program's start to its first epoch, the engine's is its compiling; building is
CMake's two commands with all kernel variants, one compiler at a time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
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
from benchmarks.synth.program import MPI_TOOLS, mpi_tool
from graphbraid import datasets
from graphbraid.distributed import partition
from graphbraid.synth import OptimizerRecipe, Recipe, from_model, write_mpi, write_openmp

HEADS = 4
HIDDEN, LAYERS = 32, 3
EPOCHS = 6
MODELS = ("gcn", "sage", "gin", "gat")
RESULTS = "synth"


def written(graph: str, model: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write the programs for a graph and build them; how long that took, and their sizes."""
    store = datasets.save_store(load(options.graphs / graph), place / "store")
    opened = datasets.open_store(store)
    shape = argparse.Namespace(model=model, hidden=HIDDEN, layers=LAYERS, heads=heads_of(model))
    adam = OptimizerRecipe(kind="adam", learning_rate=0.01)

    def write(folder: Path) -> Path:
        torch.manual_seed(0)
        synthesis = from_model(make_net(opened, shape), Recipe(name=model, optimizer=adam, epochs=EPOCHS))
        if folder.name == "ranks":
            return write_mpi(synthesis, opened, folder, partition(opened, options.ranks))
        return write_openmp(synthesis, opened, folder)

    made = timed_build(partial(write, place / "program"))
    if options.ranks:
        compiler = (f"-DMPI_CXX_COMPILER={mpi_tool('mpicxx')}",)
        made["mpi_built"] = timed_build(partial(write, place / "ranks"), *compiler)
    return made


def timed_build(write: Callable[[], Path], *configured: str) -> dict[str, Any]:
    """Write a program, build it, and return how long both took, and the binary's size."""
    started = time.perf_counter()
    folder = write()
    wrote = time.perf_counter()
    build = folder / "build"
    for command in (["cmake", "-S", folder, "-B", build, *configured], ["cmake", "--build", build]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return {
        "write_s": wrote - started,
        "build_s": time.perf_counter() - wrote,
        "binary_mb": (build / "train").stat().st_size / 1e6,
    }


def heads_of(model: str) -> int:
    """Attention heads."""
    return HEADS if model == "gat" else 1


def contenders(graph: str, model: str, place: Path, options: argparse.Namespace) -> list[Contender]:
    """The program, the engine and PyG on one graph."""
    arguments = [str(options.graphs / graph), "--model", model, "--hidden", str(HIDDEN)]
    arguments += ["--layers", str(LAYERS), "--heads", str(heads_of(model)), "--epochs", str(EPOCHS - 1)]
    epochs = ("--epochs", str(EPOCHS))
    group = [
        Contender("program", program_of(place / "program", "--data", str(place / "store"), *epochs)),
        Contender("engine", ours("fullgraph.ours", *arguments)),
        Contender("pyg", peer(sys.executable, "fullgraph", "pyg", *arguments)),
    ]
    if options.ranks:
        ranks = program_of(place / "ranks", "--ranks", str(options.ranks), *epochs)
        group.insert(1, Contender("mpi", ranks))
    return group


def program_of(folder: Path, *options: str) -> list[str]:
    """The command that runs a program and prints its figures."""
    return ours("synth.program", str(folder), *options)


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
        row[c.name] |= {key: c.median(key) for key in ("load_s", "compile_s") if key in c.runs[0]}
    row |= {"ranks": options.ranks, "load_s": group[0].median("load_s")}
    row["input_path"] = group[0].runs[0]["input_path"]
    return row


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    console = Console(width=170)
    table = Table(
        *("graph", "model", "input", "with", "ms", "engine ms (x)", "PyG ms (x)"),
        *("peak MB", "engine", "PyG", "load s", "engine compiles s", "write s", "build s", "binary MB"),
    )
    for row in rows:
        of_ranks = [("mpi", f"MPI, {row['ranks']}", row["mpi_built"])] if "mpi" in row else []
        for name, target, built in (("program", "OpenMP", row), *of_ranks):
            epoch = {c: row[c]["epoch_s"] for c in (name, "engine", "pyg")}
            table.add_row(
                *(row["graph"], row["model"], row["input_path"], target, f"{1e3 * epoch[name]:.2f}"),
                *(f"{1e3 * epoch[c]:.2f} ({epoch[c] / epoch[name]:.2f})" for c in ("engine", "pyg")),
                *(f"{1e3 * row[c]['peak_rss_gb']:.0f}" for c in epoch),
                *(f"{row[name]['load_s']:.2f}", f"{row['engine']['compile_s']:.2f}"),
                *(f"{built[key]:.2f}" for key in ("write_s", "build_s", "binary_mb")),
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
    parser.add_argument(
        "--ranks", type=int, help="of the program with MPI; 0 leaves it out. Default: 2, where there is MPI"
    )
    parser.add_argument("--scratch", type=Path, help="folder for stores and programs, which are deleted")
    add_out_argument(parser)
    options = parser.parse_args()
    has_mpi = all(map(mpi_tool, MPI_TOOLS))
    if options.ranks and not has_mpi:
        parser.error("there is no MPI: pip install mpich, or --ranks 0")
    if options.ranks is None:
        options.ranks = 2 if has_mpi else 0
        print(f"the program with MPI: {options.ranks} ranks", file=sys.stderr)
    rows = []
    for graph in options.names:
        for model in options.models:
            rows.append(measure(graph, model, options))
            named = {f"{graph}, {model}": rows[-1]}
            print("wrote", write_rows(RESULTS, named, repeats=options.repeats, out=options.out))
    show(rows)


if __name__ == "__main__":
    main()
