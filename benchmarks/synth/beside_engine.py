"""Synthesised programs, with OpenMP and with MPI, beside the in-process engine and PyG, in one run.

    python -m benchmarks.synth.beside_engine --graphs GRAPHS --names arxiv-like --models gcn --ranks 1 2 4

The model is a plain PyG stack of three layers of width 32 (GAT: 4 heads, averaged) with Adam, on two
threads. The engine runs it compiled, and the programs are written from it: all start from the same weights.
Each loss of a program must be the engine's within 1e-5, and PyG's last one must be it within 2e-4. Programs
with MPI have ranks that share the two threads; ``--ranks 0`` leaves them out. Contenders are processes of
their own and take turns; the median of the repeats counts. Memory is the process's peak with the pages of the
files it maps, and of several ranks the sum. Start-up is all before the first epoch, from the program's start,
and from Python's with the reading of the graph; the engine's compiling is part of it. Building is CMake's two
commands with all kernel variants, one compiler at a time. Bytes are what the ranks send in an epoch: rows,
and gradients for their sums.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
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
from benchmarks.synth.building import timed_build
from benchmarks.synth.program import MPI_TOOLS, mpi_tool
from graphbraid import Graph, datasets
from graphbraid.distributed import partition
from graphbraid.synth import OptimizerRecipe, Recipe, from_model, write_mpi, write_openmp

HEADS = 4
HIDDEN, LAYERS = 32, 3
EPOCHS = 6
MODELS = ("gcn", "sage", "gin", "gat")
RESULTS = "synth"
OFF, PEER_OFF = 1e-5, 2e-4
"""How far a program's losses, and PyG's, may be off the engine's, as shares of these."""
FIGURES = ("epoch_s", "peak_rss_gb", "load_s", "compile_s", "startup_s", "sent_bytes")


def write(graph: Graph, model: str, num_ranks: int, folder: Path) -> Path:
    """Write the program for a graph; with MPI for some ranks, with OpenMP for none."""
    shape = argparse.Namespace(model=model, hidden=HIDDEN, layers=LAYERS, heads=heads_of(model))
    adam = OptimizerRecipe(kind="adam", learning_rate=0.01)
    torch.manual_seed(0)
    synthesis = from_model(make_net(graph, shape), Recipe(name=model, optimizer=adam, epochs=EPOCHS))
    if num_ranks:
        return write_mpi(synthesis, graph, folder, partition(graph, num_ranks))
    return write_openmp(synthesis, graph, folder)


def heads_of(model: str) -> int:
    """Attention heads."""
    return HEADS if model == "gat" else 1


def contenders(
    graph: str, model: str, place: Path, options: argparse.Namespace
) -> tuple[list[Contender], Contender]:
    """The programs and the engine on one graph; and PyG."""
    arguments = [str(options.graphs / graph), "--model", model, "--hidden", str(HIDDEN)]
    arguments += ["--layers", str(LAYERS), "--heads", str(heads_of(model)), "--epochs"]
    store = ("--data", str(place / "store"))
    group = [
        Contender("program", program_of(place / "program", *store)),
        Contender("engine", ours("fullgraph.ours", *arguments, str(EPOCHS - 1))),
    ]
    for ranks in options.ranks:
        command = program_of(place / f"ranks-{ranks}", "--ranks", str(ranks))
        group.append(Contender(ranks_name(ranks), command))
    epochs = str(options.peer_epochs - 1)
    return group, Contender("pyg", peer(sys.executable, "fullgraph", "pyg", *arguments, epochs))


def ranks_name(ranks: int) -> str:
    """What a row calls the program of so many ranks."""
    return f"mpi-{ranks}"


def program_of(folder: Path, *options: str) -> list[str]:
    """The command that runs a program and prints its figures."""
    return ours("synth.program", str(folder), "--epochs", str(EPOCHS), *options)


