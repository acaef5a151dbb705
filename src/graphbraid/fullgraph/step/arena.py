"""Memory of a step: one allocation for all its rows, and pools of tensors that the caller may keep.

Buffers of the arena with disjoint lifetimes share bytes. A buffer is live from the first task that touches it
to the last. Buffers are placed from the largest to the smallest, each at the lowest offset where it overlaps
no buffer that is live at the same time. This greedy placement by size comes within a few per cent of the
largest number of bytes live at once, the lower bound that :class:`Arena` reports beside its size.

The engine's outputs and the parameters' gradients may be kept by the caller: as ``p.grad`` over several
steps, by an optimizer, in a list. They can therefore not lie in the arena. Autograd does not copy a gradient
that nothing else refers to, so a fresh tensor over the engine's memory becomes ``p.grad`` itself.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import View
from graphbraid.ops.cross_entropy import LentMemory

_MOST_KEPT = 3
"""Memories kept per shape; accumulating into ``p.grad`` needs two, the sum and the new gradient."""


class BufferPool:
    """Lends uninitialised tensors of one shape on the host."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        self._shape, self._dtype = tuple(shape), dtype
        self._memories: list[LentMemory] = []

    def lend(self) -> Tensor:
        """Return a tensor in memory that no other tensor uses, allocated only if all kept memory is lent."""
        if prod(self._shape) == 0:
            return torch.empty(self._shape, dtype=self._dtype)
        memory = next((m for m in self._memories if not m.is_out), None)
        if memory is None:
            if len(self._memories) == _MOST_KEPT:
                return torch.empty(self._shape, dtype=self._dtype)
            memory = LentMemory(prod(self._shape) * self._dtype.itemsize)
            self._memories.append(memory)
        return memory.lend(self._dtype).view(self._shape)

    def standing(self, loan: Tensor) -> Tensor | None:
        """Return a tensor over the memory of a loan that does not count as a loan.

        The memory lives as long as the pool. None if it is not among the kept memory.
        """
        whole = (m.whole(self._dtype) for m in self._memories)
        return next((t.view(self._shape) for t in whole if t.data_ptr() == loan.data_ptr()), None)


def copied(source: Tensor, pool: BufferPool | None, rows: Tensor | None = None) -> Tensor:
    """Copy ``source``, or its ``rows``, to memory of the pool; to new memory if there is no pool."""
    if pool is None:
        return source.clone() if rows is None else source.index_select(0, rows)
    out = pool.lend()
    return out.copy_(source) if rows is None else torch.index_select(source, 0, rows, out=out)


class ParameterGradients:
    """Collects the parameters' gradients of a backward pass, added up where a parameter is used twice.

    Args:
        on_host: whether memory is lent from pools; a device's allocator reuses its own.
    """

    def __init__(self, *, on_host: bool) -> None:
        self._on_host = on_host
        self._found: dict[int, Tensor] = {}
        self._pools: dict[int, BufferPool] = {}

    def lend(self, parameter: nn.Parameter) -> Tensor:
        """Return memory for a parameter's gradient, to be written and then passed to :meth:`give`."""
        if not self._on_host:
            return torch.empty_like(parameter, memory_format=torch.contiguous_format)
        if id(parameter) not in self._pools:
            self._pools[id(parameter)] = BufferPool(parameter.shape, parameter.dtype)
        return self._pools[id(parameter)].lend()

    def standing(self, parameter: nn.Parameter, loan: Tensor) -> Tensor | None:
        """Return :meth:`BufferPool.standing` of a loan of :meth:`lend`."""
        return self._pools[id(parameter)].standing(loan)

    def give(self, parameter: nn.Parameter, grad: Tensor) -> None:
        """Store a parameter's gradient, or add to it if the parameter is used more than once."""
        before = self._found.get(id(parameter))
        grad = grad.reshape(parameter.shape)
        self._found[id(parameter)] = grad if before is None else before.add_(grad)

    def give_part(self, parameter: nn.Parameter, view: View, grad: Tensor) -> None:
        """Store, or add to, the gradient of a parameter from that of a view of it."""
        whole = self._found.get(id(parameter))
        if whole is None:
            whole = self._found[id(parameter)] = self.lend(parameter).zero_()
        view.add_gradient(grad, whole)

    def of(self, parameter: nn.Parameter) -> Tensor | None:
        """Return a parameter's gradient so far; None if it has none."""
        return self._found.get(id(parameter))

    def take(self) -> dict[int, Tensor]:
        """Return the gradients of this backward pass, by the parameter's ``id``, and forget them."""
        found, self._found = self._found, {}
        return found


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
