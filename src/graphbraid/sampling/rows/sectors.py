"""Sectors: the least that a device reads of the host's memory over the link at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.graph.scaled_features import ScaledFeatures

SECTOR_BYTES = 32
"""Bytes of a sector; they begin at addresses that it divides. A drawn id of 4 bytes moves as much."""


def row_sectors(table: Tensor | ScaledFeatures, ids: Tensor) -> Tensor:
    """Return how many sectors reading each row of a table moves, by where it lies.

    A row that does not begin or end where sectors do moves more than its own bytes. Rows are counted one by
    one: that a neighbour's lie in the same sector saves nothing unless a cache has it by chance.

    Args:
        table: contiguous rows; those of int8 with their scales, each of which moves a sector of its own.
        ids: ``(num_ids,)`` int64 rows, on any device.

    Returns:
        ``(num_ids,)`` int64 on the device of ``ids``.
    """
    if isinstance(table, ScaledFeatures):
        return row_sectors(table.values, ids) + row_sectors(table.scale, ids)
    row_bytes = table[:1].nbytes
    if not row_bytes:
        return torch.zeros_like(ids)
    first = (table.data_ptr() % SECTOR_BYTES + ids * row_bytes) % SECTOR_BYTES
    return (first + (row_bytes + SECTOR_BYTES - 1)) // SECTOR_BYTES


__all__ = ["SECTOR_BYTES", "row_sectors"]
