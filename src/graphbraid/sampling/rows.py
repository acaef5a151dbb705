"""Rows by id: of what a graph keeps for each node or edge, wherever it lies; and those that must travel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RowPart:
    """The feature rows of a batch that the device does not have yet, and how it puts the batch together.

    The device keeps rows in a ring, where each has a position that rises from row to row.
    """

    rows: Tensor
    """``(num_missing, F)``: to be appended."""
    slots: Tensor
    """``(num_nodes,)`` int32: where in the ring each of the batch's rows then lies."""
    first: int
    """Position of ``rows[0]``."""
    generation: int
    """How often the ring had begun anew."""

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.rows.nbytes + self.slots.nbytes

    def apply(self, change: Callable[[Tensor], Tensor]) -> RowPart:
        """With ``change`` of both tensors, such as a copy elsewhere."""
        rows, slots = change(self.rows), change(self.slots)
        return RowPart(rows=rows, slots=slots, first=self.first, generation=self.generation)


def take_rows(table: Tensor, ids: Tensor) -> Tensor:
    """``table[ids]``, on the ids' device.

    A table on another device lies in page-locked host memory, which the ids' device reads over the link; it
    is not waited for.

    Args:
        table: ``(num_rows, ...)`` of any dtype; contiguous where it is on another device.
        ids: ``(num_ids,)`` int64 in ``[0, num_rows)``.
    """
    return table[ids] if is_beside(table, ids) else read_over_link(table, ids)


def is_beside(table: Tensor, ids: Tensor) -> bool:
    """Whether a table lies in the memory of the ids' device."""
    return table.device == ids.device


def read_over_link(table: Tensor, ids: Tensor) -> Tensor:
    """``table[ids]`` by a kernel of the ids' device that reads a page-locked table."""
    from graphbraid.ops.triton.gather import gather_rows
    from graphbraid.ops.triton.partition import on_device_of

    out = torch.empty((ids.numel(), *table.shape[1:]), dtype=table.dtype, device=ids.device)
    if out.numel():
        with on_device_of(ids):
            gather_rows(_bytes_of(table.detach()), ids, _bytes_of(out))
    return out


def _bytes_of(table: Tensor) -> Tensor:
    """``(num_rows, row_bytes)`` of the same memory."""
    return table.view(table.shape[0], -1).view(torch.uint8)
