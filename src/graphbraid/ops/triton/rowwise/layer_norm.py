"""Layer normalisation in Triton; ``csrc/rowwise/norm.inl`` has the same formulas for the CPU."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops.triton.partition import on_device_of
from graphbraid.ops.triton.rowwise.norm_sums import affine_columns, norm_sums
from graphbraid.ops.triton.tiles import load_rows


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


def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out: Tensor,
    mean: Tensor | None,
    rstd: Tensor | None,
) -> None:
    """Compute like the twin in ``ops/reference/norm.py``; rows float32, float16 or bfloat16."""
    if x.numel() == 0:
        return
    tile = _row_tile(x.shape[1])
    with on_device_of(x):
        layer_norm_kernel[(triton.cdiv(x.shape[0], tile["ROWS"]),)](
            x, weight, bias, out, mean, rstd, *x.shape, float(eps), **tile
        )


def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    grad_x: Tensor | None,
    grad_weight: Tensor | None,
    grad_bias: Tensor | None,
) -> None:
    """Compute like the twin in ``ops/reference/norm.py``."""
    if grad_weight is not None or grad_bias is not None:
        norm_sums(grad, x, mean, rstd, grad_weight, grad_bias, per_row=True)  # before grad is overwritten
    if grad_x is None or x.numel() == 0:
        return
    tile = _row_tile(x.shape[1])
    with on_device_of(x):
        layer_norm_backward_kernel[(triton.cdiv(x.shape[0], tile["ROWS"]),)](
            grad, x, weight, mean, rstd, grad_x, *x.shape, **tile
        )


def _row_tile(width: int) -> dict[str, int]:
    """Return constants of kernels that reduce rows: up to 1024 columns at once, so most rows are one tile."""
    columns = min(1024, triton.next_power_of_2(width))
    return {"ROWS": max(1, min(32, 1024 // columns)), "FEAT": columns, "num_warps": 4}
