"""PeerTable: a matrix of rows per rank, each in the memory of its rank, and their addresses for a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor
from graphbraid.errors import DataError
from graphbraid.ops.aggregation import check_row_dtype
from graphbraid.signatures import typed

VECTOR_BYTES = 16
"""Bytes that a thread of a GPU reads at once where addresses are multiples of it."""


@typed
class PeerTable:
    """The rows of all ranks, of which this rank's kernels read any by its owner and its place there.

    Args:
        parts: of each rank, ``(num_rows, width)`` contiguous rows of one floating-point dtype, which this
            rank's device can read: its own memory, or a peer's that has been opened
            (:mod:`graphbraid.machine.shared_tensors`). A rank may have no rows.
        rank: this rank, whose part lies on the device that reads.

    Raises:
        ConfigError: there is no such rank.
        DataError: a part has another dtype or width, has gaps, or is not on a kind of device that reads it.
    """

    def __init__(self, parts: Sequence[Tensor], rank: int) -> None:
        if not parts:
            raise DataError("a table of peers needs one part per rank, of no rows if need be; got none")
        self.rank = as_count(rank, "rank", most=len(parts) - 1)
        own = parts[self.rank]
        for owner, part in enumerate(parts):
            _check_part(part, f"the part of rank {owner}", own)
        self.parts = tuple(part.detach() for part in parts)
        """The rows of each rank; held, so that their memory stays."""
        self.dtype, self.width, self.device = own.dtype, own.shape[1], own.device
        self.num_rows = tuple(part.shape[0] for part in self.parts)
        """Number of rows of each rank."""
        addresses = [part.data_ptr() for part in self.parts]
        self.bases = torch.tensor(addresses, dtype=torch.int64).to(self.device)
        """``(num_ranks,)`` int64 addresses of the first row of each rank; of a rank without rows, any."""
        row_bytes = self.width * self.dtype.itemsize
        self.in_vectors = all(number % VECTOR_BYTES == 0 for number in (*addresses, row_bytes))
        """Whether every row begins at a multiple of :data:`VECTOR_BYTES`."""

    @property
    def rows(self) -> Tensor:
        """This rank's rows."""
        return self.parts[self.rank]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.parts)


def _check_part(part: Tensor, name: str, own: Tensor) -> None:
    check_tensor(part, name, ndim=2)
    check_row_dtype(part, name)
    if part.dtype != own.dtype or part.shape[1] != own.shape[1]:
        raise DataError(
            f"{name} must be {own.dtype} of {own.shape[1]} columns, as this rank's is; got {part.dtype} of "
            f"{part.shape[1]}"
        )
    if not part.is_contiguous():
        raise DataError(f"{name} must be contiguous, since it is read by its address; make it .contiguous()")
    if part.device.type != own.device.type:
        raise DataError(
            f"{name} must be on a {own.device.type} device, which reads it; it is on {part.device}"
        )


__all__ = ["VECTOR_BYTES", "PeerTable"]
