"""A machine as an estimate sees it: memory and rates of host and device, and a rank's part of them."""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from graphbraid.collective.run.stages import ReportsMemory
from graphbraid.errors import ConfigError
from graphbraid.estimates.allocation import capacity_bytes
from graphbraid.features.tiers.device_sizing import DeviceMemory
from graphbraid.files.schema import SavedRecord
from graphbraid.files.writing import format_bytes
from graphbraid.machine.hardware import Hardware, free_memory_bytes, memory_group, own_anonymous_bytes
from graphbraid.machine.shared_tensors import machine_name
from graphbraid.signatures import typed
from graphbraid.train.runtime import device_named

if TYPE_CHECKING:
    from graphbraid.collective.run.stages import Accelerator
    from graphbraid.distributed import Communicator

_Number = TypeVar("_Number", int, float)
_RATES = ("disk_bytes_per_second", "multiply_flops", "row_bytes_per_second", "link_bytes_per_second")


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
        for name in ("cores", "memory_bytes", "device_memory_bytes", "disk_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1; got {value!r}")
        for name in _RATES:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a positive number; got {value!r}")

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

    Args:
        folder: folder that a run writes to. If None, the working directory.
        with_rates: whether to include its rates, which are measured the first time.
    """
    from graphbraid.fullgraph.measured.rates import machine_rates  # here: runs measure none

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

    Args:
        name: of the model's device, as the option ``device``.
        accelerator: what prepares and transfers mini-batches. If None, the model's device.
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

    Args:
        comm: the ranks.
        device: this rank's device. If None, its mini-batches stay on the host.
        name: name of the device's memory, from :func:`memory_name`. If empty, no other rank uses it.

    Raises:
        RankError: a rank was lost.
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

    Args:
        name: of the model's device, as the option ``device``.
        accelerator: what prepares and transfers mini-batches. If None, the model's device.
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
