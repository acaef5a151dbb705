"""Plain PyTorch twins of the kernels that copy rows, part of :mod:`graphbraid.ops.reference`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.ops.reference.kinds import (
    ByteMatrix,
    Ids,
    Indices,
    Matrix,
    Matrix8,
    Matrix32,
    RowPlaces,
    Vector32,
)

if TYPE_CHECKING:
    from graphbraid.ops.gather import TierTable


def gather_rows(table: ByteMatrix, ids: Ids, out: ByteMatrix) -> None:
    """Twin of ``gather.inl``: ``out[i] = table[ids[i]]``."""
    torch.index_select(table, 0, ids, out=out)


def take_rows(table: ByteMatrix, slots: RowPlaces, out: ByteMatrix) -> None:
    """Twin of ``spread.cpp``: ``out[i] = table[slots[i]]``; where that is -1, ``out`` stays as it is."""
    is_there = slots >= 0
    out[is_there] = table[slots[is_there].long()]


def put_rows(rows: ByteMatrix, slots: RowPlaces, table: ByteMatrix) -> None:
    """Twin of ``spread.cpp``: ``table[slots[i]] = rows[i]`` in the order of ``i``; -1 stands for no row."""
    for row, slot in zip(rows, slots.tolist(), strict=True):
        if slot >= 0:
            table[slot] = row


def gather_as_float(table: Matrix, ids: Ids, out: Matrix32) -> None:
    """Twin of ``gather.inl``: ``out[i] = float(table[ids[i]])``."""
    out.copy_(table[ids])


def gather_scaled(table: Matrix8, scale: Vector32, ids: Ids, out: Matrix32) -> None:
    """Twin of ``gather.inl``: ``out[i] = scale[ids[i]] * float(table[ids[i]])``."""
    torch.mul(table[ids].float(), scale[ids].unsqueeze(1), out=out)


def gather_tiered(table: TierTable, ids: Tensor, out: Tensor) -> None:
    """Twin of ``ops/triton/gather.py``: each part gives the rows that lie in it."""
    positions = ids if table.positions is None else table.positions[ids].long()
    begin = 0
    for tier in table.tiers:
        offsets = positions - begin
        begin += tier.num_rows
        inside = (offsets >= 0) & (offsets < tier.num_rows)
        for number, part in enumerate(tier.parts):
            chosen = (inside & (offsets % len(tier.parts) == number)).nonzero().squeeze(1)
            found = (offsets[chosen] // len(tier.parts)).to(part.device)
            rows = part[found].to(out.dtype)
            if tier.scales:
                rows *= tier.scales[number][found].unsqueeze(1)
            out[chosen] = rows.to(out.device)


def spread_rows(rows: Matrix32, place: RowPlaces, out: Matrix32) -> None:
    """Twin of ``spread.cpp``: ``out[v] = rows[place[v]]``, zeros where that is -1."""
    is_there = place >= 0
    out.zero_()[is_there] = rows[place[is_there].long()]


def add_rows(rows: Matrix32, ids: Indices, out: Matrix32) -> None:
    """Twin of ``spread.cpp``'s ``add_rows``: ``out[ids[i]] += rows[i]`` in the order of ``i``."""
    out.index_add_(0, ids, rows)
