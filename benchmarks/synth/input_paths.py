"""Synthesised programs that choose their input path, beside the same ones forced to each path, in one run.

    python -m benchmarks.synth.input_paths --data ARCHIVES --names nell coauthor_physics amazon_computers

A GCN of two layers of width 32 trains on the nodes of a split, or on a tenth of the nodes where there is
none, on two threads. One program is written with all paths that the features allow; it runs as it chooses,
and with ``--input`` for each path. All must have the same loss after six epochs. Memory is the process's
peak with the pages of the files it maps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import Contender, run_in_turn
from benchmarks.common.options import add_data_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.synth.beside_engine import EPOCHS, RESULTS, program_of
from benchmarks.synth.building import timed_build
from graphbraid import Graph, datasets, nn
from graphbraid.fullgraph.lowering.costs import density
from graphbraid.ops.binary import is_binary
from graphbraid.synth import OptimizerRecipe, Recipe, from_model, write_openmp

HIDDEN = 32
FIGURES = ("epoch_s", "peak_rss_gb", "load_s")


def graph_of(archive: Path) -> Graph:
    """An archive's graph, with a training split."""
    graph = datasets.load(archive)
    if "train" in graph.splits:
        return graph
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))
    return graph.replace(splits={"train": order[: graph.num_nodes // 10].sort().values})


def write(graph: Graph, paths: tuple[str, ...], folder: Path) -> Path:
    """Write the program."""
    torch.manual_seed(0)
    model = nn.GCN(graph.num_features, HIDDEN, graph.num_classes)
    adam = OptimizerRecipe(kind="adam", learning_rate=0.01)
    return write_openmp(
        from_model(model, Recipe(name="gcn", optimizer=adam, epochs=EPOCHS)), graph, folder, inputs=paths
    )


def measure(name: str, options: argparse.Namespace, objects: Path) -> dict[str, Any]:
    """One row of the table."""
    print(name, file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        place = Path(scratch)
        store = datasets.save_store(graph_of(options.data / f"{name}.npz"), place / "store")
        graph = datasets.open_store(store)
        assert graph.x is not None
        paths = ("dense", "csr", "bits") if is_binary(graph.x) else ("dense", "csr")
        row: dict[str, Any] = {"graph": name, "model": "gcn", "density": density(graph.x)}
        row |= timed_build(partial(write, graph, paths, place / "program"), objects)
        run = partial(program_of, place / "program", "--data", str(store))
        group = [Contender("chosen", run()), *(Contender(path, run("--input", path)) for path in paths)]
        run_in_turn(group, options.repeats)
    losses = {c.name: c.runs[0]["losses"][-1] for c in group}
    if any(abs(loss - losses["dense"]) > 1e-5 * losses["dense"] for loss in losses.values()):
        sys.exit(f"{name}: the losses differ: {losses}")
    row |= {c.name: {key: c.median(key) for key in FIGURES} | {"runs": c.runs} for c in group}
    return row | {"input_path": [run["input_path"] for run in group[0].runs], "paths": paths}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("graph", "not zero", "path", "epoch ms", "dense / it", "peak MB", "load s")
    for row in rows:
        for name in ("chosen", *row["paths"]):
            chosen = " or ".join(sorted(set(row["input_path"])))
            figures, dense = row[name], row["dense"]
            table.add_row(
                *(row["graph"], f"{100 * row['density']:.3g}%"),
                f"{name}: {chosen}" if name == "chosen" else f"forced: {name}",
                *(f"{1e3 * figures['epoch_s']:.2f}", f"{dense['epoch_s'] / figures['epoch_s']:.2f}"),
                *(f"{1e3 * figures['peak_rss_gb']:.0f}", f"{figures['load_s']:.2f}"),
            )
    Console(width=130).print(table)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_data_argument(parser)
    parser.add_argument("--names", nargs="+", required=True, help="archives")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="folder for stores and programs, which are deleted")
    add_out_argument(parser)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as objects:
        for name in options.names:
            rows.append(measure(name, options, Path(objects)))
            named = {f"{name}, input paths": rows[-1]}
            print("wrote", write_rows(RESULTS, named, repeats=options.repeats, out=options.out))
    show(rows)


if __name__ == "__main__":
    main()
