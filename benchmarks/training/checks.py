"""What checking costs: a graph's scan beside an epoch, and epochs beside another checkout's.

    python -m benchmarks.training.checks --graphs GRAPHS --names arxiv-like [--before CHECKOUT]

A graph made by a public call is scanned once, unless ``trusted=True`` says that it need not be; the scan
should take less than an epoch. With --before, epochs of both checkouts, each with its own kernels compiled
in place (``scripts/build_inplace.sh``) and threads that sleep while they wait, take turns in processes of
their own, which fail if it is not their checkout's package that they import; the median counts.
Full-graph epochs train a GCN, sampled ones GraphSAGE, and batches are sampled and gathered by one worker, as
``benchmarks.fullgraph.beside_peers``, ``benchmarks.training.epoch`` and ``benchmarks.sampling.beside_peers``.
Typed batches are those of ``benchmarks.sampling.typed`` on a twentieth of mag-like. Two ranks of one thread
each train a GCN on the whole of braid-100k, started as torchrun starts them.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import ROOT, output_of, unused_port
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.folder import load
from benchmarks.sampling import typed_graphs
from benchmarks.training.epoch import write_weights
from graphbraid import Graph
from graphbraid.graph.csc import Csc

SCANS = 9
MAG_SHARE = 0.05
RANKS_RUN = (
    *("train", "--data", "braid-100k", "--mode", "full", "--model", "gcn", "--hidden", "64"),
    *("--epochs", "40", "--threads", "1", "--json", "--out"),
)
RUN_MODULE = """
import runpy, sys
checkout, module, *sys.argv[1:] = sys.argv[1:]
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
import graphbraid
if not graphbraid.__file__.startswith(f"{checkout}/"):
    raise SystemExit(f"graphbraid is {graphbraid.__file__}, not that of {checkout}")
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    from benchmarks.peers.common import peak_gb
    print(peak_gb())
"""
"""Runs a module with its own checkout's package, for which the finder of an editable install must go.

The last line that it prints is the most memory that the process held.
"""


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


def measure_module(checkout: Path, module: str, *arguments: str) -> tuple[float, float]:
    """A process that runs a checkout's own benchmark: its median epoch or mean batch, and its peak in GB."""
    if not (checkout / "benchmarks" / module.replace(".", "/")).with_suffix(".py").exists():
        module = module.replace(".", "_").removeprefix("training_")  # before there was a folder per question
    command = _command(checkout, f"benchmarks.{module}", *arguments)
    said = output_of(f"{module} of {checkout}", command, _environment(checkout), checkout)
    found, peak = (json.loads(line) for line in said.strip().splitlines()[-2:])
    return float(found["epoch_s"] if "epoch_s" in found else found["ms_per_batch"] / 1e3), peak


