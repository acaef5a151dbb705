"""LentMemory: memory of the host for tensors that a caller may keep, reused once he has let go of them."""

from __future__ import annotations

from weakref import ReferenceType, ref

import torch
from torch import Tensor


class LentMemory:
    """Memory that is lent for as long as any tensor, view or array over it lives.

    Args:
        nbytes: its size, at least 1.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._bytes = torch.empty(nbytes, dtype=torch.uint8).numpy().data
        self._loan: ReferenceType[memoryview] | None = None

    @property
    def is_out(self) -> bool:
        """Whether something still refers to the last loan."""
        return self._loan is not None and self._loan() is not None

    def whole(self, dtype: torch.dtype) -> Tensor:
        """Return a 1-d tensor over all of it that does not count as a loan."""
        return torch.frombuffer(self._bytes, dtype=dtype)

    def lend(self, dtype: torch.dtype, count: int = -1) -> Tensor:
        """Return an uninitialised 1-d tensor of the first ``count`` elements, or of as many as there are."""
        # The storage that frombuffer makes holds this memoryview, and nothing else of this object, until it
        # is freed.
        loan = memoryview(self._bytes)
        self._loan = ref(loan)
        return torch.frombuffer(loan, dtype=dtype, count=count)
