"""What a call allocates through torch: the most at a time, and what is left of it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile

from graphbraid.machine.hardware import free_memory_bytes

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_RETURNED_BYTES = 1 << 25
"""Size from which the C library maps blocks by themselves, and so returns them when they are freed."""

_NEVER = 1 << 30
_MOST_TRIED = 0.5
"""Largest share of the free memory that a step or a pass may take to be tried in full."""
_ONE_AT_A_TIME = threading.Lock()
"""The profiler and the collector's thresholds belong to the process: two threads that profile crash it."""


class Allocation(NamedTuple):
    """Bytes that a call allocated."""

    peak: int
    """Most bytes held at a time, above what was held before."""
    kept: int
    """Bytes still held after it; negative where it freed more."""
    heap: int = 0
    """Most bytes held at a time in blocks of the host that the process keeps once they are freed."""


def allocation_of(run: Callable[[], object], device: torch.device) -> Allocation:
    """Call ``run`` and return what it allocated on ``device`` through torch's allocator.

    Memory that compiled kernels take for themselves is not seen; it is a few rows per thread.
    """
    if device.type == "cuda":
        return _on_cuda(run, device)
    recorded = profile(profile_memory=True, acc_events=True)
    with _ONE_AT_A_TIME, _quiet(), _former_garbage_is_left(), recorded as seen:
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
    return Allocation(peak=peak, kept=kept, heap=heap)


def _most_of(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the largest and the last of the running sums of blocks taken and, below 0, given back."""
    sums = [0, *itertools.accumulate(sizes)]
    return max(sums), sums[-1]


@contextlib.contextmanager
def _former_garbage_is_left() -> Iterator[None]:
    """Let nothing that is garbage already be given back in the run's name.

    What is young is collected before. To look through all that is older takes a quarter of a second once the
    libraries are imported: no collection of the run does.
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
    """Let torch's profiler print nothing: it reads the variable once, when it is first used."""
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
    """Return whether what allocates so much leaves enough of the free memory to be made."""
    free = free_memory_bytes()
    return free is None or nbytes <= _MOST_TRIED * free
