"""The tasks of a step: the memory that they share, and kernel calls that are bound to it.

Buffers of the arena with disjoint lifetimes share bytes. A buffer is live from the first task that touches it
to the last. Buffers are placed from the largest to the smallest, each at the lowest offset where it overlaps
no buffer that is live at the same time. This greedy placement by size comes within a few per cent of the
largest number of bytes live at once, the lower bound that :class:`Arena` reports beside its size.

The engine's outputs and the parameters' gradients may be kept by the caller: as ``p.grad`` over several
steps, by an optimizer, in a list. They can therefore not lie in the arena. Autograd does not copy a gradient
that nothing else refers to, so a fresh tensor over the engine's memory becomes ``p.grad`` itself.

Passing an array takes microseconds, longer than a kernel runs on a small graph. The arena, a level's edges
and their coefficients do not move, so once a task has given its kernel the same memory twice, the call is
bound: its arguments stay on the C++ side, which from then on checks and runs them (:class:`BoundCall`).
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid import native
from graphbraid.fullgraph.program import View
from graphbraid.ops.cross_entropy import LentMemory
from graphbraid.ops.gather import copy_rows
from graphbraid.ops.kernels import backend, watched
from graphbraid.ops.library import RowEpilogue
from graphbraid.ops.rng import draw_seed

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
    with native.awake_threads():
        if rows is None:
            return copy_rows(source, out)
        table = source.view(torch.uint8)
        backend(table).gather_rows(table, rows, out.view(torch.uint8))
    return out


class ParameterGradients:
    """Collects the parameters' gradients of a backward pass, added up where a parameter is used twice.

    On the host, memory is lent from pools; a device's allocator reuses its own.
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
    """Places the buffers of tasks, in the order they run, in one allocation; ``keep`` outlives the last."""

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


# ---- seeds and masks of dropout


class Seeds:
    """Seeds that each mask draws when it is made; a repeated forward pass gets the same seeds."""

    def __init__(self) -> None:
        self.repeats = False
        """Whether the running forward pass repeats an earlier one."""
        self._drawn: list[int] = []

    def drawn(self) -> tuple[int, ...]:
        """Return the seeds of the last forward pass. :meth:`put_back` takes them to repeat the pass."""
        return tuple(self._drawn)

    def put_back(self, drawn: Sequence[int]) -> None:
        """Give the next forward pass the seeds of an earlier one."""
        self._drawn = list(drawn)

    def add(self) -> Callable[[], int | Tensor]:
        """Add a mask; return a function that gives its seed, to be called once in every forward pass."""
        number = len(self._drawn)
        self._drawn.append(0)

        def seed() -> int:
            if not self.repeats:
                self._drawn[number] = draw_seed()
            return self._drawn[number]

        return seed

    def draw(self) -> None:
        """Prepare the seeds of a forward pass; nothing to do if masks draw their own."""


class SeedsInMemory(Seeds):
    """Seeds in memory that kernels read as they run, so that a recorded pass gets new masks.

    They are drawn in the order of the masks, so that a generator's state gives the same masks as on the CPU.
    """

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self._place = place
        self._slots: list[Tensor] = []

    def add(self) -> Callable[[], int | Tensor]:
        """Add a mask; return a function that gives its seed, a ``(1,)`` int64 tensor."""
        number = len(self._drawn)
        self._drawn.append(0)
        return lambda: self._slots[number]

    def draw(self) -> None:
        """Write the seeds of the next forward pass."""
        if len(self._slots) < len(self._drawn):
            self._slots = list(torch.zeros(len(self._drawn), 1, dtype=torch.int64, device=self._place))
        self.put_back([draw_seed() for _ in self._slots])

    def put_back(self, drawn: Sequence[int]) -> None:
        """Write the seeds of an earlier forward pass."""
        super().put_back(drawn)
        for slot, seed in zip(self._slots, drawn, strict=True):
            slot.fill_(seed)  # passed with the kernel launch: no copy, no synchronization


@dataclass(frozen=True, eq=False, slots=True)
class Mask:
    """A dropout mask, which depends on the seed and on each row's node, not on the row's position."""

    p: float
    seed: int | Tensor = 0
    """A number, or a ``(1,)`` int64 tensor that kernels read as they run."""
    nodes: Tensor | None = None
    """``(num_rows,)`` int64 node of each row; None if row v is node v."""


class EpilogueMask:
    """The mask of one epilogue: its forward pass draws it, and its backward pass reads it again."""

    def __init__(self, p: float, seeds: Seeds, nodes: Tensor | None) -> None:
        self._p, self._nodes = p, nodes
        self._seed: Callable[[], int | Tensor] = seeds.add() if p > 0 else lambda: 0
        self._last = Mask(p)

    def of_forward(self) -> Mask:
        """Draw the mask for the forward pass, and return it."""
        self._last = Mask(self._p, self._seed(), self._nodes if self._p > 0 else None)
        return self._last

    def of_backward(self, nodes: Tensor | None = None) -> Mask:
        """Return the mask that was drawn last, for all rows or for rows of these nodes."""
        if nodes is None or self._p == 0:
            return self._last
        return replace(self._last, nodes=nodes)

    def seed(self, mask: Callable[[], Mask]) -> MaskSeed | None:
        """Return the seed of a bound call with ``mask``, one of the masks above; None without dropout."""
        if self._p == 0:
            return None
        return MaskSeed(draw=lambda: mask().seed, drawn=lambda: self._last.seed)


