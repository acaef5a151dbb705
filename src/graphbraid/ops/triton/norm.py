"""Layer and batch normalisation in Triton; ``csrc/rowwise/norm.inl`` has the same formulas for the CPU."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from graphbraid.ops import reference
from graphbraid.ops.triton.epilogue import column_sums, over_parts, over_tiles, sizes, walk_tile
from graphbraid.ops.triton.launch import launch, like
from graphbraid.ops.triton.partition import load_rows, row_tiles, work_tile


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


@triton.jit(do_not_specialize=["num_rows"])
def layer_norm_kernel(
    x,  # (num_rows, width) float32, float16 or bfloat16, contiguous
    weight,  # (width,) float32 or None
    bias,  # (width,) float32 or None
    out,  # (num_rows, width) of x's dtype; may be x
    mean,  # (num_rows,) float32, written, or None
    rstd,  # (num_rows,) float32, written, or None
    num_rows,
    width,
    eps,
    ROWS: tl.constexpr,
    FEAT: tl.constexpr,  # columns taken together, a power of two
):
    """Compute each row's mean, biased variance and out = (x - mean) * rstd * weight + bias.

    The variance is the mean square of the differences from the mean, corrected by their sum for the mean's
    rounding. Bound by reading x and writing out: the second and third reads of a row hit the cache.
    """
    v = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = v < num_rows
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(0, width, FEAT):
        columns = first + tl.arange(0, FEAT)
        mask = live[:, None] & (columns < width)[None, :]
        total += tl.sum(load_rows(x, v, width, columns, mask), 1)
    average = total / width
    rest = tl.zeros((ROWS,), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for first in range(0, width, FEAT):
        columns = first + tl.arange(0, FEAT)
        mask = live[:, None] & (columns < width)[None, :]
        y = load_rows(x, v, width, columns, mask)
        d = tl.where(mask, y - average[:, None], 0.0)
        rest += tl.sum(d, 1)
        squares += tl.sum(d * d, 1)
    rest /= width
    average += rest
    variance = squares / width - rest * rest
    factor = 1 / tl.sqrt(tl.where(variance < 0, 0.0, variance) + eps)
    for first in range(0, width, FEAT):
        columns = first + tl.arange(0, FEAT)
        mask = live[:, None] & (columns < width)[None, :]
        place = v[:, None] * width + columns[None, :]
        y = load_rows(x, v, width, columns, mask)
        scale, shift = affine_columns(weight, bias, columns, columns < width)
        tl.store(out + place, (y - average[:, None]) * factor[:, None] * scale + shift, mask=mask)
    if mean is not None:
        tl.store(mean + v, average, mask=live)
    if rstd is not None:
        tl.store(rstd + v, factor, mask=live)


@triton.jit(do_not_specialize=["num_rows"])
def layer_norm_backward_kernel(
    grad,  # (num_rows, width) float32, float16 or bfloat16, contiguous
    x,  # (num_rows, width) of grad's dtype
    weight,  # (width,) float32 or None
    mean,  # (num_rows,) float32
    rstd,  # (num_rows,) float32
    grad_x,  # (num_rows, width) of grad's dtype; may be grad
    num_rows,
    width,
    ROWS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute the gradient of x for layer normalisation.

    grad_x = rstd * (h - average(h) - y * average(h * y)), h = grad * weight, y = (x - mean) * rstd. Bound by
    reading grad and x, writing grad_x.
    """
    v = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = v < num_rows
    centre = tl.load(mean + v, mask=live, other=0.0)[:, None]
    factor = tl.load(rstd + v, mask=live, other=0.0)[:, None]
    total = tl.zeros((ROWS,), tl.float32)
    product = tl.zeros((ROWS,), tl.float32)
    for first in range(0, width, FEAT):
        columns = first + tl.arange(0, FEAT)
        mask = live[:, None] & (columns < width)[None, :]
        place = v[:, None] * width + columns[None, :]
        scale, _ = affine_columns(weight, None, columns, columns < width)
        h = load_rows(grad, v, width, columns, mask) * scale
        y = (load_rows(x, v, width, columns, mask) - centre) * factor
        total += tl.sum(h, 1)
        product += tl.sum(h * y, 1)
    average = (total / width)[:, None]
    along = (product / width)[:, None]
    for first in range(0, width, FEAT):
        columns = first + tl.arange(0, FEAT)
        mask = live[:, None] & (columns < width)[None, :]
        place = v[:, None] * width + columns[None, :]
        scale, _ = affine_columns(weight, None, columns, columns < width)
        h = load_rows(grad, v, width, columns, mask) * scale
        y = (load_rows(x, v, width, columns, mask) - centre) * factor
        tl.store(grad_x + place, factor * (h - average - y * along), mask=mask)


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


@like(reference.layer_norm)
def layer_norm(a: Any) -> None:
    """Compute like the twin; rows are float32, float16 or bfloat16."""
    _over_rows(layer_norm_kernel, a, eps=float(a.eps))


@like(reference.layer_norm_backward)
def layer_norm_backward(a: Any) -> None:
    """Compute like the twin."""
    if a.grad_weight is not None or a.grad_bias is not None:
        _norm_sums(a, per_row=True)  # before grad is overwritten
    if a.grad_x is not None:
        _over_rows(layer_norm_backward_kernel, a)


def _over_rows(kernel: Any, a: Any, **more: Any) -> None:
    """Launch a kernel that reduces rows: up to 1024 columns at once, so most rows are one tile."""
    if a.x.numel():
        columns = min(1024, triton.next_power_of_2(a.x.shape[1]))
        tile = {"ROWS": max(1, min(32, 1024 // columns)), "FEAT": columns, "num_warps": 4}
        launch(kernel, (triton.cdiv(a.x.shape[0], tile["ROWS"]),), a, **sizes(a.x), **more, **tile)


@like(reference.column_moments)
def column_moments(a: Any) -> None:
    """Compute like the twin."""
    if a.x.numel() == 0:
        a.mean.zero_()
        a.var.zero_()
        return
    over_parts(column_moments_kernel, a, a.x, "means", "squares")
    tile = walk_tile(a.x.shape[1])
    launch(join_moments_kernel, (row_tiles(a.x.shape[1], tile),), a, **sizes(a.x), **tile)


@like(reference.batch_norm)
def batch_norm(a: Any) -> None:
    """Compute like the twin."""
    over_tiles(batch_norm_kernel, a, a.x)


@like(reference.batch_norm_backward)
def batch_norm_backward(a: Any) -> None:
    """Compute like the twin."""
    _norm_sums(a, per_row=False)
    if a.grad_x is not None:
        over_tiles(batch_norm_backward_kernel, a, a.x, FROM_ROWS=a.from_rows)


def _norm_sums(a: Any, *, per_row: bool) -> None:
    """Compute the column sums of ``grad * y`` and ``grad`` in an order that depends only on the shape."""
    a.weight_sums = a.bias_sums = a.x
    if a.x.numel():
        over_parts(norm_sums_kernel, a, a.x, "weight_sums", "bias_sums", PER_ROW=per_row)
    for source, target in ((a.weight_sums, a.grad_weight), (a.bias_sums, a.grad_bias)):
        if target is not None:
            column_sums(source, target)
