"""An epoch of `graphbraid train` as anybody would start it, beside every way to tell the threads what to do.

    python -m benchmarks.defaults --mode sampled --busy 0 --seconds 160

Each way trains the same run in a process of its own, in turn, beside --busy processes that compute all the
time. The losses of all must be equal to the bit. Reported: the median epoch, and over the best way's. With B
busy processes beside C cores a fair share makes an epoch (C + B) / C times as long as on a quiet machine. A
part is a mode and a number of busy processes; results of the other parts stay in the file.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
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

from benchmarks.common import RESULTS, write_results

MODES = {
    "sampled": ["--epochs", "6"],
    "full": ["--mode", "full", "--model", "gcn", "--epochs", "20"],
}
UNSET = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
TORCH_FIRST = "import sys, torch; torch.ones(1 << 20).add_(1); from graphbraid.cli.main import run; run()"
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


def measure(mode: str, num_busy: int, budget: float) -> list[dict[str, Any]]:
    """Rounds of all ways until the time is spent, one round at least."""
    ways = [way for way in WAYS if mode == "sampled" or way != "--plan auto"]
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    losses: dict[str, list[str]] = {}
    until, round_seconds = time.monotonic() + budget, 0.0
    with busy(num_busy):
        while not losses or time.monotonic() + round_seconds < until:
            began = time.monotonic()
            for way in ways:
                took, losses[way] = train(way, mode)
                seconds[way] += took
            round_seconds = time.monotonic() - began
    if any(found != losses["defaults"] for found in losses.values()):
        raise SystemExit(f"losses differ: {losses}")
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
        for way, took in seconds.items()
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=MODES, default="sampled")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=160.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "defaults.json")
    options = parser.parse_args()
    rows = measure(options.mode, options.busy, options.seconds)
    show(rows)
    part = (options.mode, options.busy)
    kept = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    others = [row for row in kept if (row["mode"], row["busy"]) != part]
    write_results("defaults", {"rows": [*others, *rows]}, options.out)


if __name__ == "__main__":
    main()
