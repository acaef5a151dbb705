"""Lending: tensors for the caller whose memory is used again once the last reader has let go of it.

What leaves the engine, its outputs and the parameters' gradients, may be kept: as ``p.grad`` over several
steps, by an optimizer, in a list. So it cannot lie in the arena. Autograd stores a gradient that nobody else
refers to without copying it, so a fresh tensor over memory of ours becomes ``p.grad`` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from weakref import ReferenceType, ref

import torch
from torch import Tensor

_MOST_KEPT = 3
"""Memories kept for one shape: ``p.grad`` that is added to and the part that is added need two."""


class Lender:
    """Lends tensors of one shape on the host; what stands in them at first is arbitrary."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        self._shape, self._dtype = tuple(shape), dtype
        self._memories: list[_Memory] = []

    def lend(self) -> Tensor:
        """A tensor in memory that no other tensor has; new memory only where all kept ones are out."""
        if prod(self._shape) == 0:
            return torch.empty(self._shape, dtype=self._dtype)
        memory = next((m for m in self._memories if not m.is_out), None)
        if memory is None:
            if len(self._memories) == _MOST_KEPT:
                return torch.empty(self._shape, dtype=self._dtype)
            memory = _Memory(prod(self._shape) * self._dtype.itemsize)
            self._memories.append(memory)
        return memory.lend(self._dtype).view(self._shape)

    def standing(self, loan: Tensor) -> Tensor | None:
        """The memory of a loan, which stays as long as the lender, as a tensor that is no loan.

        None where it is not a kept one.
        """
        whole = (m.whole(self._dtype) for m in self._memories)
        return next((t.view(self._shape) for t in whole if t.data_ptr() == loan.data_ptr()), None)


class _Memory:
    """Bytes that are out as long as any tensor, view or array of them lives."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = torch.empty(nbytes, dtype=torch.uint8).numpy().data
        self._loan: ReferenceType[memoryview] | None = None

    @property
    def is_out(self) -> bool:
        return self._loan is not None and self._loan() is not None

    def whole(self, dtype: torch.dtype) -> Tensor:
        return torch.frombuffer(self._bytes, dtype=dtype)

    def lend(self, dtype: torch.dtype) -> Tensor:
        # The storage that frombuffer makes refers to this memoryview, and to nothing else of ours, until it
        # is freed.
        loan = memoryview(self._bytes)
        self._loan = ref(loan)
        return torch.frombuffer(loan, dtype=dtype)


def copied(source: Tensor, lender: Lender | None, rows: Tensor | None = None) -> Tensor:
    """``source``, or those of its ``rows``, in memory of the lender; in new memory without one."""
    if lender is None:
        return source.clone() if rows is None else source.index_select(0, rows)
    out = lender.lend()
    return out.copy_(source) if rows is None else torch.index_select(source, 0, rows, out=out)


__all__ = ["Lender", "copied"]
