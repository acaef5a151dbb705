"""Devices: what the engine asks of the place it runs on; everything of CUDA's stands in ``cuda.py``."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import nn

from graphbraid import native
from graphbraid.arguments import as_device, check_type
from graphbraid.errors import ConfigError
from graphbraid.machine.hardware import Hardware

Run = Callable[[], object]


class NotRecordedError(RuntimeError):
    """What a device could not record, as a sentence."""


class Device(ABC):
    """A place that an engine runs on."""

    place: torch.device
    is_host: bool
    """Whether the graph is there already, and kernels take no more than a call to start."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What its speed depends on, in words: rates measured under one name are kept for it."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Memory that can be taken now; None where that is not known."""

    @abstractmethod
    def seconds(self, run: Run) -> float:
        """The least time that ``run`` takes, over some repeats after it has warmed up.

        Raises:
            NotRecordedError: the device records what it times, and cannot record this.
        """

    def wait(self) -> None:
        """Until it has done what it was given; at once where a call returns when it is done."""
        return

    @abstractmethod
    def record(self, run: Run) -> Run:
        """What ``run`` does on the device, as one call that does it again on the same addresses.

        Raises:
            NotRecordedError: the device cannot record something that ``run`` does.
        """


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


def device_for(model: nn.Module, device: Device | torch.device | str | None = None) -> Device:
    """Where to run a model: the device named, or that of its parameters, which must be there.

    Raises:
        ConfigError: there is no such device, no engine for its kind, or the parameters are elsewhere.
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
    """The device at a place.

    Raises:
        ConfigError: there is none, or no engine for its kind.
    """
    if place.type == "cpu":
        return HOST
    if place.type != "cuda":
        raise ConfigError(f"full-graph training runs on the CPU and on CUDA devices; got {place}")
    from graphbraid.fullgraph.device.cuda import Cuda

    return Cuda(place)
