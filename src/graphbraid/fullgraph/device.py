"""Device: the hardware that an engine runs on, which is the host or a CUDA device."""

from __future__ import annotations

import contextlib
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid import native
from graphbraid.arguments import as_count, as_device, check_type
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.machine.hardware import Hardware, free_memory_bytes

Run = Callable[[], object]


class NotRecordedError(RuntimeError):
    """Raised when a device cannot record a run; the message says why, as a sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLimits:
    """The most warps, blocks and shared memory that the multiprocessors of a device hold at a time.

    Raises:
        ConfigError: a number is less than 1.
    """

    num_sms: int
    """Streaming multiprocessors."""
    warps_per_sm: int
    """Warps that are resident on one."""
    shared_bytes_per_sm: int
    """Bytes of shared memory of one."""
    blocks_per_sm: int = 32
    """Blocks that are resident on one. PyTorch does not tell; devices of data centres have 32."""
    warp_size: int = 32
    """Threads of a warp."""

    def __post_init__(self) -> None:
        for name in ("num_sms", "warps_per_sm", "shared_bytes_per_sm", "blocks_per_sm", "warp_size"):
            as_count(getattr(self, name), name, least=1)


class Device(ABC):
    """Hardware that an engine runs on."""

    place: torch.device
    is_host: bool
    """Whether this is the host: the graph is already there, and starting a kernel is a function call."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Description of all that the speed depends on; measured rates are stored under it."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Return the bytes that can be allocated now; None if that is unknown."""

    @abstractmethod
    def seconds(self, run: Run) -> float:
        """Return the least seconds that ``run`` takes over several repeats after a warm-up.

        Raises:
            NotRecordedError: the device records each call that it times, and cannot record ``run``.
        """

    def wait(self) -> None:
        """Wait until all work given to the device is done; return at once if calls are synchronous."""
        return

    def follow(self, last: Any) -> Any:
        """Make the device's next work wait for ``last``, a stream or None; return the stream of that work."""
        return

    def limits(self) -> DeviceLimits | None:
        """Return the limits of its multiprocessors; None where it has none or does not tell."""
        return None

    @abstractmethod
    def record(self, run: Run) -> Run:
        """Record the work of ``run`` and return a call that repeats it on the same addresses.

        Raises:
            NotRecordedError: the device cannot record something that ``run`` does.
        """


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

        The minimum is closest to the time on a machine where nothing else runs.
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

_RUNS = 10
"""Runs in one timed recording: a kernel may take microseconds, and events resolve about half of one."""
_REPEATS = 5


class Cuda(Device):
    """A CUDA device; the only class of the engine that calls ``torch.cuda``.

    A recording is a CUDA graph: the kernels of a pass with their arguments, started by one call instead of
    one call each. Arguments passed by value are fixed at recording; memory that kernels read may change.

    Args:
        place: ``cuda`` (the current device) or ``cuda:N``.
        records: whether passes are recorded as CUDA graphs; False to measure the gain of recording.

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

        Timing a recording leaves out the time that Python takes to start the kernels. A run that cannot be
        recorded could not be part of a recorded step either.
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

    def follow(self, last: Any) -> torch.cuda.Stream:
        """Make the current stream wait for ``last``, if that is another one; return the current stream."""
        stream = torch.cuda.current_stream(self.place)
        if last is not None and last != stream:
            stream.wait_stream(last)
        return stream

    def limits(self) -> DeviceLimits:
        """Return the limits of the card's multiprocessors."""
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
            # Until the allocator is told that a failed capture is over, it refuses the next one.
            with contextlib.suppress(AttributeError, RuntimeError):  # a private function, or already called
                torch._C._cuda_endAllocateToPool(self.place.index, pool)
            raise NotRecordedError(str(error).splitlines()[0]) from error
        return graph.replay


def device_for(model: nn.Module, device: Device | torch.device | str | None = None) -> Device:
    """Return the device to run a model on: the one named, or that of its parameters.

    Raises:
        ConfigError: the device does not exist or is of an unsupported type, or the parameters are elsewhere.
    """
    check_type(model, "model", nn.Module, "a torch.nn.Module")
    places = {p.device for p in model.parameters()}
    if isinstance(device, Device):
        chosen = device
    else:
        named = as_device(device) if device is not None else next(iter(places), torch.device("cpu"))
        chosen = device_at(named)
    if elsewhere := [place for place in places if place != chosen.place]:
        raise ConfigError(
            f"the model has parameters on {elsewhere[0]}, but is to run on {chosen.place}; move it there "
            f"first, with model.to({str(chosen.place)!r})"
        )
    return chosen


def device_at(place: torch.device) -> Device:
    """Return the engine's device for a ``torch.device``; ConfigError if there is none, or of this type."""
    if place.type == "cpu":
        return HOST
    if place.type != "cuda":
        raise ConfigError(f"full-graph training runs on the CPU and on CUDA devices; got {place}")
    return Cuda(place)


def csc_on(csc: Csc, place: torch.device) -> Csc:
    """Return an adjacency on a device; the same object if it already is there."""
    if csc.indptr.device == place:
        return csc
    weight = None if csc.weight is None else csc.weight.to(place)
    return Csc(csc.indptr.to(place), csc.indices.to(place), csc.num_src, weight, trusted=True)


def on_place(graph: Graph, place: torch.device) -> Graph:
    """Return the graph with its topology and features on a device; the same object if they already are."""
    csc, x = graph.csc, graph.x
    csc = csc_on(csc, place)
    if isinstance(x, SparseFeatures) and x.values.device != place:
        x = replace(
            x, **{name: getattr(x, name).to(place) for name in ("indptr", "indices", "values")}, trusted=True
        )
    elif isinstance(x, ScaledFeatures | Tensor):
        x = x.to(place)
    return graph if csc is graph.csc and x is graph.x else graph.replace(csc=csc, x=x)
