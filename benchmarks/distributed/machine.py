"""Ways between the ranks of a machine: the project's shared memory, Gloo's sockets and MPI's shared memory.

    python -m benchmarks.distributed.machine --mpi mpich=.venv openmpi=/opt/openmpi

Two ranks with a core each make the same calls of a communicator by every way in turn: exchanges of few and of
many rows, sums of few and of many numbers, whole-graph epochs, and epochs of mini-batches. In the whole
graph, half of a rank's edges come from the other rank's rows. Every measurement starts its ranks anew, and
the slower rank counts. Losses must agree. An MPI is a folder with ``bin/mpiexec`` and ``lib/libmpi.so*``, as
its package on PyPI installs it; mpi4py calls it by its own binary interface.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import last_json_line, ours
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.quiet import before_others
from benchmarks.common.rows import write_rows
from benchmarks.distributed.mini_batches import graph_of, trained
from benchmarks.distributed.planted import scattered
from benchmarks.distributed.shaped import start
from benchmarks.distributed.training import Training
from graphbraid import distributed
from graphbraid.distributed import Communicator
from graphbraid.machine.launcher import place

MODULE = "distributed.machine"
WIDTH = 64
"""Numbers in a row of an exchange."""
ROWS = {"rows, 64 KB": 256, "rows, 1 MB": 4096, "rows, 32 MB": 1 << 17}
"""Rows that a rank sends to the other one."""
NUMBERS = {"sum, 4 B": 1, "sum, 400 KB": 100_000, "sum, 4 MB": 1_000_000}
"""float32 numbers of a sum."""
SAME = 1e-4
"""Largest difference of two losses, by the smaller."""
WARM, LEAST_CALLS, LEAST_SECONDS = 5, 10, 0.5


def per_call(comm: Communicator, call: Callable[[], object]) -> float:
    """Median seconds of a call that all ranks make together, on the slower rank."""
    for _ in range(WARM):
        call()
    began = time.perf_counter()
    call()
    once = max(comm.gather(time.perf_counter() - began))  # all must make as many calls
    seconds = []
    for _ in range(max(LEAST_CALLS, min(5000, int(LEAST_SECONDS / once)))):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return float(max(comm.gather(statistics.median(seconds))))


def as_rank(whole_nodes: int, sampled_nodes: int, epochs: int) -> dict[str, Any]:
    """Measure every operation on the ranks that were started."""
    found: dict[str, Any] = {"seconds": {}}
    seconds = found["seconds"]
    with distributed.init() as comm:
        for name, rows in ROWS.items():
            counts = [0 if rank == comm.rank else rows for rank in range(comm.size)]
            sent, received = torch.zeros(2, sum(counts), WIDTH)
            seconds[name] = per_call(
                comm,
                lambda: comm.all_to_all(sent, counts, counts, out=received).wait(),  # noqa: B023
            )
        for name, numel in NUMBERS.items():
            values = torch.zeros(numel)
            seconds[name] = per_call(comm, lambda: comm.all_reduce(values).wait())  # noqa: B023
        training = Training(scattered(whole_nodes), comm)
        times = []
        for _ in range(3 + epochs):
            began = time.perf_counter()
            found["whole_loss"] = training.epoch()
            times.append(time.perf_counter() - began)
        seconds["whole graph, epoch"] = max(comm.gather(statistics.median(times[3:])))
        sampled = trained(graph_of(sampled_nodes), epochs)
        seconds["mini-batches, epoch"] = max(comm.gather(statistics.median(sampled["seconds"])))
        found |= {"sampled_loss": sampled["loss"], "name": comm.name}
        return found


def run(way: str, folder: Path | None, arguments: list[str]) -> dict[str, Any]:
    """Start two ranks that reach each other in one way; what the first one found."""
    if folder is None:
        return start(2, None, arguments, MODULE, GRAPHBRAID_RANK_MEMORY=str(int(way == "memory")))
    library = next(
        found for name in ("libmpi.so.12", "libmpi.so.40") if (found := folder / "lib" / name).exists()
    )
    environment = os.environ | {
        "MPI4PY_LIBMPI": str(library),
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",  # Open MPI 4
        "PRTE_MCA_hwloc_default_binding_policy": "none",  # and 5
        "I_MPI_PIN": "0",
    }
    command = [str(folder / "bin" / "mpiexec"), "-n", "2", *ours(MODULE, "--one", "by rank", *arguments)]
    return last_json_line(way, command, environment)


def check_same(rows: dict[str, dict[str, Any]]) -> None:
    """End the benchmark where ranks do not learn the same in every way."""
    for name in ("whole_loss", "sampled_loss"):
        losses = {way: row[name] for way, row in rows.items()}
        if max(losses.values()) / min(losses.values()) - 1 > SAME:
            raise SystemExit(f"the ways differ: {losses}")


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table: microseconds, and in brackets the times of the first way's."""
    names = list(rows)
    table = Table("", *(f"{name}, us" for name in names))
    for operation in rows[names[0]]["seconds"]:
        medians = [statistics.median(rows[name]["seconds"][operation]) for name in names]
        table.add_row(operation, *(f"{1e6 * median:,.0f} ({median / medians[0]:.2f})" for median in medians))
    Console(width=200).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Measure all ways in turn, as often as asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--mpi", nargs="*", default=[], metavar="NAME=FOLDER", help="MPI libraries")
    parser.add_argument("--whole-nodes", type=int, default=80_000)
    parser.add_argument("--sampled-nodes", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    ways: dict[str, Path | None] = {"memory": None, "gloo": None}
    ways |= {name: Path(folder).absolute() for name, folder in (each.split("=", 1) for each in options.mpi)}
    rows: dict[str, dict[str, Any]] = {way: {"seconds": {}} for way in ways}
    sizes = [str(options.whole_nodes), str(options.sampled_nodes), str(options.epochs)]
    for repeat in range(options.repeats):
        for way, folder in ways.items():
            print(f"  repeat {repeat + 1}/{options.repeats}: {way}", file=sys.stderr, flush=True)
            found = run(way, folder, sizes)
            for operation, seconds in found.pop("seconds").items():
                rows[way]["seconds"].setdefault(operation, []).append(seconds)
            rows[way] |= found
        check_same(rows)
        show(rows)
        write_rows("distributed_machine", rows, repeats=repeat + 1, out=options.out)


def _one() -> None:
    core, *sizes = sys.argv[2:]
    here = place()
    assert here is not None, "a launcher has started it"
    number = sorted(os.sched_getaffinity(0))[here.local_rank] if core == "by rank" else int(core)
    os.sched_setaffinity(0, {number})
    torch.set_num_threads(1)
    before_others()
    found = as_rank(*map(int, sizes))
    if (distributed.current() or argparse.Namespace(rank=0)).rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    _one() if sys.argv[1:2] == ["--one"] else main()
