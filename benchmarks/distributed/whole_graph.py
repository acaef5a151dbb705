"""Full-graph training on ranks beside one process with all their cores, PyG and DGL: seconds and bytes.

    python -m benchmarks.distributed.whole_graph --graphs FOLDER --names arxiv-like reddit-lite --ranks 2

One process trains on as many cores as there are ranks, then the ranks do with a core each, then PyG does both
ways that its documentation shows, and DGL, in one process on all of these cores. All train the peers' PyG
model, ours compiled from it, from the same parameters, and the last losses must agree; DGL draws its
parameters in another order, and its loss is kept. PyG's or DGL's own training on several processes is of
mini-batches, not of whole graphs. Bytes are those that all ranks together send to others in an epoch, without
gradients of parameters. Beside them stand those of sending all boundary rows in every layer, at the narrower
of its two widths, and their gradients back.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import ROOT, last_json_line, ours, peer, unused_port
from benchmarks.common.options import add_graphs_argument, add_out_argument, add_peer_arguments, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.fullgraph.beside_peers import PEERS
from benchmarks.graphs.folder import load
from graphbraid import compile, distributed  # noqa: A004
from graphbraid.distributed.ranks.gradients import GradientSum
from graphbraid.fullgraph import Ranks
from graphbraid.graph import Graph

MODELS = ("gcn", "sage", "gin", "gat")
WARM = 3
"""Epochs before the clock starts: memory is taken, kernels' arguments are bound."""
SAME = 1e-3
"""Largest difference of two last losses, of the smaller."""


