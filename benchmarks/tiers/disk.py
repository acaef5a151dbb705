"""Features larger than memory: tiers beside a plain ``numpy.memmap`` gather, cold, with the same memory.

    python -m benchmarks.tiers.disk [--folder FOLDER] [--gigabytes 4] [--memory 1GiB] [--no-cgroup]

Makes a store of a generated graph (block model, degrees by a power law) with so many bytes of features,
unless FOLDER has it, and the ids of an epoch's first batches. Each contender then gathers these batches' rows
in a process of its own, the file's pages dropped before, in a memory cgroup below the present one where the
machine allows one: rows it keeps and pages the system keeps for it count. Else (or by --no-cgroup) the page
cache is dropped whenever ``memory`` bytes were read. Checks that all give the same rows, then prints and
keeps

- seconds of memmap with MADV_RANDOM and of tiers, over the batches that it gets through in its time
  (``--most-seconds``), tiers doing all;
- seconds of plain memmap and of tiers over those that plain memmap gets through. What the system reads ahead
  at a page fault decides how many these are, and is kept beside them: with 8 MiB a batch takes minutes;
- whether tiers are 3 times as fast as the better of both;
- what tiers read of the disk a second, beside what the same reader gets for random requests of 4096 bytes
  and of the mean request's size, measured in the same run.

Sampling is not timed: ids are recorded before. The row is written after each round of the contenders; what
was run already is taken from FOLDER, so that a run that was ended goes on where it was. Full size takes 5 GB
of disk, asked for at the start, and 3 GB of memory; ``--remove`` removes the store at the end.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.contenders import ROOT, Contender, last_json_line, ours
from benchmarks.common.journal import Journal
from benchmarks.common.options import absolute_path, add_out_argument, parser_of
from benchmarks.common.room import require_room
from benchmarks.common.rows import commit, write_rows
from benchmarks.tiers.disk_figures import figures, read_ahead_bytes, report
from graphbraid.arguments import as_size
from graphbraid.datasets import is_store, open_store, save_store
from graphbraid.datasets.synthetic import BlockModel, generate_in_parts
from graphbraid.loader import BatchLoader, LoaderSettings

BLOCK, NODES_A_BLOCK = 4096, 2000
_NODE_BYTES, _MOST_BATCH_ROWS = 40, 1 << 17
"""Bytes of a node in a store beside features and edges; most rows of a batch whose ids are kept."""
MODULE = "tiers.disk_contender"


def make_store(folder: Path, *, num_nodes: int, width: int, degree: int) -> Path:
    """The store of a generated graph, made unless it is there."""
    path = folder / f"blocks-{num_nodes}-{width}-{degree}"
    if not is_store(path):
        spec = BlockModel(
            num_nodes=num_nodes,
            num_edges=num_nodes * degree,
            num_classes=16,
            blocks_per_class=max(num_nodes // (16 * NODES_A_BLOCK), 1),
            num_features=width,
        )
        graph, parts = generate_in_parts(spec)
        save_store(graph, path, feature_parts=parts, if_exists="replace")
    return path


def record_ids(store: Path, options: argparse.Namespace) -> tuple[Path, list[int]]:
    """A file with the node ids of an epoch's first batches, made unless it is there, and their numbers."""
    drawn = "-".join(map(str, [*options.fanouts, options.batch_size, options.steps]))
    path = store.with_name(f"{store.name}.{drawn}.ids.pt")
    if path.exists():
        return path, [ids.numel() for ids in torch.load(path)]
    graph = open_store(store, verify=False)
    settings = LoaderSettings(
        num_neighbors=options.fanouts,
        batch_size=options.batch_size,
        shuffle=True,
        gather=False,
        num_workers=2,
    )
    with BatchLoader(graph, settings) as loader:
        found = [batch.n_id.clone() for batch in loader.batches(0, 0, min(options.steps, len(loader)))]
    unfinished = path.with_suffix(".part")
    torch.save(found, unfinished)
    unfinished.replace(path)
    return path, [ids.numel() for ids in found]


