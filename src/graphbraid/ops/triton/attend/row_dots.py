"""Inner products of rows, per head, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops.triton.partition import on_device_of
from graphbraid.ops.triton.tiles import load_rows


@triton.jit(do_not_specialize=["count"])
def row_dots_kernel(
    a,  # (count, channels) float32, float16 or bfloat16
    b,  # (count, channels) of the same dtype
    out,  # (count,) float32
    count,
    channels,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute out[i] = <a[i, :], b[i, :]>. Bound by reading both once."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    mask = (i < count)[:, None] & (c < channels)[None, :]
    products = load_rows(a, i, channels, c, mask) * load_rows(b, i, channels, c, mask)
    tl.store(out + i, tl.sum(products, axis=1), mask=i < count)


def row_dots(a: Tensor, b: Tensor, heads: int) -> Tensor:
    """Return ``(num_rows, heads)`` float32 inner products of the rows of ``a`` and ``b``, per head."""
    out = a.new_empty((a.shape[0], heads), dtype=torch.float32)
    if out.numel() == 0:
        return out
    count, channels = out.numel(), a.shape[1] // heads
    block = triton.next_power_of_2(channels)
    rows = max(1, min(64, 1024 // block))
    with on_device_of(a):
        row_dots_kernel[(triton.cdiv(count, rows),)](
            a, b, out, count, channels, ROWS=rows, CHANNELS=block, num_warps=4
        )
    return out