def train(graph: Graph, options: argparse.Namespace) -> dict[str, Any]:
    """Train on the ranks that were started, or on one; each rank's own figures."""
    from benchmarks.fullgraph.ours import make_net  # needs PyG, without which the tables are made, too

    torch.manual_seed(0)
    with distributed.init() as comm:
        model = make_net(graph, options)
        nodes, labels = graph.split("train"), graph.y
        assert labels is not None
        ranks = Ranks.dividing(comm, graph) if comm.size > 1 else None
        engine = compile(model, graph, ranks=ranks)
        own = labels[nodes if ranks is None else ranks.owned(nodes)]
        sums = GradientSum(comm, model.parameters(), num_extra=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        seconds, loss, sent = [], 0.0, 0
        for epoch in range(WARM + options.epochs):
            if epoch == WARM:
                comm.barrier()
                sent = comm.sent_bytes
            started = time.perf_counter()
            optimizer.zero_grad()
            part = F.cross_entropy(engine(), own, reduction="sum") / nodes.numel()
            part.backward()
            (loss,) = sums.finish([float(part.detach())])
            optimizer.step()
            seconds.append(time.perf_counter() - started)
        found = {
            "seconds": statistics.median(seconds[WARM:]),
            "loss": loss,
            "sent_bytes": sum(comm.gather(comm.sent_bytes - sent)) // options.epochs,
            "boundary_bytes": 0,
        }
        if ranks is not None and comm.rank == 0:
            found["boundary_bytes"] = boundary_bytes(graph, ranks, options)
        return found if comm.rank == 0 else {}


def boundary_bytes(graph: Graph, ranks: Ranks, options: argparse.Namespace) -> int:
    """Bytes of all boundary rows in every layer at its narrower width, and of their gradients."""
    outlines = distributed.Division(graph, ranks.partition).outlines
    halo = sum(outline.halo.numel() for outline in outlines)
    widths = [graph.num_features, *[options.hidden] * (options.layers - 1), graph.num_classes]
    return sum(2 * 4 * halo * min(pair) for pair in itertools.pairwise(widths))


def run(size: int, num_cores: int, arguments: list[str]) -> dict[str, Any]:
    """Start ranks on a core each, or one process on all of the cores; what the first one prints."""
    cores = sorted(os.sched_getaffinity(0))[:num_cores]
    port, processes = unused_port(), []
    for rank in range(size):
        of_rank = [cores[rank % len(cores)]] if size > 1 else cores
        environment = os.environ | {"OMP_NUM_THREADS": str(len(of_rank))}
        if size > 1:
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
            environment |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        command = ours("distributed.whole_graph", "--one", ",".join(map(str, of_rank)), *arguments)
        output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        processes.append(subprocess.Popen(command, stdout=output, env=environment, cwd=ROOT, text=True))
    said, _ = processes[0].communicate()
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{size} ranks ended with {codes}")
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return found


def run_peer(lib: str, options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    """Train with PyG or DGL, in one process on as many cores as there are ranks; what it prints."""
    python = options.peer_python if lib == "dgl" else sys.executable
    epochs = WARM + options.epochs - 1  # one more is not timed
    command = peer(python, "fullgraph", lib, *arguments, "--threads", str(options.ranks))
    return last_json_line(lib, [*command, "--epochs", str(epochs)])


def check_same_loss(name: str, losses: dict[str, float]) -> None:
    """All but DGL, which draws other parameters, do the same from the same parameters."""
    first = losses["1 ranks"]
    if any(abs(loss / first - 1) > SAME for who, loss in losses.items() if who != "dgl"):
        raise SystemExit(f"{name}: the last losses differ: {losses}")


def row_of(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One graph's figures; ends the benchmark where ranks and process do not learn the same."""
    arguments = [str(options.graphs / name)]
    for key in ("model", "hidden", "layers", "heads"):
        arguments += [f"--{key}", str(getattr(options, key))]
    runs: dict[int, list[dict[str, Any]]] = {1: [], options.ranks: []}
    theirs: dict[str, list[dict[str, Any]]] = {lib: [] for lib in options.libraries}
    for repeat in range(options.repeats):
        for size, found in runs.items():
            print(f"  {name}, repeat {repeat + 1}: {size} ranks", file=sys.stderr, flush=True)
            found.append(run(size, options.ranks, [*arguments, "--epochs", str(options.epochs)]))
        for lib, found in theirs.items():
            print(f"  {name}, repeat {repeat + 1}: {lib}", file=sys.stderr, flush=True)
            found.append(run_peer(lib, options, arguments))
    several = runs[options.ranks]
    losses = {f"{size} ranks": found[0]["loss"] for size, found in runs.items()}
    losses |= {lib: found[0]["loss"] for lib, found in theirs.items()}
    check_same_loss(name, losses)
    seconds = {size: [run["seconds"] for run in found] for size, found in runs.items()}
    return {
        "graph": name,
        "model": options.model,
        "hidden": options.hidden,
        "layers": options.layers,
        "ranks": options.ranks,
        "one_seconds": seconds[1],
        "ranks_seconds": seconds[options.ranks],
        "cost": statistics.median(seconds[options.ranks]) / statistics.median(seconds[1]),
        "sent_bytes": several[0]["sent_bytes"],
        "boundary_bytes": several[0]["boundary_bytes"],
        "peers_seconds": {lib: [run["epoch_s"] for run in found] for lib, found in theirs.items()},
        "losses": losses,
    }


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    libraries = next(iter(rows.values()))["peers_seconds"]
    columns = (
        "one process, ms",
        "ranks, ms",
        "times as long",
        *(f"{lib}, ms (x ranks)" for lib in libraries),
    )
    table = Table("", *columns, "MB sent", "MB of all boundary rows")
    for name, row in rows.items():
        table.add_row(
            name,
            *(f"{1e3 * statistics.median(row[key]):.1f}" for key in ("one_seconds", "ranks_seconds")),
            f"{row['cost']:.2f}",
            *(f"{1e3 * seconds:.0f} ({lead:.1f})" for seconds, lead in beside(row).values()),
            *(f"{row[key] / 1e6:.2f}" for key in ("sent_bytes", "boundary_bytes")),
        )
    Console(width=160).print(table)


def beside(row: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """The median seconds of each peer, and how many times those of the ranks they are."""
    ranks = statistics.median(row["ranks_seconds"])
    medians = {lib: statistics.median(seconds) for lib, seconds in row["peers_seconds"].items()}
    return {lib: (seconds, seconds / ranks) for lib, seconds in medians.items()}


def main(arguments: list[str] | None = None) -> None:
    """Measure graph by graph; each one's row is printed and kept before the next begins."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    add_peer_arguments(parser)
    parser.add_argument("--libraries", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--names", nargs="+", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    _add_options(parser)
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    for name in options.names:
        key = f"{name}, {options.model} of {options.layers} layers of {options.hidden}, {options.ranks} ranks"
        rows = {key: row_of(name, options)}
        show(rows)
        write_rows("distributed_fullgraph", rows, repeats=options.repeats, out=options.out)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=MODELS, default="gcn")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)


def _one() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cores")
    parser.add_argument("folder", type=Path)
    _add_options(parser)
    options = parser.parse_args(sys.argv[2:])
    os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    torch.set_num_threads(len(options.cores.split(",")))
    print(json.dumps(train(load(options.folder), options)))


if __name__ == "__main__":
    _one() if sys.argv[1:2] == ["--one"] else main()
