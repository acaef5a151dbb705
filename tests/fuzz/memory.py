"""Memory: commands in a container with too little of it, which must end with a clear error and not be killed.

The container is a memory cgroup where one can be made, and a limit on the process's data elsewhere.
"""

import contextlib
import gc
import os
import random
import resource
import signal
import time
from pathlib import Path

import numpy as np
from tests.fuzz import cli
from tests.fuzz.case import Planned, Verdict
from tests.fuzz.isolate import limit_memory

from graphbraid.graph import Graph

_MIB = 1 << 20
_SMALLEST, _LARGEST = 24, 768
"""MiB beside the interpreter. Below 96, commands refuse to start."""
_NODES, _WIDTH = 60_000, 128
_QUICK = ("--hidden", "64", "--epochs", "1", "--threads", "1", "--quiet")
_LINES: tuple[tuple[str, ...], ...] = (
    ("train", "--data", "store", "--out", "out", "--fanouts", "5,5", "--batch-size", "2000", *_QUICK),
    ("train", "--data", "store", "--out", "out", "--mode", "full", "--model", "gcn", *_QUICK),
    ("train", "--data", "store", "--out", "out", "--host", "4MiB", "--fanouts", "5,5", *_QUICK),
    ("train", "--data", "g.npz", "--out", "out", "--fanouts", "5,5", *_QUICK),
    ("estimate", "--data", "store", "--fanouts", "5,5", "--hidden", "64"),
    ("plan", "--data", "store", "--fanouts", "5,5", "--hidden", "64"),
    ("partition", "--data", "store", "--parts", "4", "--strategy", "metis", "parts"),
    ("partition", "--data", "store", "--parts", "4", "--strategy", "streaming", "parts"),
    ("reorder", "--data", "store", "--by", "degree", "--out", "made"),
    ("reorder", "--data", "store", "--by", "rcm", "--out", "made"),
    ("convert", "g.npz", "made"),
    ("synth", "--model", "gcn", "--data", "store", "--layers", "128,64,16", "--out", "made"),
    ("info", "store", "--check"),
)


def prepare(folder: Path) -> None:
    """A graph of 30 MB of features and 20 MB of edges, as a store and as an archive."""
    from graphbraid import datasets

    numbers = np.random.default_rng(0)
    arrays = {
        "edge_index": numbers.integers(0, _NODES, (2, 20 * _NODES)),
        "x": numbers.random((_NODES, _WIDTH), dtype=np.float32),
        "y": numbers.integers(0, 16, _NODES),
        **{f"{name}_idx": np.arange(_NODES)[part::10] for part, name in enumerate(("train", "val", "test"))},
    }
    np.savez(folder / "g.npz", **arrays)
    graph = datasets.load(folder / "g.npz")
    assert isinstance(graph, Graph)
    datasets.save_store(graph, folder / "store")


def plan(numbers: random.Random, number: int, folder: Path) -> Planned:
    words = list(_LINES[number % len(_LINES)])
    limit = int(_MIB * _SMALLEST * (_LARGEST / _SMALLEST) ** numbers.random())
    for name in ("g.npz", "store"):
        Path(name).symlink_to(folder / name)
    Path("user").mkdir()
    return Planned(f"{limit // _MIB} MiB: graphbraid {' '.join(words)}", lambda: _run(words, limit))


def _run(words: list[str], limit: int) -> Verdict:
    """Run a command in a fork within the limit: this process stays outside, to see what came of it."""
    group = _group(limit)
    pid = os.fork()
    if not pid:
        _enter(group, limit)
        verdict = cli._run(words, fresh=False)
        Path("said.txt").write_text(f"{verdict.status}\n{verdict.cause}\n{verdict.detail}", encoding="utf-8")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if group is not None:
        _remove(group)
    if os.WIFSIGNALED(status):
        return Verdict(
            "signal", cause=f"{words[0]} is killed by signal {os.WTERMSIG(status)}", detail=" ".join(words)
        )
    if status:
        return Verdict(
            "signal", cause=f"{words[0]} ends the process", detail=Path("output.txt").read_text()[-300:]
        )
    state, cause, detail = Path("said.txt").read_text(encoding="utf-8").split("\n", 2)
    return Verdict(state, cause, detail)


def _enter(group: Path | None, limit: int) -> None:
    limit_memory(lift=True)
    # A look through all objects copies the pages of this fork now: within the group they would count.
    gc.unfreeze()
    gc.collect()
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        return
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + limit, resource.RLIM_INFINITY))


def _remove(group: Path) -> None:
    """End what the command left behind; the group can go a moment later."""
    for pid in (group / "cgroup.procs").read_text(encoding="ascii").split():
        os.kill(int(pid), signal.SIGKILL)
    for _ in range(1000):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.01)


def _group(limit: int) -> Path | None:
    """A new cgroup below this process's own with a limit, in version 1 or 2; None where it cannot be made."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers not in ("memory", ""):
            continue
        top = Path("/sys/fs/cgroup", controllers, name.lstrip("/"))
        group = top / f"graphbraid-fuzz-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / ("memory.limit_in_bytes" if controllers else "memory.max")).write_text(str(limit))
            except OSError:
                group.rmdir()
                raise
            return group
    return None
