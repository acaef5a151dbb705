"""The host as a device: the processor and its memory."""

from __future__ import annotations

import functools
import time

import torch

from graphbraid import native
from graphbraid.fullgraph.device.device import Device, Run
from graphbraid.machine.hardware import Hardware, free_memory_bytes


class Host(Device):
    """The host: its processor and memory."""

    place = torch.device("cpu")
    is_host = True

    @property
    def name(self) -> str:
        """Processor model, number of threads and kernel variant."""
        return f"{_cpu_model()} {torch.get_num_threads()} {native.active().variant}"

    def free_bytes(self) -> int | None:
        """Return the bytes of host memory available without swapping; None if unknown."""
        return free_memory_bytes()

    def seconds(self, run: Run, repeats: int = 7) -> float:
        """Return the least seconds of ``repeats`` runs after a warm-up.

        The minimum is closest to what the machine does while nothing else runs.
        """
        run()
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    def record(self, run: Run) -> Run:
        """Return ``run`` itself: recording gains nothing on the host."""
        return run


@functools.cache
def _cpu_model() -> str:
    return Hardware.detect().cpu_model or "unknown"


HOST = Host()
