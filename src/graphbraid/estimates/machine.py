"""A machine as an estimate sees it: measured memory of calls and runs, rates, devices, a rank's part."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import logging
import math
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile

from graphbraid import native
from graphbraid.collective.run.stages import ReportsMemory
from graphbraid.errors import DataError
from graphbraid.features.tiers.device_sizing import DeviceMemory
from graphbraid.files.schema import SavedRecord, check_numbers
from graphbraid.files.writing import format_bytes
from graphbraid.machine.hardware import Hardware, free_memory_bytes, memory_group, own_anonymous_bytes
from graphbraid.machine.measurements import Kept
from graphbraid.machine.shared_tensors import machine_name
from graphbraid.ops.kernels import LEAST_POOLED, without_pool
from graphbraid.signatures import typed
from graphbraid.train.runtime import device_named

if TYPE_CHECKING:
    from graphbraid.collective.run.stages import Accelerator
    from graphbraid.distributed import Communicator


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
    resident: int = 0
    """Like ``peak``, but freed rows of the pool still count: no other tensor can use their memory."""


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
    in_pool = [nbytes if abs(nbytes) >= LEAST_POOLED and nbytes % 2 else 0 for nbytes in sizes]
    pool = itertools.accumulate(itertools.accumulate(in_pool), max)  # its size never falls
    others = itertools.accumulate(nbytes - row for nbytes, row in zip(sizes, in_pool, strict=True))
    resident = max(map(sum, zip(pool, others, strict=True)), default=0)
    return Allocation(peak, kept, heap, pooled=_most_of(in_pool)[0], resident=max(0, resident))


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
    peak = torch.cuda.max_memory_allocated(device) - before
    return Allocation(peak, kept=torch.cuda.memory_allocated(device) - before, resident=peak)


def may_be_tried(nbytes: int) -> bool:
    """Return whether a trial that allocates ``nbytes`` leaves enough free memory."""
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
from graphbraid.fullgraph import rates as basis
from graphbraid.fullgraph.rates import MeasuredRates
from graphbraid.machine.hardware import Rates
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
    ``device`` is a kind; a CUDA device's libraries take much of the host's memory. ``task`` is ``node`` or
    ``link``.
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
    _KEPT.keep(file, found, "the memory of an empty run")
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


_Number = TypeVar("_Number", int, float)


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareFile(SavedRecord):
    """A machine as an estimate sees it. Fields that are None are not known and limit nothing."""

    KIND: ClassVar[str] = "hardware"

    name: str = ""
    """Name of the machine in reports."""
    cores: int | None = None
    """Number of cores that a run may use."""
    memory_bytes: int | None = None
    """Bytes of memory that a run may take."""
    device_memory_bytes: int | None = None
    """Bytes of device memory that a run may take. None: there is no device."""
    disk_bytes: int | None = None
    """Bytes of disk that a run may write."""
    disk_bytes_per_second: float | None = None
    """Rate at which rows are read from a store's file."""
    multiply_flops: float | None = None
    """Floating-point operations per second of a float32 matrix product with a weight."""
    row_bytes_per_second: float | None = None
    """Bytes per second read from randomly placed rows in memory."""
    link_bytes_per_second: float | None = None
    """Rate at which page-locked memory is copied to the device."""

    def __post_init__(self) -> None:
        names = (one.name for one in dataclasses.fields(self) if one.name != "name")
        check_numbers(self, names, positive=True)

    @property
    def device_memory(self) -> DeviceMemory:
        """The device's memory and link."""
        rate = self.link_bytes_per_second
        return DeviceMemory(free_bytes=self.device_memory_bytes, link_bytes_per_second=rate)

    def slowness(self, here: HardwareFile) -> float:
        """Return the time of the same work as a multiple of ``here``'s, by the rates that both have.

        It is the geometric mean for matrix products and for reads of random rows, the main work of training.
        1 if a machine's rates are not known.
        """
        ratios = []
        for name in ("multiply_flops", "row_bytes_per_second"):
            one, other = getattr(self, name), getattr(here, name)
            if one is not None and other is not None:
                ratios.append(other / one)
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def this_machine(folder: Path | None = None, *, with_rates: bool = True) -> HardwareFile:
    """Return this machine as an estimate sees it, with its measured rates.

    Its rates are measured the first time. A run writes to ``folder``, or to the working directory.
    """
    from graphbraid.fullgraph.rates import machine_rates  # here: runs measure none

    hardware, rates = Hardware.detect(), machine_rates() if with_rates else None
    return HardwareFile(
        name=hardware.cpu_model,
        cores=hardware.planned_cores,
        memory_bytes=capacity_bytes(),
        device_memory_bytes=max((gpu.memory_bytes for gpu in hardware.gpus), default=None),
        disk_bytes=_free_disk_bytes(folder or Path()),
        multiply_flops=None if rates is None else rates.multiply_flops,
        row_bytes_per_second=None if rates is None else rates.row_bytes,
        link_bytes_per_second=link_rate(torch.device("cuda")) if with_rates and hardware.gpus else None,
    )


