"""Copies of rows by id in Triton; ``csrc/gather.inl`` is the CPU version."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops.triton.partition import on_device_of

_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


@triton.jit(do_not_specialize=["num_ids"])
def gather_rows_kernel(
    table,  # (num_rows, width) words, contiguous
    ids,  # (num_ids,) int64 in [0, num_rows)
    out,  # (num_ids, width) words, contiguous
    num_ids,
    width,
    IDS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Copy out[i, :] = table[ids[i], :]. Bound by reading num_ids scattered rows and writing them."""
    i = tl.program_id(0).to(tl.int64) * IDS + tl.arange(0, IDS)
    columns = tl.program_id(1) * FEAT + tl.arange(0, FEAT)
    live = i < num_ids
    row = tl.load(ids + i, mask=live, other=0)
    mask = live[:, None] & (columns < width)[None, :]
    words = tl.load(table + row[:, None] * width + columns[None, :], mask=mask, other=0)
    tl.store(out + i[:, None] * width + columns[None, :], words, mask=mask)


def gather_rows(x: Tensor, ids: Tensor, out: Tensor) -> None:
    """Compute like the twin in ``ops/reference.py``; ``x`` and ``out`` are contiguous bytes.

    Rows are copied in the widest words that their size and alignment allow.
    """
    if out.numel() == 0:
        return
    for word_bytes, word in _WORDS:
        if all(number % word_bytes == 0 for number in (x.shape[1], x.data_ptr(), out.data_ptr())):
            table, copy = x.view(word), out.view(word)
            break
    num_ids, width = copy.shape
    columns = min(128, triton.next_power_of_2(width))
    rows = min(128, 1024 // columns)
    with on_device_of(x):
        gather_rows_kernel[(triton.cdiv(num_ids, rows), triton.cdiv(width, columns))](
            table, ids, copy, num_ids, width, IDS=rows, FEAT=columns, num_warps=4
        )
