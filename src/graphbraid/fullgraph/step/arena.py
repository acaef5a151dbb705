"""Arena: one allocation for all rows of a step; buffers with disjoint lifetimes share bytes.

A buffer is live from the first task that touches it to the last. Buffers are placed from the largest to the
smallest, each at the lowest offset where it overlaps no buffer that is live at the same time. This greedy
placement by size comes within a few per cent of the largest number of bytes live at once, the lower bound
that :class:`Arena` reports beside its size.
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
    """A matrix in the arena."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    offset: int = -1
    first: int = -1
    """Index of the first task that touches it."""
    last: int = -1
    """Index of the last task that touches it."""
    _tensor: Tensor | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes it takes, rounded up to a cache line."""
        size = prod(self.shape) * self.dtype.itemsize
        return (size + _ALIGN - 1) // _ALIGN * _ALIGN

    @property
    def tensor(self) -> Tensor:
        """The matrix; available once the arena is allocated."""
        assert self._tensor is not None, f"{self.name} has no place yet"
        return self._tensor

    def put_in(self, memory: Tensor) -> None:
        """Take its place, at :attr:`offset`, in the arena's memory."""
        size = prod(self.shape) * self.dtype.itemsize
        self._tensor = memory[self.offset : self.offset + size].view(self.dtype).view(self.shape)


@dataclass(eq=False, slots=True)
class FirstRows:
    """The first rows of a buffer."""

    buffer: Buffer
    count: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.buffer.shape[1]

    @property
    def tensor(self) -> Tensor:
        """The rows, ``(count, width)``."""
        whole = self.buffer.tensor
        return whole if self.count == self.buffer.shape[0] else whole[: self.count]


@dataclass(eq=False, slots=True)
class Constant:
    """A matrix that no step changes, computed when the planned step is allocated."""

    shape: tuple[int, int]
    make: Callable[[], Tensor]
    is_copy: bool
    """Whether it takes memory of its own."""
    _tensor: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """The matrix."""
        if self._tensor is None:
            self._tensor = self.make()
        return self._tensor

    @property
    def nbytes(self) -> int:
        """Bytes it takes in addition to the loaded graph."""
        return 4 * self.shape[0] * self.shape[1] if self.is_copy else 0

    def first(self, count: int) -> Constant:
        """Return its first rows, as a view."""
        return Constant((count, self.shape[1]), lambda: self.tensor[:count], is_copy=False)


Rows = FirstRows | Constant
"""The rows of a value. A task reads ``tensor`` while it runs; before, the memory may not be there."""


@dataclass(frozen=True, slots=True)
class StepTask:
    """A kernel call with the buffers it touches."""

    name: str
    run: Callable[[], object]
    touches: tuple[Buffer, ...]
    operation: str = ""
    """Name of the value whose operation it was planned for."""


class Arena:
    """Places the buffers of a list of tasks in one allocation.

    Args:
        tasks: the tasks in the order they run.
        keep: buffers that must outlive the last task, such as the output.
    """

    def __init__(self, tasks: Sequence[StepTask], keep: Iterable[Buffer] = ()) -> None:
        self.buffers = _with_lifetimes(tasks, keep)
        self.nbytes = place(self.buffers)
        """Bytes of the allocation."""
        self.least_bytes = most_live_bytes(self.buffers)
        """Largest number of bytes live at once, a lower bound of any placement."""
        self.separate_bytes = sum(b.nbytes for b in self.buffers)
        """Bytes if each buffer were an allocation of its own."""

    def allocate(self, place: torch.device = _HOST) -> None:
        """Allocate the memory and give each buffer its tensor.

        Args:
            place: the device to allocate on.

        Raises:
            RuntimeError: there is too little memory.
        """
        has_pages = place.type == "cpu" and self.nbytes >= _HUGE_PAGE
        page = _HUGE_PAGE if has_pages else _ALIGN
        size = self.nbytes + page
        whole = in_huge_pages(size) if has_pages else torch.empty(size, dtype=torch.uint8, device=place)
        start = -whole.data_ptr() % page
        for buffer in self.buffers:
            buffer.put_in(whole[start:])


def in_huge_pages(nbytes: int) -> Tensor:
    """Allocate memory and ask the system to use 2 MiB pages for it.

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
        raise RuntimeError(f"the system cannot provide {nbytes:,} bytes") from error
    with contextlib.suppress(OSError):  # a kernel built without huge pages: small pages do
        pages.madvise(advice)
    return torch.frombuffer(pages, dtype=torch.uint8)


def place(buffers: Sequence[Buffer]) -> int:
    """Give each buffer an offset and return the total bytes."""
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
    """Return the largest number of bytes live at any one task."""
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
