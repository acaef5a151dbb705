"""CUDA: the one file of the engine that calls ``torch.cuda``.

A recording is a CUDA graph: the kernels of a pass with their arguments, started by one call instead of one
each. Whatever a kernel was given by value stays as it was; what it reads from memory may change.
"""

from __future__ import annotations

import contextlib

import torch

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.device.device import Device, NotRecordedError, Run

_RUNS = 10
"""Runs in one timed recording: a kernel takes microseconds, an event tells half of one."""
_REPEATS = 5


class Cuda(Device):
    """A CUDA device.

    Args:
        place: ``cuda`` (the current one) or ``cuda:N``.
        records: whether passes are recorded; off, to see what that gains.

    Raises:
        ConfigError: there is no such device.
    """

    is_host = False

    def __init__(self, place: torch.device, *, records: bool = True) -> None:
        count = torch.cuda.device_count()
        if (place.index or 0) >= count:
            raise ConfigError(f"device {str(place)!r} is not here: PyTorch finds {count} CUDA devices")
        index = torch.cuda.current_device() if place.index is None else place.index
        self.place = torch.device("cuda", index)
        self._records = records
        self._stream: torch.cuda.Stream | None = None

    @property
    def name(self) -> str:
        """The card and PyTorch's CUDA."""
        return f"{torch.cuda.get_device_name(self.place)} {torch.version.cuda}"

    def free_bytes(self) -> int:
        """What the card has free, and what PyTorch keeps of it without using it."""
        free, _ = torch.cuda.mem_get_info(self.place)
        kept = torch.cuda.memory_reserved(self.place) - torch.cuda.memory_allocated(self.place)
        return int(free + kept)

    def seconds(self, run: Run) -> float:
        """Time on the device by events; of a recording, so that Python's part is not in it.

        Raises:
            NotRecordedError: the run cannot be recorded, and so be no part of a step that is.
        """

        def several() -> None:
            for _ in range(_RUNS):
                run()

        with torch.cuda.device(self.place):
            run()
            replay = self._capture(several)
            begin, end = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            seconds = []
            for _ in range(_REPEATS + 1):
                begin.record()
                replay()
                end.record()
                end.synchronize()
                seconds.append(begin.elapsed_time(end) / 1e3 / _RUNS)
        return float(min(seconds[1:]))

    def wait(self) -> None:
        """Until all streams of the card are done."""
        torch.cuda.synchronize(self.place)

    def record(self, run: Run) -> Run:
        """Capture a CUDA graph; its memory is its own, so nothing else is written by a replay."""
        if not self._records:
            raise NotRecordedError("recording is switched off")
        return self._capture(run)

    def _capture(self, run: Run) -> Run:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        # Thread-local: the loader's threads may allocate pinned memory meanwhile.
        capture = torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local")
        try:
            with torch.cuda.device(self.place), capture:
                run()
        except RuntimeError as error:
            _leave(self.place, pool)
            raise NotRecordedError(str(error).splitlines()[0]) from error
        return graph.replay


def _leave(place: torch.device, pool: tuple[int, int]) -> None:
    """Tell the allocator that a capture that failed is over, or it would refuse the next one."""
    with contextlib.suppress(AttributeError, RuntimeError):  # private to PyTorch, or done already
        torch._C._cuda_endAllocateToPool(place.index, pool)
