"""Tensors that several processes of one machine read: handles of their memory, and their opening."""

import platform
import uuid
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, multiprocessing
from torch.multiprocessing import reductions

from graphbraid.errors import ConfigError

_TRIES = 30
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def handle_of(tensor: Tensor) -> bytes:
    """Return a handle by which another process of this machine opens a tensor's memory.

    On a CUDA device it is one of CUDA's inter-process memory handles; a tensor of the host moves to shared
    memory, which is opened by name, also by a process that was started apart from this one. The tensor must
    live as long as another process reads it. RuntimeError if it cannot be shared.
    """
    reductions.init_reductions()  # type: ignore[no-untyped-call]
    before = multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    try:
        return bytes(_patiently(ForkingPickler.dumps, tensor))
    finally:
        multiprocessing.set_sharing_strategy(before)  # type: ignore[no-untyped-call]


def opened(handle: bytes) -> Tensor:
    """Return the tensor of a handle that another process has made, in that process's memory.

    Raises:
        RuntimeError, OSError: the memory cannot be opened.
    """
    tensor = _patiently(ForkingPickler.loads, handle)
    assert isinstance(tensor, Tensor)
    return tensor


def _patiently(call: Callable[[Any], Any], argument: Any) -> Any:
    """Return what a call returns that shares memory of the host.

    PyTorch gives the process that keeps such memory one second to answer, which is little on a busy machine.
    An answer that comes later is read as that of the next try.
    """
    for _ in range(_TRIES):
        try:
            return call(argument)
        except RuntimeError as error:
            if "connection has timed out" not in str(error):
                raise
    return call(argument)


def check_reads(device: torch.device, other: torch.device, instead: str) -> None:
    """Check that a device reads another's memory, and enable it; ConfigError if it cannot.

    Args:
        device: the one that reads.
        other: the one whose memory it is.
        instead: advice if it cannot, for the message.
    """
    if device == other or device.type == other.type == "cpu":
        return
    if not torch.cuda.can_device_access_peer(device, other):
        raise ConfigError(f"{device} cannot read the memory of {other}, as peers must; {instead}")
    # A copy enables access one way: PyTorch lets its source's device access its destination.
    torch.empty(1, device=other).copy_(torch.empty(1, device=device))


def machine_name() -> str:
    """Return a text that differs from machine to machine, and from one start of a machine to the next."""
    boot = _BOOT.read_text().strip() if _BOOT.is_file() else f"{uuid.getnode():x}"
    return f"{platform.node()} {boot}"
