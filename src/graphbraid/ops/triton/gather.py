"""Rows by id in Triton, copied or widened to float32; ``csrc/gather/gather.inl`` is the CPU version."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops.triton.partition import on_device_of

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


def gather_rows(x: Tensor, ids: Tensor, out: Tensor) -> None:
    """Compute like the twin in ``ops/reference/gather.py``; ``x`` and ``out`` are contiguous bytes.

    Rows are copied in the widest words that their size and alignment allow.
    """
    if out.numel() == 0:
        return
    for word_bytes, word in WORDS:
        if all(number % word_bytes == 0 for number in (x.shape[1], x.data_ptr(), out.data_ptr())):
            table, copy = x.view(word), out.view(word)
            break
    _launch(table, None, ids, copy)


def gather_as_float(table: Tensor, ids: Tensor, out: Tensor) -> None:
    """Compute like the twin in ``ops/reference/gather.py``."""
    if out.numel():
        _launch(table, None, ids, out)


def gather_scaled(table: Tensor, scale: Tensor, ids: Tensor, out: Tensor) -> None:
    """Compute like the twin in ``ops/reference/gather.py``."""
    if out.numel():
        _launch(table, scale, ids, out)


def tiles_of(width: int) -> tuple[int, int]:
    """Return how many rows and columns a program copies."""
    columns = min(128, triton.next_power_of_2(width))
    return min(128, 1024 // columns), columns


def _launch(table: Tensor, scale: Tensor | None, ids: Tensor, out: Tensor) -> None:
    num_ids, width = out.shape
    rows, columns = tiles_of(width)
    with on_device_of(ids):
        gather_rows_kernel[(triton.cdiv(num_ids, rows), triton.cdiv(width, columns))](
            table,
            table if scale is None else scale,
            ids,
            out,
            num_ids,
            width,
            HAS_SCALE=scale is not None,
            IDS=rows,
            FEAT=columns,
            num_warps=4,
        )
