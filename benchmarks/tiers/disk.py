"""Features larger than memory: tiers beside a plain ``numpy.memmap`` gather, cold, with the same memory.

    python -m benchmarks.tiers.disk [--folder FOLDER] [--gigabytes 4] [--memory 1GiB] [--no-cgroup]

Makes a store of a skewed graph (R-MAT, ids permuted) with so many bytes of features, unless FOLDER has it,
and the ids of an epoch's first batches. Each contender then gathers these batches' rows in a process of its
own, the file's pages dropped before, in a memory cgroup below the present one where the machine allows one:
rows it keeps and pages the system keeps for it count. Else (or by --no-cgroup) the page cache is dropped
whenever ``memory`` bytes were read. Checks that all give the same rows, then prints and keeps

- seconds of all gathers, tiers beside memmap, and memmap with MADV_RANDOM;
- what tiers read of the disk a second, beside what the same reader gets for random requests of 4096 bytes
  and of the mean request's size, measured in the same run.

Sampling is not timed: ids are recorded before. Full size (defaults) takes some ten minutes and 5 GB of disk.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.contenders import ROOT, Contender, ours, run_in_turn
from benchmarks.common.options import absolute_path, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.rmat import draw_edges
from graphbraid import Graph
from graphbraid.arguments import as_size
from graphbraid.datasets import is_store, open_store, save_store
from graphbraid.files.writing import format_bytes
from graphbraid.loader import BatchLoader, LoaderSettings

BLOCK = 4096
MODULE = "tiers.disk_contender"


def make_store(folder: Path, *, num_nodes: int, width: int, degree: int) -> Path:
    """The store of a generated graph, made unless it is there."""
    path = folder / f"rmat-{num_nodes}-{width}-{degree}"
    if not is_store(path):
        sources, destinations = draw_edges(num_nodes, num_nodes * degree)
        x = torch.randn(num_nodes, width, generator=torch.Generator().manual_seed(1))
        save_store(
            Graph.from_edge_index((sources, destinations), num_nodes, x=x, keep_edge_id=False),
            path,
            if_exists="replace",
        )
    return path


def record_ids(store: Path, options: argparse.Namespace) -> tuple[Path, int]:
    """A file with the node ids of an epoch's first batches, and how many these are."""
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
    path = store.parent / f"{store.name}.ids.pt"
    torch.save(found, path)
    return path, sum(ids.numel() for ids in found)


def contenders_of(store: Path, ids: Path, options: argparse.Namespace) -> list[Contender]:
    """All, for the same batches and the same memory."""
    common = ["--store", str(store), "--ids", str(ids), "--memory", str(as_size(options.memory, "--memory"))]
    common += ["--no-cgroup"] if options.no_cgroup else []
    ahead = ["--lookahead", str(options.lookahead)]
    return [
        Contender("memmap", ours(MODULE, "memmap", *common)),
        Contender("memmap-random", ours(MODULE, "memmap-random", *common)),
        Contender("tiers", ours(MODULE, "tiers", *common, *ahead)),
    ]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one size."""
    row_bytes = 4 * options.width
    num_nodes = int(options.gigabytes * (1 << 30)) // row_bytes
    store = make_store(options.folder, num_nodes=num_nodes, width=options.width, degree=options.degree)
    ids, num_rows = record_ids(store, options)
    memmap, _, tiers = contenders = contenders_of(store, ids, options)
    run_in_turn(contenders, options.repeats)
    sums = {run["checksum"] for contender in contenders for run in contender.runs}
    if len(sums) != 1:
        raise SystemExit(f"the contenders do not give the same rows: {sorted(sums)}")
    seconds = {c.name: [run["seconds"] for run in c.runs] for c in contenders}
    last = tiers.runs[-1]
    mean = max(round(last["disk_bytes"] / max(last["disk_requests"], 1) / BLOCK), 1) * BLOCK
    limits = [disk_limit(store, size) for size in sorted({BLOCK, mean})]
    return {
        "num_nodes": num_nodes,
        "row_bytes": row_bytes,
        "memory_bytes": as_size(options.memory, "--memory"),
        "rows": num_rows,
        "steps": options.steps,
        "seconds": seconds,
        "tiers": last,
        "memmap": memmap.runs[-1],
        "limits": limits,
    }


def disk_limit(store: Path, request_bytes: int) -> dict[str, Any]:
    """What the same reader gets of the disk for random requests."""
    limit = Contender(
        "limit", ours(MODULE, "limit", "--store", str(store), "--request-bytes", str(request_bytes))
    )
    limit.run()
    return limit.runs[0]


def report(found: dict[str, Any]) -> str:
    """The figures in a few lines."""
    memmap, random, tiers = (statistics.median(seconds) for seconds in found["seconds"].values())
    last = found["tiers"]
    rate = last["disk_bytes"] / tiers
    lines = [
        f"{found['rows']:,} rows of {found['row_bytes']} bytes in {found['steps']} batches, of "
        f"{format_bytes(found['num_nodes'] * found['row_bytes'])} on disk with "
        f"{format_bytes(found['memory_bytes'])} of memory ({last['limit']})",
        f"memmap  {memmap:8.2f} s, {format_bytes(found['memmap']['read_bytes'])} read",
        f"        {random:8.2f} s where the system is told not to read ahead (MADV_RANDOM)",
        f"tiers   {tiers:8.2f} s, {format_bytes(last['disk_bytes'])} read ({format_bytes(rate)}/s), "
        f"{last['host_share']:.1%} of the rows from memory; {memmap / tiers:.1f} times as fast",
        f"        {last['how']}",
    ]
    lines += [
        f"disk    {format_bytes(limit['bytes_per_second'])}/s for random requests of "
        f"{format_bytes(limit['request_bytes'])} ({limit['requests_per_second']:,.0f} a second)"
        for limit in found["limits"]
    ]
    return "\n".join(lines)


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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-cgroup", action="store_true", help="drop the page cache instead of a limit")
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    found = measure(options)
    print(report(found), file=sys.stderr)
    name = f"{options.gigabytes:g} GiB with {options.memory}"
    write_rows("tiers_disk", {name: found}, repeats=options.repeats, out=options.out)


if __name__ == "__main__":
    main()
