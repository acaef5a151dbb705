"""Bias, activation and counter-based dropout in Triton; ``csrc/rowwise/epilogue.inl`` is the CPU version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops import reference
from graphbraid.ops.triton.launch import launch, like
from graphbraid.ops.triton.partition import load_rows, row_tiles, work_tile

_PHI = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_PHI32 = tl.constexpr(0x9E3779B9)


def dropout_arguments(p: float, seed: int | Tensor) -> dict[str, Any]:
    """Return the kernels' arguments: seed, threshold (32 bits as a signed number), scale, whether to drop.

    If the seed is a tensor of one int64, the kernel reads it when it runs, so a recorded launch uses the seed
    that the tensor holds when it is replayed.
    """
    threshold = int(p * 2**32)
    signed = threshold - 2**32 if threshold >= 2**31 else threshold
    return {"seed": seed, "threshold": signed, "keep_scale": 1 / (1 - p), "DROPOUT": threshold != 0}


@triton.jit
def seed_of(seed):
    """Load the seed if it was given as a pointer."""
    return tl.load(seed) if seed.dtype.is_ptr() else seed


@triton.jit
def dropout_key(seed, row):
    """Return 32 bits for each int64 ``row``, the high half of splitmix64's finaliser."""
    z = tl.cast(seed, tl.int64).to(tl.uint64) + row.to(tl.uint64) * _PHI
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    return ((z ^ (z >> 31)) >> 32).to(tl.uint32)


@triton.jit
def kept(key, column, threshold):
    """Return which of the elements (row with this key, column) are kept."""
    h = key + column.to(tl.uint32) * _PHI32
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return (h ^ (h >> 16)) >= tl.cast(threshold, tl.int32).to(tl.uint32)


_RELU = tl.constexpr(1)
_LEAKY_RELU = tl.constexpr(2)
_ELU = tl.constexpr(3)

_PARTS = 1024
"""Number of parts of the rows whose column sums are added up last: many times the multiprocessors, but fixed,
so that the bits are the same on every device."""


@triton.jit
def activated(y, slope, ACT: tl.constexpr):
    """Apply the activation to float32 ``y``."""
    if ACT == _RELU:
        y = tl.where(y <= 0, 0.0, y)  # lets a NaN through
    elif ACT == _LEAKY_RELU:
        y = tl.where(y > 0, y, y * slope)
    elif ACT == _ELU:
        y = tl.where(y > 0, y, tl.exp(tl.minimum(y, 0.0)) - 1)
    return y


@triton.jit(do_not_specialize=["num_rows", "seed", "threshold"])
def epilogue_kernel(
    x,  # (num_rows, width) float32, float16 or bfloat16; rows x_stride apart
    bias,  # (width,) float32 or None
    out,  # (num_rows, width) of x's dtype; may be x; rows out_stride apart
    ids,  # (num_rows,) int64, the row that each row's mask is drawn for, or None: itself
    num_rows,
    width,
    x_stride,
    out_stride,
    slope,
    seed,
    threshold,
    keep_scale,
    ACT: tl.constexpr,
    DROPOUT: tl.constexpr,
    ROWS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute out = mask * act(x + bias), where mask[v, c] is 0 or keep_scale.

    Bound by reading x and writing out.
    """
    block, columns, inside = work_tile(width, FEAT)
    v = block * ROWS + tl.arange(0, ROWS)
    mask = (v < num_rows)[:, None] & inside[None, :]
    y = load_rows(x, v, x_stride, columns, mask)
    if bias is not None:
        y += tl.load(bias + columns, mask=inside, other=0.0)[None, :]
    y = activated(y, slope, ACT)
    if DROPOUT:
        row = v
        if ids is not None:
            row = tl.load(ids + v, mask=v < num_rows, other=0)
        stays = kept(dropout_key(seed_of(seed), row)[:, None], columns[None, :], threshold)
        y *= tl.where(stays, keep_scale, 0.0)
    tl.store(out + v[:, None] * out_stride + columns[None, :], y, mask=mask)


@triton.jit(do_not_specialize=["num_rows", "rows_per_part", "seed", "threshold"])
def epilogue_backward_kernel(
    grad,  # (num_rows, width) float32, float16 or bfloat16, contiguous
    out,  # (num_rows, width) of grad's dtype: what the forward gave
    grad_x,  # (num_rows, width) of grad's dtype
    sums,  # (num_parts, width) float32, or None where no bias wants a gradient
    ids,  # as in the forward
    num_rows,
    rows_per_part,
    width,
    slope,
    seed,
    threshold,
    keep_scale,
    ACT: tl.constexpr,
    DROPOUT: tl.constexpr,
    ROWS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute grad_x = grad * mask * act'(x + bias), and the column sums of each part of the rows.

    act' follows from the output; the mask is drawn again. Bound by reading grad and out, writing grad_x.
    """
    part, columns, inside = work_tile(width, FEAT)
    end = tl.minimum((part + 1) * rows_per_part, num_rows)
    acc = tl.zeros((ROWS, FEAT), tl.float32)
    for first in range(part * rows_per_part, end, ROWS):
        v = first + tl.arange(0, ROWS)
        mask = (v < end)[:, None] & inside[None, :]
        place = v[:, None] * width + columns[None, :]
        g = load_rows(grad, v, width, columns, mask)
        y = load_rows(out, v, width, columns, mask)
        if DROPOUT:
            row = v
            if ids is not None:
                row = tl.load(ids + v, mask=v < end, other=0)
            stays = kept(dropout_key(seed_of(seed), row)[:, None], columns[None, :], threshold)
            g *= tl.where(stays, keep_scale, 0.0)
            y /= keep_scale
        if ACT == _RELU:
            g = tl.where(y <= 0, 0.0, g)  # lets that of a NaN through, as PyTorch does
        elif ACT == _LEAKY_RELU:
            g = tl.where(y > 0, g, g * slope)
        elif ACT == _ELU:
            g = tl.where(y > 0, g, g * (y + 1))
        tl.store(grad_x + place, g, mask=mask)
        acc += g
    if sums is not None:
        tl.store(sums + part * width + columns, tl.sum(acc, axis=0), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "rows_per_part"])
