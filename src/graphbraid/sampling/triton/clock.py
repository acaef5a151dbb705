"""StageClock: what the stages of batching take, without waiting for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

Span = tuple[str, torch.cuda.Event, torch.cuda.Event]


class StageClock:
    """Adds up the seconds of each stage: between CUDA events, or by the host's clock on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._seconds = {"sample": 0.0, "gather": 0.0}
        self._batches = 0
        self._open: deque[Span] = deque()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What is launched inside belongs to the stage."""
        if not self._on_device:
            started = perf_counter()
            yield
            self._seconds[name] += perf_counter() - started
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._open.append((name, begin, end))

    def count_batch(self) -> None:
        """One batch more; spans that have ended are added up."""
        self._batches += 1
        while self._open and self._open[0][2].query():
            self._add(self._open.popleft())

    def seconds(self) -> dict[str, float]:
        """Seconds per stage, and the number of batches; waits for the device."""
        while self._open:
            self._open[0][2].synchronize()
            self._add(self._open.popleft())
        return {**self._seconds, "batches": float(self._batches)}

    def _add(self, span: Span) -> None:
        name, begin, end = span
        self._seconds[name] += 1e-3 * begin.elapsed_time(end)
