"""The part of a machine's and of a device's free memory that a rank may take where others use them, too."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import torch

from graphbraid.features.tiers.device_sizing import DeviceMemory
from graphbraid.files.writing import format_bytes
from graphbraid.machine.hardware import free_memory_bytes, own_anonymous_bytes
from graphbraid.machine.shared_tensors import machine_name
from graphbraid.train.step.whole import device_named

if TYPE_CHECKING:
    from graphbraid.collective.run.protocols import Accelerator
    from graphbraid.distributed import Communicator


class RankMemory(NamedTuple):
    """What a rank may take by which ``tiers="auto"`` sizes its tiers."""

    host_bytes: int | None
    """Memory of the machine in place of this process; None if it is not known."""
    device: DeviceMemory | None
    """Memory of the device and its link; None where mini-batches stay on the host."""
    reason: str
    """What is divided among whom, in words; empty where nothing is."""


def memory_of_rank(comm: Communicator, device: DeviceMemory | None, name: str) -> RankMemory:
    """Return a rank's parts of what is free now; all ranks of the job call it together.

    Ranks of a machine divide its memory, and ranks whose devices have the same name divide the device's. Each
    part is that of the least that any of them has found free.

    Args:
        comm: the ranks.
        device: this rank's device. If None, its mini-batches stay on the host.
        name: of the device's memory on this machine, from :func:`memory_name`. If empty, no other rank's.

    Raises:
        RankError: a rank was lost.
    """
    here, own = machine_name(), own_anonymous_bytes()
    free_there = None if device is None else device.free_bytes
    known = comm.gather([here, free_memory_bytes(), name, free_there])
    beside = [rank for rank, given in enumerate(known) if given[0] == here]
    on_device = [rank for rank in beside if name and known[rank][2] == name] or [comm.rank]
    free, said = _least([known[rank][1] for rank in beside]), list[str]()
    host = None if free is None else max(1, free // len(beside) + own)
    if len(beside) > 1 and free is not None:
        said.append(f"{len(beside)} ranks divide the {format_bytes(free)} that are free on their machine")
    if device is not None and len(on_device) > 1:
        there = _least([known[rank][3] for rank in on_device])
        if there is not None:
            said.append(f"{len(on_device)} ranks use one device and divide its free {format_bytes(there)}")
            there //= len(on_device)
        device = dataclasses.replace(device, free_bytes=there)
    return RankMemory(host, device, "; ".join(said))


def memory_name(name: str, accelerator: Accelerator | None) -> str:
    """Return what tells the memory of a run's device from that of others on its machine; empty if nothing.

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


def _least(sizes: list[int | None]) -> int | None:
    """Return the least of sizes that are all known; None if one is not."""
    known = [size for size in sizes if size is not None]
    return min(known) if len(known) == len(sizes) else None


__all__ = ["RankMemory", "memory_name", "memory_of_rank"]