def column_sums_kernel(
    rows,  # (num_rows, width) float32
    out,  # (num_parts, width) float32
    num_rows,
    rows_per_part,
    width,
    ROWS: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Sum out[part, :] = the part's rows, always in the same order. Bound by reading rows once."""
    part, columns, inside = work_tile(width, FEAT)
    end = tl.minimum((part + 1) * rows_per_part, num_rows)
    acc = tl.zeros((ROWS, FEAT), tl.float32)
    for first in range(part * rows_per_part, end, ROWS):
        v = first + tl.arange(0, ROWS)
        mask = (v < end)[:, None] & inside[None, :]
        acc += load_rows(rows, v, width, columns, mask)
    tl.store(out + part * width + columns, tl.sum(acc, axis=0), mask=inside)


@like(reference.epilogue)
def epilogue(a: Any) -> None:
    """Compute like the twin; float32, float16 or bfloat16, rows contiguous."""
    over_tiles(epilogue_kernel, a, a.out, **_how(a))


@like(reference.epilogue_backward)
def epilogue_backward(a: Any) -> None:
    """Compute like the twin; ``grad_bias`` is float32."""
    a.sums = None
    if a.out.numel():
        sums = () if a.grad_bias is None else ("sums",)
        over_parts(epilogue_backward_kernel, a, a.out, *sums, **_how(a))
    if a.grad_bias is not None:
        column_sums(a.out if a.sums is None else a.sums, a.grad_bias)


def _how(a: Any) -> dict[str, Any]:
    return {"slope": float(a.slope), "ACT": a.act, **dropout_arguments(a.p, a.seed)}


def column_sums(rows: Tensor, out: Tensor) -> None:
    """Compute ``out = rows.sum(0)``, ``(width,)`` float32, in an order that depends only on the shape.

    Both are contiguous float32; the sum of no rows is 0.
    """
    if rows.numel() == 0:
        out.zero_()
        return
    first = SimpleNamespace(rows=rows)
    over_parts(column_sums_kernel, first, rows, "out")
    last = SimpleNamespace(rows=first.out, out=out, rows_per_part=first.num_parts)
    tile = walk_tile(rows.shape[1])
    launch(column_sums_kernel, (1, row_tiles(rows.shape[1], tile)), last, **sizes(first.out), **tile)


def over_tiles(kernel: Any, a: Any, x: Tensor, **more: Any) -> None:
    """Launch a kernel over the tiles of a matrix, if it has any element."""
    if x.numel():
        tile = walk_tile(x.shape[1])
        grid = triton.cdiv(x.shape[0], tile["ROWS"]), row_tiles(x.shape[1], tile)
        launch(kernel, grid, a, **sizes(x), **more, **tile)


def over_parts(kernel: Any, a: Any, x: Tensor, *sums: str, **more: Any) -> None:
    """Launch a kernel over parts of a matrix's rows. Set ``a.num_parts`` and ``a.rows_per_part``.

    ``sums`` are the attributes of ``a`` that it writes: new ``(num_parts, width)`` float32 matrices.
    """
    num_rows, width = x.shape
    tile = walk_tile(width)
    rows = tile["ROWS"]
    a.rows_per_part = max(1, triton.cdiv(triton.cdiv(num_rows, rows), _PARTS)) * rows
    a.num_parts = triton.cdiv(num_rows, a.rows_per_part)
    for name in sums:
        setattr(a, name, x.new_empty((a.num_parts, width), dtype=torch.float32))
    launch(kernel, (a.num_parts, row_tiles(width, tile)), a, **sizes(x), **more, **tile)


def walk_tile(width: int) -> dict[str, int]:
    """Return constants of kernels over whole matrices: 1024 values a step, eight per lane of four warps."""
    columns = min(128, triton.next_power_of_2(width))
    return {"ROWS": min(64, 1024 // columns), "FEAT": columns, "num_warps": 4}


def sizes(x: Tensor) -> dict[str, int]:
    """Return the parameters of kernels over a matrix that say how large it is."""
    return {"num_rows": x.shape[0], "width": x.shape[1]}
