"""CUDA devices; the only file of the engine that calls ``torch.cuda``.

A recording is a CUDA graph: the kernels of a pass with their arguments, started by one call instead of one
call each. Arguments passed by value are fixed at recording; what kernels read from memory may change.
"""

from __future__ import annotations

import contextlib

import torch

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.device.device import Device, NotRecordedError, Run
from graphbraid.fullgraph.device.limits import DeviceLimits

_RUNS = 10
"""Runs in one timed recording: a kernel may take microseconds, and events resolve about half of one."""
_REPEATS = 5


class Cuda(Device):
    """A CUDA device.

    Args:
        place: ``cuda`` (the current device) or ``cuda:N``.
        records: whether passes are recorded as CUDA graphs; False to measure what recording gains.

    Raises:
        ConfigError: the device does not exist.
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
        """Name of the card and PyTorch's CUDA version."""
        return f"{torch.cuda.get_device_name(self.place)} {torch.version.cuda}"

    def free_bytes(self) -> int:
        """Return the card's free bytes, including those that PyTorch has reserved but does not use."""
        free, _ = torch.cuda.mem_get_info(self.place)
        kept = torch.cuda.memory_reserved(self.place) - torch.cuda.memory_allocated(self.place)
        return int(free + kept)

    def seconds(self, run: Run) -> float:
        """Return the seconds that one ``run`` takes on the device, timed by events over a recording.

        Timing a recording leaves out the time that Python takes to start the kernels.

        Raises:
            NotRecordedError: the run cannot be recorded, so it could not be part of a recorded step either.
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
        """Wait until all streams of the card are done."""
        torch.cuda.synchronize(self.place)

    def limits(self) -> DeviceLimits:
        """Return what the card's multiprocessors hold."""
        found = torch.cuda.get_device_properties(self.place)
        return DeviceLimits(
            num_sms=found.multi_processor_count,
            warps_per_sm=found.max_threads_per_multi_processor // found.warp_size,
            shared_bytes_per_sm=found.shared_memory_per_multiprocessor,
            warp_size=found.warp_size,
        )

    def record(self, run: Run) -> Run:
        """Capture ``run`` as a CUDA graph with its own memory pool, so that replays write nothing else."""
        if not self._records:
            raise NotRecordedError("recording is switched off")
        return self._capture(run)

    def _capture(self, run: Run) -> Run:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        # Thread-local, since the loader's threads may allocate pinned memory during the capture.
        capture = torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local")
        # torch.cuda.graph leaves its own stream the current one where the end of the capture fails.
        before = torch.cuda.stream(torch.cuda.current_stream(self.place))
        try:
            with torch.cuda.device(self.place), before, capture:
                run()
        except RuntimeError as error:
            _leave(self.place, pool)
            raise NotRecordedError(str(error).splitlines()[0]) from error
        return graph.replay


def _leave(place: torch.device, pool: tuple[int, int]) -> None:
    """Tell the allocator that a failed capture is over; otherwise it would refuse the next one."""
    with contextlib.suppress(AttributeError, RuntimeError):  # a private function, or already called
        torch._C._cuda_endAllocateToPool(place.index, pool)
