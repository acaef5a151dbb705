"""Batch normalisation in Triton; ``csrc/rowwise/norm.inl`` has the same formulas for the CPU."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops.triton.partition import on_device_of
from graphbraid.ops.triton.rowwise.epilogue import row_parts, walk_tile
from graphbraid.ops.triton.rowwise.norm_sums import affine_columns, norm_sums
from graphbraid.ops.triton.tiles import load_rows, work_tile


@triton.jit(do_not_specialize=["num_rows", "rows_per_part"])
def column_moments_kernel(
    x,  # (num_rows, width) float32, float16 or bfloat16, contiguous
    means,  # (num_parts, width) float32, written
    squares,  # (num_parts, width) float32, written
    num_rows,
    rows_per_part,
    width,
    ROWS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute the mean and the sum of squared differences from it, per column and part of the rows.

    A part is read a tile at a time; a tile's moments are merged into the part's like those of two samples
    (Chan, Golub and LeVeque), so that no large squares are subtracted. Bound by reading x once.
    """
    part, columns, inside = work_tile(width, FEAT)
    begin = part * rows_per_part
    end = tl.minimum(begin + rows_per_part, num_rows)
    average = tl.zeros((FEAT,), tl.float32)
    spread = tl.zeros((FEAT,), tl.float32)
    for first in range(begin, end, ROWS):
        v = first + tl.arange(0, ROWS)
        mask = (v < end)[:, None] & inside[None, :]
        y = load_rows(x, v, width, columns, mask)
        count = tl.minimum(end - first, ROWS).to(tl.float32)
        before = (first - begin).to(tl.float32)
        centre = tl.sum(y, 0) / count
        d = tl.where(mask, y - centre[None, :], 0.0)
        difference = centre - average
        average += difference * (count / (before + count))
        spread += tl.sum(d * d, 0) + difference * difference * (before * count / (before + count))
    tl.store(means + part * width + columns, average, mask=inside)
    tl.store(squares + part * width + columns, spread, mask=inside)


