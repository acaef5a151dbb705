"""Runs contenders in turn, each as a process of its own that prints one JSON line."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Contender:
    """A command that prints one JSON line, and what its repeats printed."""

    name: str
    command: list[str]
    runs: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> None:
        """Run once, in a process of its own, and keep its JSON line."""
        self.runs.append(last_json_line(self.name, self.command))

    def median(self, key: str) -> float:
        """The median of a figure over the repeats."""
        return statistics.median(run[key] for run in self.runs)


def last_json_line(
    name: str, command: Sequence[str], environment: dict[str, str] | None = None, cwd: Path = ROOT
) -> dict[str, Any]:
    """What a command prints last, read as JSON. Arguments are those of :func:`output_of`."""
    said = output_of(name, command, environment, cwd)
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return found


def output_of(
    name: str, command: Sequence[str], environment: dict[str, str] | None = None, cwd: Path = ROOT
) -> str:
    """What a command prints; ends the benchmark where the command fails.

    Args:
        name: the contender's, for the message.
        command: is run from ``cwd``, so that ``-m benchmarks.x`` is found.
        environment: its variables; None gives it ours.
        cwd: the checkout it runs from.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed ({' '.join(command)}):\n{done.stderr[-3000:]}")
    return done.stdout


def unused_port() -> int:
    """A port of this machine on which nothing listens now.

    It is below those that Linux gives to connections, so that only another program which asks for this very
    number can take it meanwhile.
    """
    for port in random.sample(range(20_000, 29_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise SystemExit("of 100 ports between 20000 and 29000 none is unused")


def run_in_turn(contenders: list[Contender], repeats: int) -> None:
    """A B C A B C ...: what slows the machine for a while slows all of them."""
    for repeat in range(repeats):
        for contender in contenders:
            print(f"  repeat {repeat + 1}/{repeats}: {contender.name}", file=sys.stderr, flush=True)
            contender.run()


def ours(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our benchmark modules with this Python."""
    return [sys.executable, "-m", f"benchmarks.{module}", *arguments]


def peer(python: str, module: str, *arguments: str) -> list[str]:
    """The command that runs a module of :mod:`benchmarks.peers` with a peer's Python."""
    return [python, "-m", f"benchmarks.peers.{module}", *arguments]
