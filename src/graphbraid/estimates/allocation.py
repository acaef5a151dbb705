"""Measured memory: allocations of a call through torch, and memory of a run without data."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import logging
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile

from graphbraid import native
from graphbraid.errors import DataError
from graphbraid.machine.hardware import free_memory_bytes, own_anonymous_bytes
from graphbraid.machine.measurements import NOT_KEPT, Kept
from graphbraid.ops.kernels import LEAST_POOLED, without_pool

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_RETURNED_BYTES = 1 << 25
"""Size from which the C library maps a block of its own, and returns it to the system when it is freed."""

_NEVER = 1 << 30
_MOST_TRIED = 0.4
"""Largest share of the free memory that a step or a pass may take to be tried in full.

Heaps of threads have kept twice the memory of batches and a step.
"""
_ONE_AT_A_TIME = threading.Lock()
"""Profiler and garbage collector belong to the process, which crashes if two threads profile."""


class Allocation(NamedTuple):
    """Bytes that a call allocated."""

    peak: int
    """Most bytes held at a time, beyond those held before."""
    kept: int
    """Bytes still held after the call; negative if it freed more."""
    heap: int = 0
    """Most bytes held at a time in blocks of the host that the process keeps once they are freed."""
    pooled: int = 0
    """Most bytes held at a time in rows of the kernels' pool, which keeps them for later rows."""


def allocation_of(run: Callable[[], object], device: torch.device) -> Allocation:
    """Call ``run`` and return what it allocated on ``device`` through torch's allocator.

    Memory that compiled kernels take for themselves is not seen; it is a few rows per thread.
    """
    if device.type == "cuda":
        return _on_cuda(run, device)
    recorded = profile(profile_memory=True, acc_events=True)
    with _ONE_AT_A_TIME, _quiet(), _former_garbage_is_left(), without_pool(), recorded as seen:
        run()
    assert seen.kineto_results is not None
    events = [
        (event.start_ns(), event.nbytes())
        for event in seen.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == DeviceType.CPU
    ]
    sizes = [nbytes for _, nbytes in sorted(events, key=lambda event: event[0])]
    peak, kept = _most_of(sizes)
    heap, _ = _most_of([nbytes for nbytes in sizes if abs(nbytes) < _RETURNED_BYTES])
    pooled, _ = _most_of([nbytes for nbytes in sizes if abs(nbytes) >= LEAST_POOLED and nbytes % 2])
    return Allocation(peak=peak, kept=kept, heap=heap, pooled=pooled)


def _most_of(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the largest and the last running sum of block sizes, negative for freed blocks."""
    sums = [0, *itertools.accumulate(sizes)]
    return max(sums), sums[-1]


@contextlib.contextmanager
def _former_garbage_is_left() -> Iterator[None]:
    """Keep memory that is already garbage from being counted as freed by the run.

    Young objects are collected before the run. A collection of older ones takes a quarter of a second once
    the libraries are imported, so none happens during the run.
    """
    gc.collect(1)
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's profiler silent; it reads the variable once, at its first use."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "6"
    try:
        yield
    finally:
        del os.environ[_LOG_LEVEL]


def _on_cuda(run: Callable[[], object], device: torch.device) -> Allocation:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return Allocation(
        peak=torch.cuda.max_memory_allocated(device) - before,
        kept=torch.cuda.memory_allocated(device) - before,
    )


def may_be_tried(nbytes: int) -> bool:
    """Return whether a trial that allocates so many bytes leaves enough free memory."""
    free = free_memory_bytes()
    return free is None or nbytes <= _MOST_TRIED * free


# ---- a run without data

BASELINE_VERSION = 4
"""Part of the storage key; raise it when the run changes."""
_MOST_BASELINE_SECONDS = 120
_TYPICAL_BYTES = 320 << 20
"""Used if no process can be started, or if the free memory has no room for one."""
_log = logging.getLogger(__name__)

EMPTY_RUN = """
import resource, sys
import torch
from graphbraid import Graph, Trainer
from graphbraid.fullgraph.measured import trials as basis
from graphbraid.fullgraph.measured.rates import MeasuredRates
from graphbraid.machine.rates import Rates
from graphbraid.nn import DotProduct, GraphSAGE, LinkModel

# To measure the machine takes memory, which is no part of a run: most find the rates that another has kept.
basis.measured_rates = lambda _: MeasuredRates(rates=Rates())
mode, device, task = sys.argv[1:]
ids = torch.arange(64)
graph = Graph.from_edge_index(
    torch.stack([ids.repeat(2), ids.roll(1).repeat(2)]), 64, x=torch.rand(64, 8), y=ids % 4,
    splits={"train": ids[:32], "val": ids[32:48], "test": ids[48:]},
)
model = GraphSAGE(8, 8, 4, 2)
options = {"fanouts": (2, 2), "batch_size": 8, "eval_batch_size": 8}
if task == "link":
    model, graph = LinkModel(model, DotProduct()), graph.replace(y=None, splits={})
    options["link_splits"] = 0.2, 0.2
Trainer(model, graph, task=task, mode=mode, device=device, epochs=2, **options).fit()
try:
    with open("/proc/self/status") as file:
        print(next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM")))
except OSError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@functools.cache
def baseline_bytes(mode: str, device: str = "cpu", task: str = "node") -> int:
    """Return the peak resident bytes of a run with a tiny graph, model and batches.

    A separate process trains for a moment. The result is cached, since it depends only on the software.

    Args:
        mode: ``sampled`` or ``full``.
        device: kind of the model's device; a CUDA device's libraries take much of the host's memory.
        task: ``node`` or ``link``.
    """
    software = f"{torch.__version__} {platform.python_version()} {native.active().variant}"
    key = f"{BASELINE_VERSION} {mode} {device} {task} {software}"
    file = _KEPT.file(key)
    found = _KEPT.read(file)
    if found is not None:
        return found
    free = free_memory_bytes()
    if free is not None and free < 2 * _TYPICAL_BYTES:  # a second process might exhaust the memory
        return _TYPICAL_BYTES
    try:
        found = _measured(mode, device, task)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _log.warning("the memory of an empty run could not be measured, a typical one is taken: %s", error)
        return _TYPICAL_BYTES
    try:
        _KEPT.write(file, found)
    except NOT_KEPT as error:
        _log.warning("the memory of an empty run could not be kept: %s", error)
    return found


def capacity_bytes() -> int | None:
    """Return the memory for a run in place of this process; None if it is not known.

    Memory of this process, such as a graph read into memory, counts as free for the run.
    """
    free = free_memory_bytes()
    return None if free is None else max(1, free + own_anonymous_bytes())


def _measured(*arguments: str) -> int:
    # The path of this process, so that the same installation is measured, wherever that one starts.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", EMPTY_RUN, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=_MOST_BASELINE_SECONDS,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise ValueError(f"it ended with {done.returncode}: {last}")
    return int(done.stdout.split()[-1])


def _from_json(content: Any) -> int:
    nbytes = content["nbytes"]
    if not isinstance(nbytes, int) or nbytes < 1 << 20:
        raise DataError("a process takes at least 1 MiB")
    return nbytes


_KEPT: Kept[int] = Kept("baselines", lambda nbytes: {"nbytes": nbytes}, _from_json)