_TRIES = 4
"""After this many watched runs without two alike, a call is no longer watched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskSeed:
    """The seed of a call's dropout mask."""

    draw: Callable[[], Any]
    """Draws the seed of the next run."""
    drawn: Callable[[], Any]
    """Returns the seed of the last run."""


class BoundCall:
    """A call of one kernel that runs in every step.

    The first two runs are watched, and the arguments of the first are kept alive until the second is done.
    Memory that both runs gave the kernel is therefore not a temporary copy, which could not have got the same
    address twice.

    Args:
        run: calls the kernel and does nothing else; takes the gradient's memory, if any, as its argument.
        seed: the seed of the call's dropout mask. If None, it has no mask.
        gradient_of: the parameter whose gradient the kernel writes, and the pool of its memory. If None, the
            kernel writes memory that does not move.
    """

    __slots__ = ("_bound", "_gradient_of", "_run", "_seed", "_seen", "_tries")

    def __init__(
        self,
        run: Callable[..., object],
        *,
        seed: MaskSeed | None = None,
        gradient_of: tuple[nn.Parameter, ParameterGradients] | None = None,
    ) -> None:
        self._run, self._seed = run, seed
        self._gradient_of = gradient_of
        self.forget()

    def forget(self) -> None:
        """Release all arguments and watch again, because a parameter has moved."""
        self._bound: dict[int, Any] = {}
        self._seen: tuple[list[Any], tuple[Any, ...]] | None = None
        self._tries = 0

    def __call__(self) -> None:
        """Run the kernel."""
        out = self._lend()
        bound = self._bound.get(0 if out is None else out.data_ptr())
        if bound is None:
            self._look(out)
        else:
            if self._seed is not None:
                bound.set_seed(self._seed.draw())
            bound.run()
        self._give(out)

    def run_once(self) -> None:
        """Run the kernel with its arguments passed anew, so that a record of calls sees them."""
        out = self._lend()
        self._run(*(() if out is None else (out,)))
        self._give(out)

    def _lend(self) -> Tensor | None:
        if self._gradient_of is None:
            return None
        parameter, gradients = self._gradient_of
        return gradients.lend(parameter)

    def _give(self, out: Tensor | None) -> None:
        if out is not None and self._gradient_of is not None:
            parameter, gradients = self._gradient_of
            gradients.give(parameter, out)

    def _look(self, out: Tensor | None) -> None:
        given = () if out is None else (out,)
        if self._tries >= _TRIES:
            self._run(*given)
            return
        self._tries += 1
        with watched() as calls:
            self._run(*given)
        call = self._standing(calls, out)
        if call is None:
            self._tries = _TRIES
            return
        name, arguments = call
        seen = self._memory_of(arguments, out)
        if self._seen is not None and self._seen[0] == seen:
            bind = getattr(native.kernels().bound, name)  # type: ignore[union-attr]
            self._bound[0 if out is None else out.data_ptr()] = bind(*arguments)
            self._tries = 0  # to watch again for the pool's other memories
            if out is None:
                self._seen = None
                return
        self._seen = seen, arguments

    def _standing(
        self, calls: list[tuple[str, tuple[Any, ...]]], out: Tensor | None
    ) -> tuple[str, tuple[Any, ...]] | None:
        """Return the run's only call, with lent arguments replaced; None unless it can be bound."""
        kernels = native.kernels()
        if kernels is None or len(calls) != 1 or not hasattr(kernels.bound, calls[0][0]):
            return None
        ((name, arguments),) = calls
        if out is None or self._gradient_of is None:
            return name, arguments
        parameter, gradients = self._gradient_of
        stays = gradients.standing(parameter, out)
        places = [i for i, given in enumerate(arguments) if _is(given, out)]
        if stays is None or len(places) != 1:
            return None
        (place,) = places
        return name, (*arguments[:place], stays.view(arguments[place].shape), *arguments[place + 1 :])

    def _memory_of(self, arguments: tuple[Any, ...], out: Tensor | None) -> list[Any]:
        """Return the identity of a call's arguments, except lent memory and the seed."""
        seed = None if self._seed is None else self._seed.drawn()
        found: list[Any] = []
        for given in arguments:
            if isinstance(given, RowEpilogue):
                found += self._memory_of(given, out)
            elif isinstance(given, Tensor):
                where = 0 if out is not None and _is(given, out) else given.data_ptr()
                found.append((where, given.shape, given.stride(), given.dtype))
            else:
                found.append("seed" if seed is not None and type(given) is int and given == seed else given)
        return found


def _is(given: object, out: Tensor) -> bool:
    return isinstance(given, Tensor) and given.data_ptr() == out.data_ptr() and given.numel() == out.numel()