def measure_two_ranks(checkout: Path) -> tuple[float, float]:
    """Two ranks that run a checkout's own command: the median epoch, and the peak of the first one in GB."""
    shared = _environment(checkout) | {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
    shared["MASTER_PORT"] = str(unused_port())
    with tempfile.TemporaryDirectory() as scratch:
        command = _command(checkout, "graphbraid", *RANKS_RUN, f"{scratch}/run")
        ranks = [
            subprocess.Popen(
                command,
                env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=checkout,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        outputs = [rank.communicate() for rank in ranks]
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        if rank.returncode:
            raise SystemExit(f"two ranks of {checkout} ended with {rank.returncode}:\n{errors[-2000:]}")
    said, _, peak = outputs[0][0].strip().rpartition("\n")
    epochs = json.loads(said)["result"]["history"]
    return float(statistics.median(epoch["epoch_seconds"] for epoch in epochs[1:])), float(peak)


def _command(checkout: Path, module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", RUN_MODULE, str(checkout), module, *arguments]


def _environment(checkout: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{checkout / 'src'}:{checkout}", "OMP_WAIT_POLICY": "passive"}


def measure_in_turns(
    runs: Mapping[str, Callable[[Path], tuple[float, float]]], options: argparse.Namespace
) -> dict[str, Any]:
    """Runs of the checkouts in turns: all seconds, and the medians of seconds and of peaks by kind."""
    checkouts = {"now": ROOT} | ({"before": options.before.resolve()} if options.before else {})
    found: dict[str, dict[str, list[tuple[float, float]]]]
    found = {kind: {name: [] for name in checkouts} for kind in runs}
    for _ in range(options.repeats):
        for kind, run in runs.items():
            for name, checkout in checkouts.items():
                found[kind][name].append(run(checkout))
    seconds, peaks = (
        {kind: {name: [one[at] for one in took] for name, took in of.items()} for kind, of in found.items()}
        for at in (0, 1)
    )
    return {"runs": seconds, "peak_gb": _medians(peaks), **_medians(seconds)}


def _medians(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    return {
        kind: {name: statistics.median(took) for name, took in by_checkout.items()}
        for kind, by_checkout in found.items()
    }


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One graph."""
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "weights.npz"
        write_weights(folder, weights, hidden=256)
        calls = {
            "full": ("fullgraph.ours", str(folder), "--epochs", "20"),
            "sampled": ("training.epoch_ours", str(folder), str(weights), "--epochs", "4"),
            "batch": ("sampling.ours", str(folder)),
        }
        found = measure_in_turns({kind: _bound(call) for kind, call in calls.items()}, options)
    return {"graph": folder.name, "scan_s": scan_seconds(folder), **found}


def measure_typed(options: argparse.Namespace) -> dict[str, Any]:
    """Batches of a graph with types."""
    folder = typed_graphs.make(options.graphs, "mag-like", options.graphs, MAG_SHARE)
    run = _bound(("sampling.typed_ours", str(folder)))
    return {"graph": folder.name, **measure_in_turns({"typed": run}, options)}


def measure_ranks(options: argparse.Namespace) -> dict[str, Any]:
    """Epochs of two ranks."""
    return {"graph": "braid-100k", **measure_in_turns({"ranks": measure_two_ranks}, options)}


def _bound(call: tuple[str, ...]) -> Callable[[Path], tuple[float, float]]:
    return lambda checkout: measure_module(checkout, *call)


KINDS = {
    "full": "whole-graph epoch",
    "sampled": "sampled epoch",
    "batch": "batch",
    "typed": "typed batch",
    "ranks": "epoch of two ranks",
}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("graph", "what", "ms", "now / before", "peak GB", "now / before", "scan ms")
    for row in rows:
        scan = f"{1e3 * row['scan_s']:.2f}" if "scan_s" in row else ""
        for kind in (one for one in KINDS if one in row):
            cells = []
            for by_checkout, unit in ((row[kind], 1e3), (row["peak_gb"][kind], 1)):
                now, before = by_checkout["now"], by_checkout.get("before")
                cells += [f"{unit * now:.2f}", f"{now / before:.3f}" if before else ""]
            table.add_row(row["graph"], KINDS[kind], *cells, scan)
    Console(width=110).print(table)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", required=True)
    parser.add_argument("--before", type=Path, help="another checkout to take turns with")
    parser.add_argument(
        "--typed-and-ranks", action="store_true", help="measure typed batches and two ranks, too"
    )
    parser.add_argument("--repeats", type=int, default=3)
    add_out_argument(parser)
    options = parser.parse_args()
    torch.set_num_threads(2)
    before: dict[str, str] = {}
    if options.before:
        head = ["git", "-C", str(options.before), "rev-parse", "--short", "HEAD"]
        before["before"] = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    jobs: list[Callable[[argparse.Namespace], dict[str, Any]]] = [
        functools.partial(measure, options.graphs / name) for name in options.names
    ]
    if options.typed_and_ranks:
        jobs += [measure_typed, measure_ranks]
    rows: list[dict[str, Any]] = []
    for job in jobs:
        rows.append(job(options))
        named = {row["graph"]: {**row, **before} for row in rows}
        written = write_rows("checks", named, repeats=options.repeats, out=options.out)
    show(rows)
    print("wrote", written)


if __name__ == "__main__":
    main()