def contenders_of(store: Path, ids: Path, options: argparse.Namespace) -> list[Contender]:
    """All, for the same batches and the same memory."""
    common = ["--store", str(store), "--ids", str(ids), "--memory", str(as_size(options.memory, "--memory"))]
    common += ["--no-cgroup"] if options.no_cgroup else []
    ahead = ["--lookahead", str(options.lookahead)]
    most = ["--most-seconds", str(options.most_seconds)]
    return [
        Contender("memmap", ours(MODULE, "memmap", *common, *most)),
        Contender("memmap-random", ours(MODULE, "memmap-random", *common, *most)),
        Contender("tiers", ours(MODULE, "tiers", *common, *ahead)),
    ]


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All figures of one size, after each round of the contenders."""
    row_bytes = 4 * options.width
    num_nodes = int(options.gigabytes * (1 << 30)) // row_bytes
    room = num_nodes * (row_bytes + 4 * options.degree + _NODE_BYTES) + 8 * options.steps * _MOST_BATCH_ROWS
    require_room(options.folder, room, f"a store of {options.gigabytes:g} GiB of features")
    store = make_store(options.folder, num_nodes=num_nodes, width=options.width, degree=options.degree)
    ids, rows = record_ids(store, options)
    contenders, journal = contenders_of(store, ids, options), Journal(store.with_suffix(".jsonl"))
    sizes = {
        "num_nodes": num_nodes,
        "row_bytes": row_bytes,
        "memory_bytes": as_size(options.memory, "--memory"),
        "read_ahead_bytes": read_ahead_bytes(store / "x.npy"),
    }
    for repeat in range(options.repeats):
        for contender in contenders:
            contender.runs.append(once(journal, f"{contender.name} {repeat}", contender))
        runs = {contender.name: contender.runs for contender in contenders}
        yield (
            sizes
            | figures(runs, rows, limits_of(store, runs["tiers"][-1], journal))
            | {"repeats": repeat + 1}
        )


def limits_of(store: Path, run: dict[str, Any], journal: Journal) -> list[dict[str, Any]]:
    """What the disk gives for random requests of a block, and of the mean size that tiers asked for."""
    mean = max(round(run["disk_bytes"] / max(run["disk_requests"], 1) / BLOCK), 1) * BLOCK
    return [once(journal, f"limit {size}", limit_of(store, size)) for size in sorted({BLOCK, mean})]


def once(journal: Journal, name: str, contender: Contender) -> dict[str, Any]:
    """What a contender gave under this name at this commit before, or gives now."""
    at_commit = f"{name}, {commit()}"
    found = journal.find(at_commit, contender.command)
    if found is None:
        print(f"  {name}", file=sys.stderr, flush=True)
        found = last_json_line(contender.name, contender.command)
        journal.keep(at_commit, contender.command, found)
    return found


def limit_of(store: Path, request_bytes: int) -> Contender:
    """What the same reader gets of the disk for random requests."""
    return Contender(
        "limit", ours(MODULE, "limit", "--store", str(store), "--request-bytes", str(request_bytes))
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--folder", type=absolute_path, default=ROOT / "build" / "tiers", help="where the store is made"
    )
    parser.add_argument("--gigabytes", type=float, default=4.0, help="GiB of features")
    parser.add_argument("--memory", default="1GiB", help="for all that is kept of the features")
    parser.add_argument("--width", type=int, default=128, help="float32 features a node")
    parser.add_argument("--degree", type=int, default=8, help="drawn edges a node")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=100, help="batches, of an epoch over all nodes")
    parser.add_argument("--lookahead", type=int, default=16)
    parser.add_argument("--most-seconds", type=float, default=90.0, help="of a memmap's gathers")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--no-cgroup", action="store_true", help="drop the page cache instead of a limit")
    parser.add_argument("--remove", action="store_true", help="the folder at the end")
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    name = f"{options.gigabytes:g} GiB with {options.memory}"
    for found in measure(options):
        write_rows("tiers_disk", {name: found}, repeats=options.repeats, out=options.out)
        print(report(found), file=sys.stderr)
    if options.remove:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
