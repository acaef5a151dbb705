"""The host as a device: the processor and its memory."""

from __future__ import annotations

import time

import torch

from graphbraid import native
from graphbraid.fullgraph.device.device import Device, Run
from graphbraid.machine.hardware import Hardware


class Host(Device):
    """The processor and its memory."""

    place = torch.device("cpu")
    is_host = True

    @property
    def name(self) -> str:
        """Processor, threads and kernel variant."""
        cpu = Hardware.detect().cpu_model or "unknown"
        return f"{cpu} {torch.get_num_threads()} {native.active().variant}"

    def free_bytes(self) -> int | None:
        """What can be taken without swapping."""
        return Hardware.detect().memory_available_bytes

    def seconds(self, run: Run, repeats: int = 7) -> float:
        """The least of some runs after one to warm up: what the machine does when nothing else does."""
        run()
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    def record(self, run: Run) -> Run:
        """Nothing is gained by recording: the same calls."""
        return run


HOST = Host()
