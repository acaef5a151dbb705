"""Lending: tensors for the caller whose memory is reused once nothing refers to it any more.

The engine's outputs and the parameters' gradients may be kept by the caller: as ``p.grad`` over several
steps, by an optimizer, in a list. They can therefore not lie in the arena. Autograd does not copy a gradient
that nothing else refers to, so a fresh tensor over the engine's memory becomes ``p.grad`` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from graphbraid.ops.cross_entropy import LentMemory

_MOST_KEPT = 3
"""Memories kept per shape; accumulating into ``p.grad`` needs two, the sum and the new gradient."""


class Lender:
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

        The memory lives as long as the lender. None if it is not among the kept memory.
        """
        whole = (m.whole(self._dtype) for m in self._memories)
        return next((t.view(self._shape) for t in whole if t.data_ptr() == loan.data_ptr()), None)


def copied(source: Tensor, lender: Lender | None, rows: Tensor | None = None) -> Tensor:
    """Copy ``source``, or its ``rows``, to memory of the lender; to new memory if there is no lender."""
    if lender is None:
        return source.clone() if rows is None else source.index_select(0, rows)
    out = lender.lend()
    return out.copy_(source) if rows is None else torch.index_select(source, 0, rows, out=out)


__all__ = ["Lender", "copied"]