def measure(graph: str, model: str, options: argparse.Namespace, objects: Path) -> dict[str, Any]:
    """One row of the table."""
    print(graph, model, file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        place = Path(scratch)
        opened = datasets.open_store(datasets.save_store(load(options.graphs / graph), place / "store"))
        made = {"program": timed_build(partial(write, opened, model, 0, place / "program"), objects)}
        for ranks in options.ranks:
            compiler = f"-DMPI_CXX_COMPILER={mpi_tool('mpicxx')}"
            writing = partial(write, opened, model, ranks, place / f"ranks-{ranks}")
            made[ranks_name(ranks)] = timed_build(writing, objects, compiler)
        group, pyg = contenders(graph, model, place, options)
        run_in_turn(group, options.repeats)
        run_in_turn([pyg], options.peer_repeats)
    off = check_losses(f"{graph}, {model}", group, pyg)
    row: dict[str, Any] = {"graph": graph, "model": model, "ranks": options.ranks}
    for c in (*group, pyg):
        row[c.name] = {key: c.median(key) for key in FIGURES if c.runs[0].get(key) is not None}
        row[c.name] |= made.get(c.name, {}) | {"off": off[c.name], "runs": c.runs}
    return row | {"input_path": group[0].runs[0]["input_path"]}


def check_losses(what: str, group: list[Contender], pyg: Contender) -> dict[str, float]:
    """How far each one's losses are off the engine's at most, as a share; ends the benchmark if too far."""
    (engine,) = (c.runs[0]["losses"] for c in group if c.name == "engine")
    off = {
        c.name: max(_share(*both) for run in c.runs for both in zip(run["losses"], engine, strict=True))
        for c in group
    }
    at = len(pyg.runs[0]["epochs_s"])  # the first epoch is not timed
    off["pyg"] = max(_share(run["loss"], engine[at]) for run in pyg.runs)
    if any(share > (PEER_OFF if name == "pyg" else OFF) for name, share in off.items()):
        sys.exit(f"{what}: the losses differ: {off}")
    return off


def _share(loss: float, expected: float) -> float:
    return abs(loss - expected) / abs(expected)


def targets_of(row: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The programs of a row: what they are written with, and their figures."""
    of_ranks = [(f"MPI, {ranks}", row[ranks_name(ranks)]) for ranks in row["ranks"]]
    return [("OpenMP", row["program"]), *of_ranks]


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    console = Console(width=170)
    table = Table(
        *("graph", "model", "input", "with", "ms", "engine ms (x)", "PyG ms (x)", "sent MB"),
        *("peak MB", "engine", "PyG", "start-up s", "engine", "compiles", "write s", "build s", "MB"),
    )
    for row in rows:
        engine, pyg = row["engine"], row["pyg"]
        for target, of in targets_of(row):
            table.add_row(
                *(row["graph"], row["model"], row["input_path"], target, f"{1e3 * of['epoch_s']:.2f}"),
                *(f"{1e3 * c['epoch_s']:.2f} ({c['epoch_s'] / of['epoch_s']:.2f})" for c in (engine, pyg)),
                f"{of['sent_bytes'] / 1e6:.2f}" if "sent_bytes" in of else "",
                *(f"{1e3 * c['peak_rss_gb']:.0f}" for c in (of, engine, pyg)),
                *(f"{of['load_s']:.2f}", f"{engine['startup_s']:.2f}", f"{engine['compile_s']:.2f}"),
                *(f"{of[key]:.2f}" for key in ("write_s", "build_s", "binary_mb")),
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
    parser.add_argument("--peer-repeats", type=int, default=1, help="of PyG, which is far slower")
    parser.add_argument("--peer-epochs", type=int, default=3, help="of PyG; the first is not timed")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[2], help="of programs with MPI, one for each; 0 for none"
    )
    parser.add_argument("--scratch", type=Path, help="folder for stores and programs, which are deleted")
    add_out_argument(parser)
    options = parser.parse_args()
    options.ranks = [ranks for ranks in options.ranks if ranks]
    if options.ranks and not all(map(mpi_tool, MPI_TOOLS)):
        parser.error("there is no MPI: pip install mpich, or --ranks 0")
    if not 2 <= options.peer_epochs <= EPOCHS:
        parser.error(f"--peer-epochs must be from 2 to {EPOCHS}")
    rows = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as objects:
        for graph in options.names:
            for model in options.models:
                rows.append(measure(graph, model, options, Path(objects)))
                named = {f"{graph}, {model}": rows[-1]}
                print("wrote", write_rows(RESULTS, named, repeats=options.repeats, out=options.out))
    show(rows)


if __name__ == "__main__":
    main()
