"""An epoch of `graphbraid train` as anybody would start it, beside every way to tell the threads what to do.

    python -m benchmarks.training.defaults --mode sampled --busy 0 --seconds 160

Each way trains the same run in a process of its own, in turn, beside --busy processes that compute all the
time. The losses of all must be equal to the bit. Reported: the median epoch, and over the best way's. With B
busy processes beside C cores a fair share makes an epoch (C + B) / C times as long as on a quiet machine. A
part is a mode and a number of busy processes; results of the other parts stay in the file. The peers train
the same layers on the same graph beside the same processes, without dropout, as they start by default.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import last_json_line, peer
from benchmarks.common.options import add_out_argument, add_peer_arguments, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.folder import save
from benchmarks.training.epoch import write_weights
from graphbraid import datasets

MODES = {
    "sampled": ["--epochs", "6"],
    "full": ["--mode", "full", "--model", "gcn", "--epochs", "20"],
}
HIDDEN, LAYERS, FANOUTS = 128, 2, ("15", "10")
"""What the defaults train."""
PEER_ROUNDS = 3
UNSET = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
TORCH_FIRST = "import sys, torch; torch.ones(1 << 20).add_(1); from graphbraid.__main__ import run; run()"
COMMAND = [sys.executable, "-m", "graphbraid"]
WAYS: dict[str, tuple[list[str], dict[str, str], list[str]]] = {
    "defaults": (COMMAND, {}, []),
    "defaults, torch imported first": ([sys.executable, "-c", TORCH_FIRST], {}, []),
    "libgomp's own spinning": (COMMAND, {"GOMP_SPINCOUNT": "300000"}, []),
    "OMP_WAIT_POLICY=passive": (COMMAND, {"OMP_WAIT_POLICY": "passive"}, []),
    "OMP_WAIT_POLICY=active": (COMMAND, {"OMP_WAIT_POLICY": "active"}, []),
    "--threads 1": (COMMAND, {}, ["--threads", "1"]),
    "--plan auto": (COMMAND, {}, ["--plan", "auto"]),
}
"""How each starts: command, environment, further options."""


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Other programs that want a core all the time."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def train(way: str, mode: str) -> tuple[list[float], list[str]]:
    """Seconds of the epochs but the first, and the losses of all."""
    command, variables, options = WAYS[way]
    environment = {k: v for k, v in os.environ.items() if k not in UNSET} | variables
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        arguments = ["train", "--quiet", "--out", str(out), *MODES[mode], *options]
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{way} failed:\n{done.stderr[-2000:]}")
        with (out / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
    stages = ("wait_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds")
    seconds = [sum(float(row.get(stage) or 0) for stage in stages) for row in rows]
    return seconds[1:], [row["train_loss"] for row in rows]


def peers(mode: str, graph: Path, options: argparse.Namespace) -> dict[str, list[str]]:
    """The peers' commands; each prints the median of its epochs."""
    if mode == "full":
        sizes = [str(graph), "--hidden", str(HIDDEN), "--layers", str(LAYERS), "--epochs", "5"]
        pythons = {"pyg": sys.executable, "pyg-csr": sys.executable, "dgl": options.peer_python}
        return {lib: peer(python, "fullgraph", lib, *sizes) for lib, python in pythons.items()}
    weights = graph / "weights.npz"
    write_weights(graph, weights, hidden=HIDDEN, layers=LAYERS)
    run = [str(graph), str(weights), "--fanouts", *FANOUTS, "--epochs", "4"]
    return {
        f"{lib}, {n} loader processes": peer(options.peer_python, "epoch", lib, *run, "--loaders", str(n))
        for lib in ("dgl", "graphbolt")
        for n in (0, 1)
    }


def peer_epoch(name: str, command: list[str]) -> float:
    """Seconds of a peer's median epoch."""
    environment = {k: v for k, v in os.environ.items() if k not in UNSET}
    return float(last_json_line(name, command, environment)["epoch_s"])


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rounds of all ways until the time is spent, one round at least; then the peers, once each a round."""
    mode, num_busy = options.mode, options.busy
    ways = [way for way in WAYS if mode == "sampled" or way != "--plan auto"]
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    losses: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / datasets.DEFAULT
        save(datasets.load(datasets.DEFAULT), graph)
        commands = peers(mode, graph, options)
        peer_seconds: dict[str, list[float]] = {name: [] for name in commands}
        until, round_seconds = time.monotonic() + options.seconds, 0.0
        with busy(num_busy):
            while not losses or time.monotonic() + round_seconds < until:
                began = time.monotonic()
                for way in ways:
                    took, losses[way] = train(way, mode)
                    seconds[way] += took
                if any(found != losses["defaults"] for found in losses.values()):
                    raise SystemExit(f"losses differ: {losses}")
                if len(peer_seconds[next(iter(commands))]) < PEER_ROUNDS:
                    for name, command in commands.items():
                        peer_seconds[name].append(peer_epoch(name, command))
                round_seconds = time.monotonic() - began
    best = min(statistics.median(took) for took in seconds.values())
    return [
        {
            "mode": mode,
            "busy": num_busy,
            "way": way,
            "epoch_seconds": statistics.median(took),
            "of_best": statistics.median(took) / best,
            "epochs": took,
        }
        for way, took in (seconds | peer_seconds).items()
    ]


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("mode", "busy", "way", "epoch, ms", "over the best")
    for row in rows:
        ms = f"{1e3 * row['epoch_seconds']:.1f}"
        table.add_row(row["mode"], str(row["busy"]), row["way"], ms, f"{row['of_best']:.2f}")
    Console(width=110).print(table)


def main() -> None:
    """Measure one part, print it, write all parts."""
    parser = parser_of(__doc__)
    parser.add_argument("--mode", choices=MODES, default="sampled")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=160.0)
    add_out_argument(parser)
    add_peer_arguments(parser)
    options = parser.parse_args()
    rows = measure(options)
    show(rows)
    named = {
        f"{row['mode']}, {row['busy']} busy, {row['way']}": row | {"repeats": len(row["epochs"])}
        for row in rows
    }
    print("wrote", write_rows("defaults", named, repeats=1, out=options.out))


if __name__ == "__main__":
    main()
