"""RowBuffers: the memory of the rows of batches that a loader prepares, used again for later ones.

Rows of one batch are written by one thread and freed by another, a few megabytes each time, of another size
each time. The system's allocator keeps up to twice the memory for that.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from graphbraid.ops.cross_entropy import LentMemory

_SLACK = 8
"""A new buffer has room for one part in so many more rows, since the next batch may be larger."""


class RowBuffers:
    """Lends uninitialised tensors of any number of rows; a user may keep them for as long as he likes.

    Args:
        most: buffers that are kept. Rows beyond them are allocated each time.
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