def _free_disk_bytes(folder: Path) -> int | None:
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return max(1, shutil.disk_usage(place).free)
    except OSError:
        return None


# ---- a device

COPIED_BYTES = 32 << 20
"""Bytes of a copy to measure the link's rate."""
_COPIES = 4  # the first one does not count: it takes memory, and enables access


def device_memory(name: str, accelerator: Accelerator | None) -> DeviceMemory | None:
    """Return memory and link of the device of mini-batches; None if they stay on the host.

    ``accelerator`` prepares and transfers them; if None, the model's device, ``name``, does.
    """
    if accelerator is not None:
        if not isinstance(accelerator, ReportsMemory):
            return DeviceMemory(free_bytes=None, link_bytes_per_second=None)
        rate = accelerator.link_bytes_per_second
        return DeviceMemory(free_bytes=accelerator.free_bytes(), link_bytes_per_second=rate)
    device = device_named(name)
    if device.is_host:
        return None
    return DeviceMemory(free_bytes=device.free_bytes(), link_bytes_per_second=link_rate(device.place))


def link_rate(device: torch.device) -> float:
    """Return the bytes per second at which page-locked memory is copied to a device, measured."""
    pinned = torch.ones(COPIED_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return copy_rate(pinned, device)


def copy_rate(source: Tensor, device: torch.device) -> float:
    """Return the bytes per second at which a device copies some memory to its own."""
    target, taken = torch.empty(source.shape, dtype=source.dtype, device=device), list[float]()
    for _ in range(_COPIES):
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - started)
    return source.nbytes / max(median(taken[1:]), 1e-9)


# ---- ranks


class RankMemory(NamedTuple):
    """A rank's memory, by which ``tiers="auto"`` sizes its tiers."""

    host_bytes: int | None
    """Memory of the machine for a run in place of this process; None if not known."""
    device: DeviceMemory | None
    """Memory and link of the device; None if mini-batches stay on the host."""
    reason: str
    """The division among ranks, in words; empty if nothing is divided."""


def memory_of_rank(comm: Communicator, device: DeviceMemory | None, name: str) -> RankMemory:
    """Return a rank's parts of the free memory; all ranks of the job call it together.

    Ranks of a machine divide its memory, or that of the cgroup whose limit they share. Ranks whose devices
    have the same name divide the device's. They divide the least free memory that any of them has found.
    ``device`` is None if mini-batches stay on the host. ``name``, from :func:`memory_name`, is empty if no
    other rank uses the device.
    """
    here, own = f"{machine_name()} {memory_group()}".strip(), own_anonymous_bytes()
    free_there = None if device is None else device.free_bytes
    known = comm.gather([here, free_memory_bytes(), name, free_there])
    beside = [rank for rank, given in enumerate(known) if given[0] == here]
    on_device = [rank for rank in beside if name and known[rank][2] == name] or [comm.rank]
    free, said = least_known([known[rank][1] for rank in beside]), list[str]()
    host = None if free is None else max(1, free // len(beside) + own)
    if len(beside) > 1 and free is not None:
        said.append(f"{len(beside)} ranks divide the {format_bytes(free)} that are free on their machine")
    if device is not None and len(on_device) > 1:
        there = least_known([known[rank][3] for rank in on_device])
        if there is not None:
            said.append(f"{len(on_device)} ranks use one device and divide its free {format_bytes(there)}")
            there //= len(on_device)
        device = dataclasses.replace(device, free_bytes=there)
    return RankMemory(host, device, "; ".join(said))


def memory_name(name: str, accelerator: Accelerator | None) -> str:
    """Return a name of the memory of a run's device, unique on its machine; empty if there is none.

    The arguments are those of :func:`device_memory`.
    """
    if accelerator is not None:
        return str(getattr(accelerator, "memory_name", None) or "")
    device = device_named(name)
    if device.is_host:
        return ""
    # Its number may be another's in each process.
    return str(torch.cuda.get_device_properties(device.place).uuid)


def least_known(values: Sequence[_Number | None]) -> _Number | None:
    """Return the least of values that are all known; None if one is not."""
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None
