"""A graph larger than the memory it may take: made, reordered, trained for an epoch and evaluated exactly.

    python -m benchmarks.tiers.scale [--folder FOLDER] [--edges 330000000] [--host 4GiB] [--limit 8GiB]

The graph comes from the library's block model, so that there is something to learn: 128 float features a
node, 1 % of the nodes to train on. Each stage is a process of its own, and its row (seconds, peak memory) is
written as soon as it ends; a stage that was done with the same options is not repeated.

- *make*: the store, features written in parts as they are drawn;
- *reorder*: a second store with the nodes most often read first (``graphbraid reorder --by degree``);
- *train drawn*, *train reordered*: an epoch of GraphSAGE on either, rows in tiers by ``--host``;
- *train in memory*: the same epoch with all in memory, whose losses must be those of *train reordered*;
- *evaluate*: loss and accuracy of the test nodes (``--test-share``) by exact inference, layer by layer.

By ``--limit`` stages but *make* and *train in memory* run in a memory cgroup, files' pages included, where
the machine allows one; a row says whether it did. Full size takes 36 GB of disk, asked for at the start, and
15 GB of memory for the stage in memory. ``--remove`` removes the stores at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import ROOT, ours
from benchmarks.common.journal import Journal
from benchmarks.common.options import absolute_path, add_out_argument, parser_of
from benchmarks.common.peak import PeakMemory
from benchmarks.common.room import require_room
from benchmarks.common.rows import machine_and_commit, write_rows
from graphbraid.arguments import as_size
from graphbraid.files.writing import format_bytes

STAGES = ("make", "reorder", "train drawn", "train reordered", "train in memory", "evaluate")
UNLIMITED = ("make", "train in memory")
_NODE_BYTES = 40
"""Bytes of a node in a store beside its features and edges: list, label, splits, original id, block sums."""
NEEDS: dict[str, tuple[str, ...]] = {
    "reorder": ("make",),
    "train drawn": ("make",),
    "train reordered": ("reorder",),
    "train in memory": ("reorder",),
    "evaluate": ("train reordered",),
}


def command_of(stage: str, options: argparse.Namespace) -> list[str]:
    """What runs a stage."""
    folder: Path = options.folder
    drawn, reordered = str(folder / "drawn"), str(folder / "reordered")
    trained = ["--fanouts", *map(str, options.fanouts), "--batch-size", str(options.batch_size)]
    trained += ["--hidden", str(options.hidden), "--threads", str(options.threads)]
    tiers = ["--host", options.host]
    arguments: dict[str, list[str]] = {
        "make": ["make", drawn, "--nodes", str(options.nodes), "--edges", str(options.edges)],
        "reorder": ["reorder", drawn, "--out", reordered],
        "train drawn": ["train", drawn, *trained, *tiers, "--run", str(folder / "run-drawn")],
        "train reordered": ["train", reordered, *trained, *tiers, "--run", str(folder / "run")],
        "train in memory": ["train", reordered, *trained, "--run", str(folder / "run-in-memory")],
        "evaluate": [
            *("evaluate", reordered, *trained, *tiers),
            *("--run", str(folder / "run"), "--budget", str(as_size(options.budget, "--budget"))),
            *("--test-share", str(options.test_share)),
        ],
    }
    given = arguments[stage]
    if stage == "make":
        given += ["--width", str(options.width), "--train-share", str(options.train_share)]
    if options.limit is not None and stage not in UNLIMITED:
        given += ["--limit", str(as_size(options.limit, "--limit"))]
    return ours("tiers.scale_stage", *given)


def needed_bytes(options: argparse.Namespace) -> int:
    """Bytes on disk at most: two stores, and beside them rows by bucket, or a layer's, of all nodes."""
    rows = 4 * options.nodes * options.width
    store = rows + 4 * options.edges + _NODE_BYTES * options.nodes
    return 2 * store + max(rows, 4 * options.nodes * options.hidden)


def run_stage(stage: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a stage and give its row: what it printed, its seconds and its peak memory.

    Raises:
        SystemExit: it failed.
    """
    command = command_of(stage, options)
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with PeakMemory(process) as peak:
        said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"stage {stage} failed ({' '.join(command)})")
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    measured = {"own_bytes": peak.own_bytes, "resident_bytes": peak.resident_bytes}
    return {"stage": stage, "seconds": time.perf_counter() - started, **measured, **found}


def followers(stage: str) -> set[str]:
    """All stages that read what a stage makes."""
    direct = {name for name, needs in NEEDS.items() if stage in needs}
    return direct.union(*(followers(name) for name in direct))


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what is not done and write each row as it comes."""
    require_room(options.folder, needed_bytes(options), f"a graph of {options.edges:,} edges")
    journal, rows = Journal(options.folder / "stages.jsonl"), []
    for stage in options.stages:
        command = command_of(stage, options)
        found = journal.find(stage, command)
        if found is None:
            print(f"  {stage} ...", file=sys.stderr, flush=True)
            found = machine_and_commit() | run_stage(stage, options)
            journal.keep(stage, command, found, voids=followers(stage))
        name = f"{options.edges / 1e6:g} M edges, {stage}"
        sizes = {"nodes": options.nodes, "edges": options.edges, "width": options.width}
        how = {"host": options.host, "memory_limit": options.limit, "budget": options.budget}
        write_rows("tiers_scale", {name: {**sizes, **how, **found}}, repeats=1, out=options.out)
        rows.append(found)
        check_losses(rows)
    return rows


def check_losses(rows: Sequence[dict[str, Any]]) -> None:
    """End where tiers changed what was learned."""
    losses = {row["stage"]: row["losses"] for row in rows if "losses" in row}
    if {"train reordered", "train in memory"} <= losses.keys() and (
        losses["train reordered"] != losses["train in memory"]
    ):
        raise SystemExit("losses with rows in tiers differ from those with all rows in memory")


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("stage", "seconds", "own memory", "with mapped files", "what")
    for row in rows:
        sizes = [format_bytes(row[name]) for name in ("own_bytes", "resident_bytes")]
        table.add_row(row["stage"], f"{row['seconds']:.0f}", *sizes, row["what"])
    Console(width=140).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = parser_of(__doc__)
    folder = ROOT / "build" / "scale"
    parser.add_argument("--folder", type=absolute_path, default=folder, help="of the stores and the runs")
    parser.add_argument("--nodes", type=int, default=20_000_000)
    parser.add_argument("--edges", type=int, default=330_000_000, help="drawn; 5 %% fewer are distinct")
    parser.add_argument("--width", type=int, default=128, help="float32 features a node")
    parser.add_argument("--train-share", type=float, default=0.01, help="of the nodes")
    parser.add_argument("--test-share", type=float, default=0.002, help="of the nodes that are evaluated")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--host", default="4GiB", help="memory for rows")
    parser.add_argument("--budget", default="2GiB", help="of exact inference, beside graph and rows")
    parser.add_argument("--limit", help="memory of a stage, files' pages included, such as 8GiB")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, metavar="STAGE")
    parser.add_argument("--remove", action="store_true", help="the stores and runs at the end")
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    show(run(options))
    if options.remove:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
