"""The memory of a run without data: interpreter, libraries and threads, measured in a process of its own.

A process trains for a moment on a graph of a few nodes and says the most it ever held. That is kept between
runs, as it depends on nothing but the software.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import subprocess
import sys
from typing import Any

import torch

from graphbraid import native
from graphbraid.errors import DataError
from graphbraid.machine.hardware import free_memory_bytes, own_anonymous_bytes
from graphbraid.machine.measurements import NOT_KEPT, Kept

VERSION = 2
"""Part of the storage key; raise it when the run changes."""
_SECONDS = 120
_TYPICAL_BYTES = 320 << 20
"""Taken where no process can be started, or where the free memory has no room for one."""
_log = logging.getLogger(__name__)

_RUN = """
import resource, sys
import torch
from graphbraid import Graph, Trainer
from graphbraid.fullgraph.measured import basis
from graphbraid.fullgraph.measured.kept_rates import MeasuredRates
from graphbraid.machine.rates import Rates
from graphbraid.nn import GraphSAGE

# To measure the machine takes memory, which is no part of a run: most find the rates that another has kept.
basis.measured_rates = lambda _: MeasuredRates(rates=Rates())
mode, device = sys.argv[1:]
ids = torch.arange(64)
graph = Graph.from_edge_index(
    torch.stack([ids.repeat(2), ids.roll(1).repeat(2)]), 64, x=torch.rand(64, 8), y=ids % 4,
    splits={"train": ids[:32], "val": ids[32:48], "test": ids[48:]},
)
model = GraphSAGE(8, 8, 4, 2)
batches = {"fanouts": (2, 2), "batch_size": 8, "eval_batch_size": 8}
Trainer(model, graph, mode=mode, device=device, epochs=2, **batches).fit()
try:
    with open("/proc/self/status") as file:
        print(next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM")))
except OSError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@functools.cache
def baseline_bytes(mode: str, device: str = "cpu") -> int:
    """Return the peak resident bytes of a run whose graph, model and batches are next to nothing.

    Args:
        mode: ``sampled`` or ``full``.
        device: kind of the model's device; a CUDA device's libraries take much of the host's memory.
    """
    key = f"{VERSION} {mode} {device} {torch.__version__} {platform.python_version()} {_variant()}"
    file = _KEPT.file(key)
    found = _KEPT.read(file)
    if found is not None:
        return found
    free = free_memory_bytes()
    if free is not None and free < 2 * _TYPICAL_BYTES:  # a second process might exhaust the memory
        return _TYPICAL_BYTES
    try:
        found = _measured(mode, device)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _log.warning("the memory of an empty run could not be measured, a typical one is taken: %s", error)
        return _TYPICAL_BYTES
    try:
        _KEPT.write(file, found)
    except NOT_KEPT as error:
        _log.warning("the memory of an empty run could not be kept: %s", error)
    return found


def capacity_bytes() -> int | None:
    """Return the memory that a run may take in place of this process; None if it is not known.

    What this process holds of its own, such as a graph read into memory, a run does not need once more.
    """
    free = free_memory_bytes()
    return None if free is None else max(1, free + own_anonymous_bytes())


def _variant() -> str:
    return native.active().variant


def _measured(mode: str, device: str) -> int:
    # The path of this process, so that the same installation is measured, wherever that one starts.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, mode, device],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise ValueError(f"it ended with {done.returncode}: {last}")
    return int(done.stdout.split()[-1])


def _from_json(content: Any) -> int:
    nbytes = content["nbytes"]
    if not isinstance(nbytes, int) or nbytes < 1 << 20:
        raise DataError("no process takes so little")
    return nbytes


_KEPT: Kept[int] = Kept("baselines", lambda nbytes: {"nbytes": nbytes}, _from_json)
