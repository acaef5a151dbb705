"""One allocation for every buffer of an engine: two buffers share bytes where their lifetimes do not meet.

A buffer is live from the first task that touches it to the last. Buffers are placed from the largest to the
smallest, each at the lowest offset where it meets no live neighbour: greedy by size, which comes within a few
per cent of the largest number of bytes live at once, the lower bound that :class:`Arena` reports beside its
size.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

_ALIGN = 64  # bytes of a cache line
_HUGE_PAGE = 1 << 21
_HOST = torch.device("cpu")


@dataclass(eq=False, slots=True)
class Buffer:
    """A matrix that lives in the arena."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    offset: int = -1
    first: int = -1
    """The first task that touches it."""
    last: int = -1
    """The last task that touches it."""
    _tensor: Tensor | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes it takes, rounded up to a cache line."""
        size = prod(self.shape) * self.dtype.itemsize
        return (size + _ALIGN - 1) // _ALIGN * _ALIGN

    @property
    def tensor(self) -> Tensor:
        """The matrix; there once the arena is made."""
        assert self._tensor is not None, f"{self.name} has no place yet"
        return self._tensor


@dataclass(frozen=True, slots=True)
class StepTask:
    """One call of a kernel, with the buffers it touches."""

    name: str
    run: Callable[[], object]
    touches: tuple[Buffer, ...]
    operation: str = ""
    """The value of the operation that it was planned for."""


class Arena:
    """Places the buffers of ``tasks`` in one allocation.

    Args:
        tasks: in the order they run.
        keep: buffers that must outlive the last task, such as the output.
    """

    def __init__(self, tasks: Sequence[StepTask], keep: Iterable[Buffer] = ()) -> None:
        self.buffers = _with_lifetimes(tasks, keep)
        self.nbytes = place(self.buffers)
        """Size of the allocation."""
        self.least_bytes = most_live_bytes(self.buffers)
        """The most bytes that are live at once: no copies can do with fewer."""
        self.separate_bytes = sum(b.nbytes for b in self.buffers)
        """Bytes if each buffer were an allocation of its own."""

    def allocate(self, place: torch.device = _HOST) -> None:
        """Make the allocation and give each buffer its tensor.

        Args:
            place: the device that the memory is of.

        Raises:
            RuntimeError: there is too little memory.
        """
        has_pages = place.type == "cpu" and self.nbytes >= _HUGE_PAGE
        page = _HUGE_PAGE if has_pages else _ALIGN
        size = self.nbytes + page
        whole = _in_huge_pages(size) if has_pages else torch.empty(size, dtype=torch.uint8, device=place)
        start = -whole.data_ptr() % page
        for buffer in self.buffers:
            size = prod(buffer.shape) * buffer.dtype.itemsize
            begin = start + buffer.offset
            buffer._tensor = whole[begin : begin + size].view(buffer.dtype).view(buffer.shape)


def _in_huge_pages(nbytes: int) -> Tensor:
    """Memory for which the system is asked for 2 MiB pages.

    Aggregation reads rows at random, and with 4 KiB pages most of these reads also miss the TLB.

    Raises:
        RuntimeError: there is too little memory.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return torch.empty(nbytes, dtype=torch.uint8)
    try:
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise RuntimeError(f"the system has no {nbytes:,} bytes to give") from error
    with contextlib.suppress(OSError):  # built without such pages: the plain ones serve
        pages.madvise(advice)
    return torch.frombuffer(pages, dtype=torch.uint8)


def place(buffers: Sequence[Buffer]) -> int:
    """Give each buffer an offset; returns the bytes of the whole."""
    placed: list[Buffer] = []
    total = 0
    for buffer in sorted(buffers, key=lambda b: (-b.nbytes, b.first)):
        taken = sorted(
            (other.offset, other.offset + other.nbytes)
            for other in placed
            if other.first <= buffer.last and buffer.first <= other.last
        )
        offset = 0
        for begin, end in taken:
            if offset + buffer.nbytes <= begin:
                break
            offset = max(offset, end)
        buffer.offset = offset
        placed.append(buffer)
        total = max(total, offset + buffer.nbytes)
    return total


def most_live_bytes(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are live at one task."""
    times = {b.first for b in buffers}
    return max((sum(b.nbytes for b in buffers if b.first <= t <= b.last) for t in times), default=0)


def _with_lifetimes(tasks: Sequence[StepTask], keep: Iterable[Buffer]) -> list[Buffer]:
    seen: dict[int, Buffer] = {}
    for time, task in enumerate(tasks):
        for buffer in task.touches:
            if id(buffer) not in seen:
                seen[id(buffer)] = buffer
                buffer.first = time
            buffer.last = time
    for buffer in keep:
        buffer.last = len(tasks)
    return list(seen.values())
