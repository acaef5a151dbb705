"""Plain PyTorch twins of the kernels that copy rows, part of :mod:`graphbraid.ops.reference`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from graphbraid.ops.gather import TierTable


def gather_rows(x: Tensor, ids: Tensor, out: Tensor) -> None:
    """Twin of ``gather.inl``: ``out[i] = x[ids[i]]``."""
    torch.index_select(x, 0, ids, out=out)


def gather_as_float(table: Tensor, ids: Tensor, out: Tensor) -> None:
    """Twin of ``gather.inl``: ``out[i] = float(table[ids[i]])``."""
    out.copy_(table[ids])


def gather_scaled(table: Tensor, scale: Tensor, ids: Tensor, out: Tensor) -> None:
    """Twin of ``gather.inl``: ``out[i] = scale[ids[i]] * float(table[ids[i]])``."""
    torch.mul(table[ids].float(), scale[ids].unsqueeze(1), out=out)


def gather_tiered(table: TierTable, ids: Tensor, out: Tensor) -> None:
    """Twin of ``triton/gather_tiered.py``: each part gives the rows that lie in it."""
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


def spread_rows(rows: Tensor, place: Tensor, out: Tensor) -> None:
    """Twin of ``spread.cpp``: ``out[v] = rows[place[v]]``, zeros where that is -1."""
    is_there = place >= 0
    out.zero_()[is_there] = rows[place[is_there].long()]
