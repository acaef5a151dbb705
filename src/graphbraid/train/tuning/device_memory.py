"""The memory of a run's device and the rate of its link, by which ``tiers="auto"`` sizes rows there."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import torch

from graphbraid.collective.run.protocols import ReportsMemory
from graphbraid.features.tiers.device_sizing import DeviceMemory
from graphbraid.train.step.whole import device_named

if TYPE_CHECKING:
    from graphbraid.collective.run.protocols import Accelerator

COPIED_BYTES = 32 << 20
"""Bytes that are copied to measure the link's rate."""
_COPIES = 4  # of which the first one, for which memory is taken, does not count


def device_memory(name: str, accelerator: Accelerator | None) -> DeviceMemory | None:
    """Return the memory and the link of the device that mini-batches go to; None if that is the host.

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
    on_cuda = device.type == "cuda"
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, pin_memory=on_cuda)
    target, taken = torch.empty_like(source, device=device), list[float]()
    for _ in range(_COPIES):
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        if on_cuda:
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - started)
    return COPIED_BYTES / max(median(taken[1:]), 1e-9)
