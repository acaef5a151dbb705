"""What checking costs: a graph's scan beside an epoch, and epochs beside another checkout's.

    python -m benchmarks.training.checks --graphs GRAPHS --names arxiv-like [--before CHECKOUT]

A graph made by a public call is scanned once, unless ``trusted=True`` says that it need not be; the scan
should take less than an epoch. With --before, epochs of both checkouts, each with its own kernels compiled
in place (``scripts/build_inplace.sh``) and threads that sleep while they wait, take turns in processes of
their own, which fail if it is not their checkout's package that they import; the median counts.
Full-graph epochs train a GCN, sampled ones GraphSAGE, and batches are sampled and gathered by one worker, as
``benchmarks.fullgraph.beside_peers``, ``benchmarks.training.epoch`` and ``benchmarks.sampling.beside_peers``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import ROOT, last_json_line
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.folder import load
from benchmarks.training.epoch import write_weights
from graphbraid import Graph
from graphbraid.graph.csc import Csc

SCANS = 9
RUN_MODULE = """
import runpy, sys
checkout, module, *sys.argv[1:] = sys.argv[1:]
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
import graphbraid
if not graphbraid.__file__.startswith(f"{checkout}/"):
    raise SystemExit(f"graphbraid is {graphbraid.__file__}, not that of {checkout}")
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module with its own checkout's package, for which the finder of an editable install must go."""


def scan_seconds(folder: Path) -> float:
    """How much longer a graph takes to be made where it is scanned: the difference of medians."""
    graph = load(folder)
    csc, whole = graph.csc, {"x": graph.x, "y": graph.y, "splits": {"train": graph.split("train")}}

    def seconds(*, trusted: bool) -> float:
        began = time.perf_counter()
        made = Csc(csc.indptr, csc.indices, csc.num_src, trusted=trusted)
        Graph(csc=made, **whole, trusted=trusted)
        return time.perf_counter() - began

    return max(
        0.0,
        statistics.median(seconds(trusted=False) for _ in range(SCANS))
        - statistics.median(seconds(trusted=True) for _ in range(SCANS)),
    )


def seconds_of(checkout: Path, module: str, *arguments: str) -> float:
    """The median epoch, or the mean batch, of one process that runs a checkout's own benchmark."""
    paths = {"PYTHONPATH": f"{checkout / 'src'}:{checkout}", "OMP_WAIT_POLICY": "passive"}
    if not (checkout / "benchmarks" / module.replace(".", "/")).with_suffix(".py").exists():
        module = module.replace(".", "_").removeprefix("training_")  # before there was a folder per question
    command = [sys.executable, "-c", RUN_MODULE, str(checkout), f"benchmarks.{module}", *arguments]
    found = last_json_line(f"{module} of {checkout}", command, os.environ | paths, checkout)
    return float(found["epoch_s"] if "epoch_s" in found else found["ms_per_batch"] / 1e3)


def timings(folder: Path, weights: Path, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds of each kind of epoch and of a batch, by checkout, repeat by repeat."""
    runs = {
        "full": ("fullgraph.ours", str(folder), "--epochs", "20"),
        "sampled": ("training.epoch_ours", str(folder), str(weights), "--epochs", "4"),
        "batch": ("sampling.ours", str(folder)),
    }
    checkouts = {"now": ROOT} | ({"before": options.before.resolve()} if options.before else {})
    seconds: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in checkouts} for kind in runs}
    for _ in range(options.repeats):
        for kind, run in runs.items():
            for name, checkout in checkouts.items():
                seconds[kind][name].append(seconds_of(checkout, *run))
    return seconds


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One graph."""
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "weights.npz"
        write_weights(folder, weights, hidden=256)
        found = timings(folder, weights, options)
    row: dict[str, Any] = {"graph": folder.name, "scan_s": scan_seconds(folder), "runs": found}
    for kind, by_checkout in found.items():
        row[kind] = {name: statistics.median(took) for name, took in by_checkout.items()}
    return row


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    kinds = {"full": "full epoch ms", "sampled": "sampled epoch ms", "batch": "batch ms"}
    table = Table(
        "graph", "scan ms", *(column for kind in kinds.values() for column in (kind, "now / before"))
    )
    for row in rows:
        cells = [row["graph"], f"{1e3 * row['scan_s']:.2f}"]
        for kind in kinds:
            now, before = row[kind]["now"], row[kind].get("before")
            cells += [f"{1e3 * now:.1f}", f"{now / before:.3f}" if before else ""]
        table.add_row(*cells)
    Console(width=110).print(table)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", required=True)
    parser.add_argument("--before", type=Path, help="another checkout to take turns with")
    parser.add_argument("--repeats", type=int, default=3)
    add_out_argument(parser)
    options = parser.parse_args()
    torch.set_num_threads(2)
    before: dict[str, str] = {}
    if options.before:
        head = ["git", "-C", str(options.before), "rev-parse", "--short", "HEAD"]
        before["before"] = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    rows = []
    for name in options.names:
        rows.append(measure(options.graphs / name, options))
        named = {row["graph"]: {**row, **before} for row in rows}
        written = write_rows("checks", named, repeats=options.repeats, out=options.out)
    show(rows)
    print("wrote", written)


if __name__ == "__main__":
    main()
