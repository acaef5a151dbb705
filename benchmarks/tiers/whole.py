"""Full-graph training on features larger than memory, beside the same run with all of them in memory.

    python -m benchmarks.tiers.whole [--folder FOLDER] [--gigabytes 2] [--limit 1GiB] [--host 512MiB]

Makes a store of a generated graph (block model, degrees by a power law), unless FOLDER has it. Each model
then trains twice, in processes of their own: with its features read from the store in blocks, in a memory
cgroup of ``--limit`` that counts the pages of files too, and with all in memory, without a limit. Losses and
weights of both must be equal to the bit. Kept are

- seconds of the epochs; the first also makes temporary files, where the step needs some;
- bytes that the process read from the disk in each epoch, beside what the disk gives a plain reader of the
  same file: 16 MiB at a time from start to end, past the page cache, measured in the same run;
- peak memory of the process, libraries included, and of the cgroup.

Where the machine allows no cgroup, the row says so: the blocks are read all the same, and as the file was
dropped from the page cache before and is read past it, from the disk. Full size takes 5 GB of disk, asked for
at the start, and 4 GB of memory; ``--remove`` removes the folder at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from typing import Any

from benchmarks.common.contenders import ROOT, last_json_line, ours
from benchmarks.common.options import absolute_path, add_out_argument, parser_of
from benchmarks.common.room import require_room
from benchmarks.common.rows import write_rows
from benchmarks.tiers.disk import make_store
from graphbraid.arguments import as_size
from graphbraid.files.writing import format_bytes

WARM_NODES = 2000
_NODE_BYTES = 40
"""Bytes of a node in a store beside features and edges."""


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """A model's row: the run under the limit, the run in memory, and the disk's rate.

    Raises:
        SystemExit: the two runs do not learn the same.
    """
    num_nodes = int(options.gigabytes * (1 << 30)) // (4 * options.width)
    store = make_store(options.folder, num_nodes=num_nodes, width=options.width, degree=options.degree)
    warm = make_store(options.folder, num_nodes=WARM_NODES, width=options.width, degree=options.degree)
    trained = ["train", str(store), "--warm", str(warm), "--model", model, "--hidden", str(options.hidden)]
    trained += ["--epochs", str(options.epochs)]
    limit = as_size(options.limit, "--limit")
    bound = ["--limit", str(limit), "--host", str(as_size(options.host, "--host"))]
    streamed = once(f"{model}, streamed", [*trained, *bound], options)
    in_memory = once(f"{model}, in memory", trained, options)
    if any(streamed[what] != in_memory[what] for what in ("losses", "weights")):
        raise SystemExit(f"{model} learns otherwise from features on disk than from features in memory")
    return {
        "model": model,
        "num_nodes": num_nodes,
        "feature_bytes": 4 * num_nodes * options.width,
        "limit_bytes": limit,
        "host": options.host,
        "hidden": options.hidden,
        "streamed": streamed,
        "in_memory": in_memory,
        "disk": once("the disk", ["disk", str(store)], options),
    }


def once(name: str, arguments: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """What one process gives; its temporary files are beside the store, for which room was asked."""
    print(f"  {name}", file=sys.stderr, flush=True)
    command = ours("tiers.whole_run", *arguments)
    return last_json_line(name, command, os.environ | {"TMPDIR": str(options.folder)})


def epoch_of(run: dict[str, Any]) -> tuple[float, float]:
    """Seconds of an epoch after the first, and bytes it reads from the disk: medians."""
    return statistics.median(run["epoch_seconds"][1:]), statistics.median(run["read_bytes"][1:])


def report(row: dict[str, Any]) -> str:
    """A row in a few lines."""
    (slow, read), (fast, _) = epoch_of(row["streamed"]), epoch_of(row["in_memory"])
    disk = row["disk"]["bytes_per_second"]
    return "\n".join(
        [
            f"{row['model']}, {format_bytes(row['feature_bytes'])} of features with "
            f"{format_bytes(row['limit_bytes'])} of memory ({row['streamed']['limit']}): an epoch in "
            f"{slow:.2f} s, in memory {fast:.2f} s; losses and weights equal to the bit",
            f"  reads {format_bytes(read)} an epoch, {format_bytes(read / slow)}/s; the disk gives "
            f"{format_bytes(disk)}/s",
            f"  peak memory {format_bytes(row['streamed']['peak_bytes'])}, in memory "
            f"{format_bytes(row['in_memory']['peak_bytes'])}",
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = parser_of(__doc__)
    folder = ROOT / "build" / "whole"
    parser.add_argument("--folder", type=absolute_path, default=folder, help="of store and temporary files")
    parser.add_argument("--models", nargs="+", default=["gcn", "sage"])
    parser.add_argument("--gigabytes", type=float, default=2.0, help="GiB of features")
    parser.add_argument("--limit", default="1GiB", help="memory of the run, files' pages included")
    parser.add_argument("--host", default="512MiB", help="of it, for features")
    parser.add_argument("--width", type=int, default=1024, help="float32 features a node")
    parser.add_argument("--degree", type=int, default=8, help="drawn edges a node")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4, help="the first does not count")
    parser.add_argument("--remove", action="store_true", help="the folder at the end")
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    if options.epochs < 2:
        parser.error("--epochs must be at least 2: the first does not count")
    num_nodes = int(options.gigabytes * (1 << 30)) // (4 * options.width)
    features, beside = 4 * num_nodes * options.width, (_NODE_BYTES + 4 * options.degree) * num_nodes
    what = f"a store of {options.gigabytes:g} GiB of features, with a temporary file as large,"
    require_room(options.folder, 2 * features + beside, what)
    for model in options.models:
        row = measure(model, options)
        print(report(row), file=sys.stderr)
        name = f"{model}, {options.gigabytes:g} GiB with {options.limit}"
        write_rows("tiers_whole", {name: row}, repeats=options.epochs - 1, out=options.out)
    if options.remove:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
