"""HardwareFile: the machine that an estimate is for: this one, or another that a file describes."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import ConfigDict

from graphbraid.collective.plan.records import STRICT, load_record, save_record
from graphbraid.errors import ConfigError
from graphbraid.estimates.allocation import capacity_bytes
from graphbraid.features.tiers.device_sizing import DeviceMemory
from graphbraid.fullgraph.measured.rates import machine_rates
from graphbraid.machine.hardware import Hardware
from graphbraid.signatures import typed
from graphbraid.train.tuning.device_memory import link_rate

_KIND = "hardware"
_RATES = ("disk_bytes_per_second", "multiply_flops", "row_bytes_per_second", "link_bytes_per_second")


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareFile:
    """What an estimate asks of a machine; fields that are None are not known, and limit nothing."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str = ""
    """Name of the machine in reports."""
    cores: int | None = None
    """Number of cores that a run may use."""
    memory_bytes: int | None = None
    """Bytes of memory that a run may take."""
    device_memory_bytes: int | None = None
    """Bytes of memory of the device that a run may take. None: there is no device."""
    disk_bytes: int | None = None
    """Bytes that a run may write."""
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the machine to a JSON file.

        Raises:
            ResourceError: the file cannot be written.
        """
        save_record(self, _KIND, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HardwareFile:
        """Read a JSON file ``{"graphbraid": "hardware", "memory_bytes": ...}``; fields may be left out.

        Raises:
            DataError: the file does not exist or does not hold a valid machine.
        """
        return load_record(cls, _KIND, path)

    def slowness(self, here: HardwareFile) -> float:
        """Return how many times as long the same work takes as ``here``, by the rates that both have.

        The geometric mean of products and of rows at random, which training consists of; 1 where a
        machine's rates are not known.
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
        folder: where a run writes. If None, the working directory.
        with_rates: whether to give its rates, which are measured the first time.
    """
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
