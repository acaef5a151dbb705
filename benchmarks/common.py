"""What every benchmark shares: running contenders in turn, medians, the machine's name, results as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass
class Contender:
    """A command that prints one JSON line, and what its repeats printed."""

    name: str
    command: list[str]
    runs: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> None:
        """Run once, in a process of its own, and keep its JSON line."""
        done = subprocess.run(self.command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{self.name} failed ({' '.join(self.command)}):\n{done.stderr[-3000:]}")
        self.runs.append(json.loads(done.stdout.strip().splitlines()[-1]))

    def median(self, key: str) -> float:
        """The median of a figure over the repeats."""
        return statistics.median(run[key] for run in self.runs)


def run_in_turn(contenders: list[Contender], repeats: int) -> None:
    """A B C A B C ...: what slows the machine for a while slows all of them."""
    for repeat in range(repeats):
        for contender in contenders:
            print(f"  repeat {repeat + 1}/{repeats}: {contender.name}", file=sys.stderr, flush=True)
            contender.run()


def ours(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our benchmark modules in a process of its own."""
    return [sys.executable, "-m", f"benchmarks.{module}", *arguments]


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of every benchmark that has peers."""
    parser.add_argument(
        "--graphs", type=Path, required=True, help="folder with the generated graphs' folders"
    )
    add_peer_arguments(parser)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON file; default: under benchmarks/results")


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the peers are."""
    parser.add_argument(
        "--peer-python",
        required=True,
        help="Python of an environment with DGL 2.1 and its GraphBolt; see benchmarks/README.md",
    )
    parser.add_argument("--peer-scripts", type=Path, default=ROOT.parent / "shared" / "bench")


def machine() -> dict[str, Any]:
    """The machine and the software the figures belong to."""
    import torch

    from graphbraid import __version__, native

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernels": native.active().variant,
        "graphbraid": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def commit() -> str:
    """The commit that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return out.stdout.strip() or "unknown"


def write_results(name: str, results: dict[str, Any], out: Path | None) -> Path:
    """Write ``results`` with the machine's name beside them."""
    path = out or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")
    return path
