"""GatherAhead: a thread gathers the rows of sampled batches ahead of their use, into reused RowBuffers."""

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from math import prod

import torch
from torch import Tensor

from graphbraid.ops.cross_entropy import LentMemory
from graphbraid.sampling.rows.by_id import FeatureSource
from graphbraid.sampling.sample import PreparedBatch

_SLACK = 8
"""A new buffer is larger by an eighth, since the next batch may have more rows."""


class RowBuffers:
    """Lends uninitialised tensors of any number of rows; users may keep them for as long as they like.

    One thread writes the rows of a batch and another frees them, a few megabytes of changing size. The
    system's allocator would keep up to twice that memory. At most ``most`` are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[LentMemory] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, lent or not."""
        return sum(memory.nbytes for memory in self._kept)

    def lend(self, num_rows: int, row_shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return a ``(num_rows, *row_shape)`` tensor."""
        count = num_rows * prod(row_shape)
        needed = count * dtype.itemsize
        if needed == 0:
            return torch.empty((num_rows, *row_shape), dtype=dtype)
        free = [memory for memory in self._kept if not memory.is_out]
        memory = next((memory for memory in free if memory.nbytes >= needed), None)
        if memory is None:
            if free:
                self._kept.remove(free[0])  # too small from now on
            elif len(self._kept) == self._most:
                return torch.empty((num_rows, *row_shape), dtype=dtype)
            memory = LentMemory(needed + needed // _SLACK)
            self._kept.append(memory)
        # The end of a buffer need not be a whole element of another dtype.
        return memory.lend(dtype, count).view(num_rows, *row_shape)


_SECONDS = 0.05  # between looks at whether the thread has ended


class GatherAhead:
    """Gives the batches of a pipeline with their rows, in their order.

    The ids of a batch are known once it is sampled. ``rows.lookahead`` batches are announced before the first
    of them is gathered, so that a cache of rows knows its next reads. At most ``ready`` batches wait with
    their rows; ``count`` is called with the seconds that each batch's rows took.
    """

    def __init__(
        self,
        prepared: Iterator[PreparedBatch],
        rows: FeatureSource,
        ready: int,
        count: Callable[[float], None],
    ) -> None:
        self._prepared, self._rows, self._count = prepared, rows, count
        # Those that wait, the one being made, the caller's, and one that he has not let go of yet.
        self._buffers = RowBuffers(max(ready, 1) + 3)
        self._ready: queue.Queue[PreparedBatch | BaseException | None] = queue.Queue(max(ready, 1))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="graphbraid-gather", daemon=True)
        # Also where the interpreter ends: a thread that then still ran compiled code would take it down.
        self._finalizer = weakref.finalize(self, _end, self._ending, self._ready, self._thread)

    def batches(self) -> Generator[PreparedBatch]:
        """The batches with their rows; the thread ends with this iteration."""
        self._thread.start()
        try:
            while (got := self._ready.get()) is not None:
                if isinstance(got, BaseException):
                    raise got
                yield got
                del got  # a batch's memory must not wait for the next one
        finally:
            self._finalizer()

    def _work(self) -> None:
        try:
            self._gather_all()
        except BaseException as error:
            self._give(error)
        else:
            self._give(None)
        finally:
            self._rows.forget()

    def _gather_all(self) -> None:
        announced: deque[tuple[PreparedBatch, int]] = deque()
        for prepared in self._prepared:
            if self._ending.is_set():
                return
            announced.append((prepared, self._rows.announce(prepared.sampled.n_id)))
            del prepared
            if len(announced) > self._rows.lookahead:
                self._gather(*announced.popleft())
        while announced and not self._ending.is_set():
            self._gather(*announced.popleft())

    def _gather(self, prepared: PreparedBatch, batch: int) -> None:
        started = time.perf_counter()
        rows, n_id = self._rows, prepared.sampled.n_id
        if rows.in_memory is None:
            out = self._buffers.lend(n_id.numel(), rows.shape[1:], rows.dtype)
            x = rows.gather(n_id, out, batch=batch)
        else:  # which gathers faster into memory of its own
            x = rows.gather(n_id, batch=batch)
        self._count(time.perf_counter() - started)
        self._give(prepared._replace(x=[x]))

    def _give(self, item: PreparedBatch | BaseException | None) -> None:
        while not self._ending.is_set():
            try:
                self._ready.put(item, timeout=_SECONDS)
            except queue.Full:
                continue
            return


def _end(
    ending: threading.Event,
    ready: queue.Queue[PreparedBatch | BaseException | None],
    thread: threading.Thread,
) -> None:
    ending.set()
    while not ready.empty():
        ready.get_nowait()
    if thread.is_alive():
        thread.join()
