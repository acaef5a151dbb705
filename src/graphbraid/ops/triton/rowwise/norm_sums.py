"""What layer and batch normalisation share in Triton; on the CPU ``csrc/rowwise/norm.inl``."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops.triton.partition import on_device_of
from graphbraid.ops.triton.rowwise.epilogue import column_sums, row_parts, walk_tile
from graphbraid.ops.triton.tiles import load_rows, work_tile


@triton.jit
def affine_columns(weight, bias, columns, inside):
    """Load weight and bias of some columns; ones and zeros if they are None."""
    scale = tl.full(columns.shape, 1.0, tl.float32)
    if weight is not None:
        scale = tl.load(weight + columns, mask=inside, other=0.0)
    shift = tl.zeros(columns.shape, tl.float32)
    if bias is not None:
        shift = tl.load(bias + columns, mask=inside, other=0.0)
    return scale[None, :], shift[None, :]


@triton.jit(do_not_specialize=["num_rows", "rows_per_part"])
def norm_sums_kernel(
    grad,  # (num_rows, width) float32, float16 or bfloat16, contiguous
    x,  # (num_rows, width) of grad's dtype
    mean,  # (num_rows,) float32 where PER_ROW, else (width,)
    rstd,  # like mean
    weight_sums,  # (num_parts, width) float32
    bias_sums,  # (num_parts, width) float32
    num_rows,
    rows_per_part,
    width,
    PER_ROW: tl.constexpr,
    ROWS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute the column sums of grad * y and of grad over each part of the rows, y = (x - mean) * rstd.

    Bound by reading grad and x.
    """
    part, columns, inside = work_tile(width, FEAT)
    end = tl.minimum((part + 1) * rows_per_part, num_rows)
    along = tl.zeros((ROWS, FEAT), tl.float32)
    total = tl.zeros((ROWS, FEAT), tl.float32)
    for first in range(part * rows_per_part, end, ROWS):
        v = first + tl.arange(0, ROWS)
        mask = (v < end)[:, None] & inside[None, :]
        g = load_rows(grad, v, width, columns, mask)
        y = load_rows(x, v, width, columns, mask)
        if PER_ROW:
            y -= tl.load(mean + v, mask=v < end, other=0.0)[:, None]
            y *= tl.load(rstd + v, mask=v < end, other=0.0)[:, None]
        else:
            y -= tl.load(mean + columns, mask=inside, other=0.0)[None, :]
            y *= tl.load(rstd + columns, mask=inside, other=0.0)[None, :]
        along += g * y
        total += g
    tl.store(weight_sums + part * width + columns, tl.sum(along, 0), mask=inside)
    tl.store(bias_sums + part * width + columns, tl.sum(total, 0), mask=inside)


def norm_sums(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    grad_weight: Tensor | None,
    grad_bias: Tensor | None,
    *,
    per_row: bool,
) -> None:
    """Compute the column sums of ``grad * y`` and ``grad`` in an order that depends only on the shape."""
    num_rows, width = x.shape
    tile = walk_tile(width)
    parts, rows_per_part = row_parts(num_rows, tile["ROWS"])
    sums = [mean.new_empty((parts, width)) for _ in range(2)]
    if x.numel():
        with on_device_of(x):
            norm_sums_kernel[(parts, triton.cdiv(width, tile["FEAT"]))](
                grad, x, mean, rstd, *sums, num_rows, rows_per_part, width, PER_ROW=per_row, **tile
            )
    for source, target in zip(sums, (grad_weight, grad_bias), strict=True):
        if target is not None:
            column_sums(source, target)
