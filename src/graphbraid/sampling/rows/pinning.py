"""Locks the pages of a large table in place, chunk by chunk, so that a device reads it without a second copy.

Memory that the driver allocates page-locked is a copy, and PyTorch's allocator rounds its size up to a power
of two. A table that is registered in place takes no memory; each process registers its own mapping of shared
memory. The calls of the driver are behind :class:`Registrar`; those of CUDA were written on machines without
a device and have not been run on one yet.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import weakref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from graphbraid.files import mapped
from graphbraid.files.writing import format_bytes

_log = logging.getLogger(__name__)

WORTH_BYTES = 64 << 20
"""Smallest table that is registered; a smaller one is copied to page-locked memory sooner."""
CHUNK_BYTES = 1 << 30
"""Bytes locked by one call: drivers refuse very large calls, and a failure then names the chunk."""
_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device


class Registrar:
    """The CUDA runtime's calls that lock and unlock pages."""

    def register(self, address: int, num_bytes: int) -> str:
        """Lock the pages of some memory; return the reason of a refusal, else an empty string."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = runtime.cudaHostRegister(address, num_bytes, _PORTABLE)
        if int(error) == 0:
            return ""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")  # the error stays the runtime's last one until a launch reports it
        return str(runtime.cudaGetErrorString(error))

    def unregister(self, address: int) -> None:
        """Unlock the pages of the memory that was registered at this address."""
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def pinned(table: Tensor, registrar: Registrar | None = None) -> Tensor:
    """Return a table in page-locked memory: itself if its pages can be locked, else a copy.

    The pages stay locked as long as the tensor that is returned. Where they cannot be locked, which a warning
    says, the copy takes as much memory again.

    Args:
        table: on the CPU, contiguous.
        registrar: the driver's calls. If None, CUDA's.
    """
    lock = _lock_over(table)
    if lock is not None:  # of another tensor: the pages stay locked as long as either of them lives
        _LOCKS[table] = lock
        return table
    if table.is_pinned():
        return table
    if table.nbytes < WORTH_BYTES:
        return table.pin_memory()
    why = _register(table, registrar or Registrar())
    if not why:
        return table
    _log.warning(
        "%s of host memory cannot be page-locked where they are (%s): they are copied to page-locked memory, "
        "which takes as much again",
        format_bytes(table.nbytes),
        why,
    )
    return table.pin_memory()


_LOCKS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Tensors whose pages are locked, and the lock."""
_BY_PLACE: weakref.WeakValueDictionary[tuple[int, int], _Lock] = weakref.WeakValueDictionary()
"""Locks of this process by address and size: pages can be registered once."""


class _Lock:
    """The locked pages of one table, unlocked with the last reference before the memory can be freed."""

    def __init__(self, table: Tensor, addresses: list[int], registrar: Registrar) -> None:
        self._finalizer = weakref.finalize(self, _unlock, table.detach(), addresses, registrar)


def _unlock(table: Tensor, addresses: list[int], registrar: Registrar) -> None:
    for address in addresses:
        registrar.unregister(address)
    del table  # kept its memory alive until now


def _lock_over(table: Tensor) -> _Lock | None:
    """Return the lock of pages that hold all of a table; None if there is none."""
    first, end = table.data_ptr(), table.data_ptr() + table.nbytes
    held = list(_BY_PLACE.items())
    return next((lock for (begin, size), lock in held if begin <= first and end <= begin + size), None)


def _register(table: Tensor, registrar: Registrar) -> str:
    """Lock a table's pages; return the reason of a failure, else an empty string."""
    place = table.data_ptr(), table.nbytes
    if mapped.find(*place) is not None:
        return "they are mapped from a file"
    addresses: list[int] = []
    for begin, end in chunks_of(*place):
        why = registrar.register(begin, end - begin)
        if why:
            for address in addresses:
                registrar.unregister(address)
            locked = format_bytes(begin - place[0])
            return f"{why}, after {locked}"
        addresses.append(begin)
    _LOCKS[table] = _BY_PLACE[place] = _Lock(table, addresses, registrar)
    return ""


def chunks_of(address: int, num_bytes: int, chunk_bytes: int | None = None) -> list[tuple[int, int]]:
    """Return the address ranges that some memory is locked by: all but the first begin with a page."""
    step, page = chunk_bytes or CHUNK_BYTES, mmap.PAGESIZE
    end = address + num_bytes
    first = (address // page) * page
    begins = [address, *range(first + step, end, step)]
    return list(zip(begins, [*begins[1:], end], strict=True))
