"""StageClock: the time of each batching stage, measured without waiting for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

Span = tuple[str, torch.cuda.Event, torch.cuda.Event]


class StageClock:
    """A clock that adds up the seconds of each stage, by CUDA events or, on the CPU, by the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._seconds = {"sample": 0.0, "gather": 0.0}
        self._batches = 0
        self._open: deque[Span] = deque()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count everything launched inside the ``with`` block towards the stage ``name``."""
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
        """Count one more batch, and add up the spans that have ended."""
        self._batches += 1
        while self._open and self._open[0][2].query():
            self._add(self._open.popleft())

    def seconds(self) -> dict[str, float]:
        """Return the seconds per stage and the number of ``batches``; waits for the device."""
        while self._open:
            self._open[0][2].synchronize()
            self._add(self._open.popleft())
        return {**self._seconds, "batches": float(self._batches)}

    def _add(self, span: Span) -> None:
        name, begin, end = span
        self._seconds[name] += 1e-3 * begin.elapsed_time(end)
