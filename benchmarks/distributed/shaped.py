"""Full-graph training of ranks behind shaped links: epochs beside what they compute and what they send.

    python -m benchmarks.distributed.shaped --ranks 2 4 --rates 1e9 1e8

Each rank is a host of its own, a network namespace on this machine, whose link is shaped by ``tc`` to a rate
in bits per second; where that is not permitted, the benchmark says so and ends. The graph is planted: one
block of nodes for each rank, and as many rows that the others read that sending takes about as long as
computing. All nodes are trained, so that every row of the partition's halo travels in every exchange.

For each number of ranks and rate, an epoch's time is measured as it is; with the same calls made blocking;
with nothing sent (what it computes); and with the same bytes sent and nothing computed. Two epochs of each
come in turn, round by round, so that what drifts touches all alike. Beside it stands what ``graphbraid plan
--ranks`` predicts from one process's kernels, from latency and rate between the ranks and what moving bytes
costs their cores, all measured, and from the partition. Kernels are measured before and after the ranks run,
while every other core trains the same, as ranks share the memory; moving bytes in several windows, before and
after training. A prediction stands with the range that these give, by which the machine swings. Bytes are
counted, and compared with those of the partition's report.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import ROOT, ours, unused_port
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.distributed.busy import others_busy
from benchmarks.distributed.links import INTERFACE, Links, why_not
from benchmarks.distributed.modes import ModalTransport
from benchmarks.distributed.planted import HIDDEN, partition_of, planted
from benchmarks.distributed.probes import measured_link, median_seconds, message_seconds, moving_seconds
from benchmarks.distributed.training import Training
from graphbraid import distributed
from graphbraid.distributed import Division, report_of
from graphbraid.estimates.full_ranks import RankStep, largest_share, predict, step_of
from graphbraid.estimates.ranks import Cluster
from graphbraid.graph import Graph

MODES = ("overlapped", "blocking", "nothing sent", "nothing computed")
COUNTED = 2
"""Epochs of a mode that count in each round."""


def as_rank(graph: Graph, epochs: int) -> dict[str, Any]:
    """Train on the ranks that were started, in each mode; what the first one found."""
    with distributed.init() as comm:
        (latency, bandwidth), windows = measured_link(comm), moving_seconds(comm)
        message = message_seconds(comm)
        transport = ModalTransport(comm.transport)
        comm.transport = transport
        training = Training(graph, comm)
        seconds: dict[str, list[float]] = {}
        first = training.epoch()
        sent = comm.sent_bytes
        with transport.in_mode("recorded"):
            training.epoch()
        sent_bytes = comm.gather(comm.sent_bytes - sent)
        for _ in range(math.ceil(epochs / COUNTED)):
            for mode in MODES:
                taken = training_seconds(training, transport, mode)
                seconds.setdefault(mode, []).extend(taken)
        typical = {mode: max(comm.gather(statistics.median(taken))) for mode, taken in seconds.items()}
        windows += moving_seconds(comm)
    low, moving, high = statistics.quantiles(windows, n=4, method="inclusive")
    return {
        "latency_seconds": latency,
        "bandwidth_bytes": bandwidth,
        "message_processor_seconds": message,
        "byte_processor_seconds": moving,
        "byte_processor_quartiles": [low, high],
        "seconds": typical,
        "loss": first,
        "sent_bytes": sent_bytes,
    }


def training_seconds(training: Training, transport: ModalTransport, mode: str) -> list[float]:
    """Seconds of some epochs in a mode, after one whose memory and maps the next ones find ready.

    Ranks that send nothing learn different things, which they forget again.
    """
    run = transport.replay if mode == "nothing computed" else training.epoch
    weights = training.unchanged() if mode == "nothing sent" else contextlib.nullcontext()
    seconds = []
    with weights, transport.in_mode(mode):
        for _ in range(1 + COUNTED):
            started = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - started)
    return seconds[1:]


def alone(graph: Graph, epochs: int) -> tuple[RankStep, float, float]:
    """One process's step by phases, the time of its epoch outside of the step, and its first loss."""
    training = Training(graph, None)
    loss = training.epoch()
    seconds = median_seconds(training.epoch, epochs)
    step = step_of(training.engine.lowered, training.engine.floor(measure=True))
    return step, max(0.0, seconds - step.seconds), loss


def start(
    num_ranks: int,
    rate: float | None,
    arguments: list[str],
    module: str = "distributed.shaped",
    **variables: str,
) -> dict[str, Any]:
    """Start ranks of a benchmark behind shaped links, or within the machine; what the first one prints.

    Args:
        num_ranks: number of ranks, each on a core, which some share if there are fewer.
        rate: bits per second of each link. If None, the ranks reach each other as processes do.
        arguments: what the module is called with, after ``--one CORE``.
        module: the benchmark's, under :mod:`benchmarks`.
        variables: environment variables of all ranks.
    """
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        links = None if rate is None else stack.enter_context(Links(num_ranks, rate))
        address = "127.0.0.1" if links is None else links.address(0)
        network = {"MASTER_ADDR": address, "MASTER_PORT": str(29500 if links is not None else unused_port())}
        network["GLOO_SOCKET_IFNAME"] = "lo" if links is None else INTERFACE
        processes = []
        for rank in range(num_ranks):
            environment = os.environ | {"OMP_NUM_THREADS": "1"} | network | variables
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
            command = ours(module, "--one", str(cores[rank % len(cores)]), *arguments)
            command = command if links is None else links.command(rank, command)
            output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            processes.append(subprocess.Popen(command, stdout=output, env=environment, cwd=ROOT, text=True))
        said, _ = processes[0].communicate()
        codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{num_ranks} ranks ended with {codes}")
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return found


