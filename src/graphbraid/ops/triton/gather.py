"""Rows by id in Triton, from one table or from tiers; ``csrc/gather/gather.inl`` is the CPU version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from graphbraid.ops import reference
from graphbraid.ops.triton.launch import kernel_dtype, launch, like

if TYPE_CHECKING:
    from graphbraid.ops.gather import TierTable


WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


@triton.jit(do_not_specialize=["num_ids"])
def gather_rows_kernel(
    table,  # (num_rows, width) words, contiguous
    scale,  # (num_rows,) float32 if HAS_SCALE
    ids,  # (num_ids,) int64 in [0, num_rows)
    out,  # (num_ids, width) words of the table's type or float32, contiguous
    num_ids,
    width,
    HAS_SCALE: tl.constexpr,
    IDS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Copy out[i, :] = scale[ids[i]] * table[ids[i], :].

    Bound by reading num_ids scattered rows and writing them.
    """
    i = tl.program_id(0).to(tl.int64) * IDS + tl.arange(0, IDS)
    columns = tl.program_id(1) * FEAT + tl.arange(0, FEAT)
    live = i < num_ids
    row = tl.load(ids + i, mask=live, other=0)
    mask = live[:, None] & (columns < width)[None, :]
    words = tl.load(table + row[:, None] * width + columns[None, :], mask=mask, other=0)
    if HAS_SCALE:
        words = words.to(tl.float32) * tl.load(scale + row, mask=live, other=0.0)[:, None]
    tl.store(out + i[:, None] * width + columns[None, :], words.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_ids"])
def gather_tiered_kernel(
    ids,  # (num_ids,) int64 in [0, num_rows)
    positions,  # (num_rows,) int32 or int64 if HAS_POSITIONS: where each row is in the order of the tiers
    layout,  # (TIERS, 3) int64: a tier's first position, its number of parts, and the first of them
    bases,  # (num_parts,) int64: addresses of the parts' words
    scales,  # (num_parts,) int64 if HAS_SCALE: addresses of float32, one a row of the part
    out,  # (num_ids, width) words or float32, contiguous
    num_ids,
    width,
    WORD: tl.constexpr,
    TIERS: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    IDS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Copy out[i, :] = row ids[i], wherever it is: TIERS - 1 comparisons say in which tier.

    Offset `o` of a tier of `g` parts is row `o // g` of part `o % g`. Bound by reading num_ids scattered
    rows, each at the speed of its memory.
    """
    i = tl.program_id(0).to(tl.int64) * IDS + tl.arange(0, IDS)
    columns = tl.program_id(1) * FEAT + tl.arange(0, FEAT)
    live = i < num_ids
    offset = tl.load(ids + i, mask=live, other=0)
    if HAS_POSITIONS:
        offset = tl.load(positions + offset, mask=live, other=0).to(tl.int64)
    tier = tl.zeros([IDS], tl.int32)
    for later in tl.static_range(1, TIERS):
        tier += (offset >= tl.load(layout + 3 * later)).to(tl.int32)
    offset -= tl.load(layout + 3 * tier)
    part = tl.load(layout + 3 * tier + 2)
    row = offset
    if INTERLEAVED:
        parts = tl.load(layout + 3 * tier + 1)
        row = offset // parts
        part += offset - row * parts
    mask = live[:, None] & (columns < width)[None, :]
    base = tl.load(bases + part).to(tl.pointer_type(WORD))
    words = tl.load(base[:, None] + row[:, None] * width + columns[None, :], mask=mask, other=0)
    if HAS_SCALE:
        scale = tl.load(scales + part).to(tl.pointer_type(tl.float32))
        words = words.to(tl.float32) * tl.load(scale + row, mask=live, other=0.0)[:, None]
    tl.store(out + i[:, None] * width + columns[None, :], words.to(out.dtype.element_ty), mask=mask)


@like(reference.gather_rows)
def gather_rows(a: Any) -> None:
    """Compute like the twin; ``table`` and ``out`` are contiguous bytes.

    Rows are copied in the widest words that their size and alignment allow.
    """
    if a.out.numel():
        word = _widest_word(a.table.shape[1], a.table.data_ptr(), a.out.data_ptr())
        a.table, a.out = a.table.view(word), a.out.view(word)
        _launch(gather_rows_kernel, a, scale=a.table, HAS_SCALE=False)


@like(reference.gather_as_float)
def gather_as_float(a: Any) -> None:
    """Compute like the twin."""
    _launch(gather_rows_kernel, a, scale=a.table, HAS_SCALE=False)


@like(reference.gather_scaled)
def gather_scaled(a: Any) -> None:
    """Compute like the twin."""
    _launch(gather_rows_kernel, a, HAS_SCALE=True)


@like(reference.gather_tiered)
def gather_tiered(a: Any) -> None:
    """Compute like the twin; rows that are not converted are copied in wide words."""
    table: TierTable = a.table
    word = table.dtype
    if a.out.numel() and a.out.dtype == table.dtype:
        octets = a.out.view(torch.uint8)
        word = _widest_word(octets.shape[1], octets.data_ptr(), *table.addresses)
        a.out = octets.view(word)
    _launch(
        gather_tiered_kernel,
        a,
        positions=a.ids if table.positions is None else table.positions,
        layout=table.layout,
        bases=table.bases,
        scales=table.scale_bases,
        WORD=kernel_dtype(word),
        TIERS=len(table.tiers),
        HAS_POSITIONS=table.positions is not None,
        INTERLEAVED=any(len(tier.parts) > 1 for tier in table.tiers),
        HAS_SCALE=table.is_scaled,
    )


def _widest_word(*numbers: int) -> torch.dtype:
    """Return the widest word whose size divides a row's bytes and all addresses."""
    return next(word for size, word in WORDS if all(number % size == 0 for number in numbers))


def _launch(kernel: Any, a: Any, **more: Any) -> None:
    num_ids, width = a.out.shape
    if num_ids and width:
        columns = min(128, triton.next_power_of_2(width))
        rows = min(128, 1024 // columns)
        grid = triton.cdiv(num_ids, rows), triton.cdiv(width, columns)
        tile = {"IDS": rows, "FEAT": columns, "num_warps": 4}
        launch(kernel, grid, a, **more, num_ids=num_ids, width=width, **tile)