@triton.jit(do_not_specialize=["num_rows", "rows_per_part", "num_parts"])
def join_moments_kernel(
    means,  # (num_parts, width) float32
    squares,  # (num_parts, width) float32
    mean,  # (width,) float32, written
    var,  # (width,) float32, written
    num_rows,
    rows_per_part,
    num_parts,
    width,
    ROWS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute mean and biased variance of all rows from those of their parts, always in the same order."""
    columns = tl.program_id(0) * FEAT + tl.arange(0, FEAT)
    inside = columns < width
    total = tl.zeros((ROWS, FEAT), tl.float32)
    for first in range(0, num_parts, ROWS):
        part = first + tl.arange(0, ROWS)
        mask = (part < num_parts)[:, None] & inside[None, :]
        count = tl.minimum(num_rows - part * rows_per_part, rows_per_part)
        share = (count / num_rows).to(tl.float32)[:, None]
        total += share * load_rows(means, part, width, columns, mask)
    average = tl.sum(total, 0)
    spread = tl.zeros((ROWS, FEAT), tl.float32)
    for first in range(0, num_parts, ROWS):
        part = first + tl.arange(0, ROWS)
        mask = (part < num_parts)[:, None] & inside[None, :]
        count = tl.minimum(num_rows - part * rows_per_part, rows_per_part).to(tl.float32)[:, None]
        d = load_rows(means, part, width, columns, mask) - average[None, :]
        spread += load_rows(squares, part, width, columns, mask) + tl.where(mask, count * d * d, 0.0)
    tl.store(mean + columns, average, mask=inside)
    tl.store(var + columns, tl.sum(spread, 0) / num_rows, mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def batch_norm_kernel(
    x,  # (num_rows, width) float32, float16 or bfloat16, contiguous
    mean,  # (width,) float32
    rstd,  # (width,) float32
    weight,  # (width,) float32 or None
    bias,  # (width,) float32 or None
    out,  # (num_rows, width) of x's dtype; may be x
    num_rows,
    width,
    ROWS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute out = (x - mean) * rstd * weight + bias. Bound by reading x and writing out."""
    block, columns, inside = work_tile(width, FEAT)
    v = block * ROWS + tl.arange(0, ROWS)
    mask = (v < num_rows)[:, None] & inside[None, :]
    place = v[:, None] * width + columns[None, :]
    y = load_rows(x, v, width, columns, mask)
    y -= tl.load(mean + columns, mask=inside, other=0.0)[None, :]
    scale, shift = affine_columns(weight, bias, columns, inside)
    y = y * tl.load(rstd + columns, mask=inside, other=0.0)[None, :] * scale + shift
    tl.store(out + place, y, mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def batch_norm_backward_kernel(
    grad,  # (num_rows, width) float32, float16 or bfloat16, contiguous
    x,  # (num_rows, width) of grad's dtype
    mean,  # (width,) float32
    rstd,  # (width,) float32
    weight,  # (width,) float32 or None
    grad_weight,  # (width,) float32: column sums of grad * y, y = (x - mean) * rstd
    grad_bias,  # (width,) float32: column sums of grad
    grad_x,  # (num_rows, width) of grad's dtype; may be grad
    num_rows,
    width,
    FROM_ROWS: tl.constexpr,  # mean and rstd are those of x's own rows
    ROWS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute grad_x = rstd * weight * (grad - average(grad) - y * average(grad * y)).

    The averages are left out if running statistics were used. Bound by reading grad and x, writing grad_x.
    """
    block, columns, inside = work_tile(width, FEAT)
    v = block * ROWS + tl.arange(0, ROWS)
    mask = (v < num_rows)[:, None] & inside[None, :]
    place = v[:, None] * width + columns[None, :]
    g = load_rows(grad, v, width, columns, mask)
    factor = tl.load(rstd + columns, mask=inside, other=0.0)[None, :]
    scale, _ = affine_columns(weight, None, columns, inside)
    if FROM_ROWS:
        y = load_rows(x, v, width, columns, mask)
        y = (y - tl.load(mean + columns, mask=inside, other=0.0)[None, :]) * factor
        along = (tl.load(grad_weight + columns, mask=inside, other=0.0) / num_rows)[None, :]
        g -= (tl.load(grad_bias + columns, mask=inside, other=0.0) / num_rows)[None, :] + y * along
    tl.store(grad_x + place, g * factor * scale, mask=mask)


def column_moments(x: Tensor, mean: Tensor, var: Tensor) -> None:
    """Compute like the twin in ``ops/reference/norm.py``."""
    num_rows, width = x.shape
    if x.numel() == 0:
        mean.zero_()
        var.zero_()
        return
    tile = walk_tile(width)
    parts, rows_per_part = row_parts(num_rows, tile["ROWS"])
    means, squares = mean.new_empty((parts, width)), mean.new_empty((parts, width))
    blocks = triton.cdiv(width, tile["FEAT"])
    with on_device_of(x):
        column_moments_kernel[(parts, blocks)](x, means, squares, num_rows, rows_per_part, width, **tile)
        join_moments_kernel[(blocks,)](
            means, squares, mean, var, num_rows, rows_per_part, parts, width, **tile
        )


def batch_norm(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None, out: Tensor
) -> None:
    """Compute like the twin in ``ops/reference/norm.py``."""
    if x.numel() == 0:
        return
    tile = walk_tile(x.shape[1])
    with on_device_of(x):
        batch_norm_kernel[_grid(x, tile)](x, mean, rstd, weight, bias, out, *x.shape, **tile)


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    from_rows: bool,
    grad_x: Tensor | None,
    grad_weight: Tensor,
    grad_bias: Tensor,
) -> None:
    """Compute like the twin in ``ops/reference/norm.py``."""
    norm_sums(grad, x, mean, rstd, grad_weight, grad_bias, per_row=False)
    if grad_x is None or x.numel() == 0:
        return
    tile = walk_tile(x.shape[1])
    with on_device_of(x):
        batch_norm_backward_kernel[_grid(x, tile)](
            grad, x, mean, rstd, weight, grad_weight, grad_bias, grad_x, *x.shape, FROM_ROWS=from_rows, **tile
        )


def _grid(x: Tensor, tile: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(x.shape[0], tile["ROWS"]), triton.cdiv(x.shape[1], tile["FEAT"])