def row_of(num_ranks: int, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """Measure ranks behind links of a rate, and predict the same."""
    num_cores = min(num_ranks, len(os.sched_getaffinity(0)))
    slots = num_ranks / num_cores  # ranks that share a core
    visible = 0.1
    step, other, _ = alone(planted(options.nodes, num_ranks, visible), options.epochs)
    # Rows for whose bytes the link needs the time that a rank computes.
    seconds = (step.seconds + other) / num_cores
    row_bytes = sum(step.row_bytes)
    rows = seconds * rate / 8 * 0.95 / row_bytes
    visible = min(0.5, rows / (num_ranks - 1) / (options.nodes / num_ranks))
    graph = planted(options.nodes, num_ranks, visible)
    planted_graph = (str(options.nodes), str(num_ranks), repr(visible))
    with others_busy(num_cores, "distributed.busy", *planted_graph):
        before = alone(graph, options.epochs)
    arguments = [*planted_graph, str(options.epochs)]
    with tempfile.TemporaryDirectory(prefix="graphbraid-") as cache:
        found = start(num_ranks, rate, arguments, GRAPHBRAID_CACHE=cache)
    with others_busy(num_cores, "distributed.busy", *planted_graph):
        after = alone(graph, options.epochs)
    loss = before[-1]
    if abs(found["loss"] / loss - 1) > 1e-5:
        raise SystemExit(f"one process begins with a loss of {loss}, {num_ranks} ranks with {found['loss']}")
    parts = partition_of(graph, num_ranks)
    report = report_of(parts, Division(graph, parts).outlines)
    share = largest_share(report)
    low, high = found["byte_processor_quartiles"]
    cluster = Cluster(
        latency_seconds=found["latency_seconds"],
        bandwidth_bytes=found["bandwidth_bytes"],
        message_processor_seconds=found["message_processor_seconds"],
        byte_processor_seconds=found["byte_processor_seconds"],
        speed=1 / slots,
    )
    outside = slots / num_ranks  # a rank's share of the time outside steps

    def predicted(cluster: Cluster) -> list[float]:
        steps = ((step, outside * other) for step, other, _ in (before, after))
        return [predict([step], share, cluster).seconds + rest for step, rest in steps]

    found["predicted"] = {"overlapped": statistics.fmean(predicted(cluster))}
    costs = (replace(cluster, byte_processor_seconds=cost) for cost in (low, high))
    bounds = [*predicted(cluster), *(seconds for other in costs for seconds in predicted(other))]
    found["predicted_range"] = {"overlapped": [min(bounds), max(bounds)]}
    return {
        "ranks": num_ranks,
        "bits_per_second": rate,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "hidden": HIDDEN,
        "halo_rows": report.halo_rows,
        "report_bytes": round(row_bytes * report.halo_rows),
        "cores": num_cores,
    } | found


def derived(row: dict[str, Any]) -> dict[str, float]:
    """What a row is asked: times of the bounds, of blocking calls, of the prediction.

    The second bound adds what a rank's core does to send and receive its bytes to what it computes; it is not
    a number where that was not measured.
    """
    seconds, slots = row["seconds"], row["ranks"] / row["cores"]
    moving = row.get("byte_processor_seconds", math.nan) * max(row["sent_bytes"]) * slots
    computed, sent = seconds["nothing sent"], seconds["nothing computed"]
    return {
        "by bound": seconds["overlapped"] / max(computed, sent),
        "by bound of cores": seconds["overlapped"] / max(computed + moving, sent),
        "blocking by it": seconds["blocking"] / seconds["overlapped"],
        "predicted by it": row["predicted"]["overlapped"] / seconds["overlapped"],
        "bytes by report": sum(row["sent_bytes"]) / row["report_bytes"],
    }


def ranged(row: dict[str, Any]) -> str:
    """What was predicted by what was measured, with the range in brackets where it is known."""
    measured = row["seconds"]["overlapped"]
    said = f"{row['predicted']['overlapped'] / measured:.2f}"
    if "predicted_range" not in row:
        return said
    low, high = (f"{seconds / measured:.2f}" for seconds in row["predicted_range"]["overlapped"])
    return f"{said} ({low} to {high})"


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    names = ("by bound", "by bound of cores", "blocking by it", "predicted by it", "bytes by report")
    table = Table("", *(f"{mode}, ms" for mode in MODES), *names, "its range", "ns of core a byte")
    for name, row in rows.items():
        times = [f"{1e3 * row['seconds'][mode]:.1f}" for mode in MODES]
        cost = f"{1e9 * row['byte_processor_seconds']:.2f}"
        table.add_row(name, *times, *(f"{value:.3f}" for value in derived(row).values()), ranged(row), cost)
    Console(width=240).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Measure each number of ranks at each rate."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e9, 1e8], help="bits per second")
    parser.add_argument("--nodes", type=int, default=160_000)
    parser.add_argument("--epochs", type=int, default=10)
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    if why := why_not():
        print(f"skipped: links cannot be shaped here: {why}", file=sys.stderr)
        return
    torch.set_num_threads(1)
    for num_ranks in options.ranks:
        for rate in options.rates:
            print(f"  {num_ranks} ranks at {rate / 1e6:g} Mbit/s", file=sys.stderr, flush=True)
            rows = {f"{num_ranks} ranks, {rate / 1e6:g} Mbit/s": row_of(num_ranks, rate, options)}
            show(rows)
            write_rows("distributed_shaped", rows, repeats=options.epochs, out=options.out)


def _one() -> None:
    core, num_nodes, num_ranks, visible, epochs = sys.argv[2:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    graph = planted(int(num_nodes), int(num_ranks), float(visible))
    print(json.dumps(as_rank(graph, int(epochs))))


if __name__ == "__main__":
    _one() if sys.argv[1:2] == ["--one"] else main()
