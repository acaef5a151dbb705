"""Products with rows kept as bits in Triton; on the CPU, ``csrc/dense/bit_product.inl`` sums subsets of rows.

A device multiplies faster than it reads, so words are unpacked in registers and multiplied as zeros and ones.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from graphbraid.ops import reference
from graphbraid.ops.triton.epilogue import epilogue
from graphbraid.ops.triton.launch import launch, like

ROWS = 64
"""Number of rows of sums that a program computes, each over a tile of columns."""
WORDS_OF_A_PART = 32
"""Smallest number of words that one program of a gram sums."""
PARTS = 128
"""Largest number of parts that a gram's rows are divided into."""


@triton.jit
def unpacked(words):
    """Unpack the bits of (n,) words to (n, 32) float32 zeros and ones."""
    return ((words[:, None] >> tl.arange(0, 32)[None, :]) & 1).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows", "depth", "width"])
def bit_product_kernel(
    bits,  # (ceil(depth / 32), num_rows) int32
    factors,  # (num_rows,) float32 or None
    b,  # (depth, width) float32; element (k, j) at k * b_row + j * b_column
    out,  # (num_rows, width) float32; rows out_stride apart
    num_rows,
    depth,
    width,
    b_row,
    b_column,
    out_stride,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sum rows of b: out[i, :] = factors[i] * sum of b[k, :] over the bits k of row i, or out += that.

    A program computes one tile of out. Bound by reading the bits and writing out.
    """
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    column = b + columns.to(tl.int64)[None, :] * b_column  # int64: an index of b passes 2**31
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    word = bits + i
    for first in range(0, depth, 32):
        words = tl.load(word, mask=i < num_rows, other=0)
        word += num_rows
        k = first + tl.arange(0, 32)
        inside = (k < depth)[:, None] & (columns < width)[None, :]
        rows = tl.load(column + k.to(tl.int64)[:, None] * b_row, mask=inside, other=0.0)
        acc = tl.dot(unpacked(words), rows, acc, input_precision="ieee")
    if factors is not None:
        acc *= tl.load(factors + i, mask=i < num_rows, other=0.0)[:, None]
    inside = (i < num_rows)[:, None] & (columns < width)[None, :]
    place = out + i[:, None] * out_stride + columns[None, :]
    if ADD:
        acc += tl.load(place, mask=inside, other=0.0)
    tl.store(place, acc, mask=inside)


@triton.jit(do_not_specialize=["num_rows", "height", "width", "words_per_part"])
def bit_gram_kernel(
    a,  # (num_rows, height) float32; rows a_stride apart
    bits,  # (ceil(num_rows / 32), width) int32
    factors,  # (num_rows,) float32 or None
    partial,  # (num_parts, width, height) float32
    num_rows,
    height,
    width,
    words_per_part,
    a_stride,
    ROWS: tl.constexpr,  # columns of x
    COLUMNS: tl.constexpr,  # columns of a
):
    """Sum over a part of the rows: partial[part, c, :] = sum of factors[r] * a[r, :] over its bits r of c.

    Bound by reading a once for each tile of x's columns.
    """
    part = tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    last = tl.minimum((part + 1) * words_per_part, tl.cdiv(num_rows, 32))
    for word in range(part * words_per_part, last):
        words = tl.load(bits + word * width + c, mask=c < width, other=0)
        r = word * 32 + tl.arange(0, 32)
        inside = (r < num_rows)[:, None] & (columns < height)[None, :]
        rows = tl.load(a + r[:, None] * a_stride + columns[None, :], mask=inside, other=0.0)
        if factors is not None:
            rows *= tl.load(factors + r, mask=r < num_rows, other=0.0)[:, None]
        acc = tl.dot(unpacked(words), rows, acc, input_precision="ieee")
    place = partial + (part * width + c[:, None]) * height + columns[None, :]
    tl.store(place, acc, mask=(c < width)[:, None] & (columns < height)[None, :])


@like(reference.bit_product)
def bit_product(a: Any) -> None:
    """Compute like the twin; float32, the rows of ``out`` contiguous."""
    num_rows, width = a.out.shape
    if a.out.numel() == 0:
        return
    columns = _tile(width)
    of_b = {"depth": a.b.shape[0], "b_row": a.b.stride(0), "b_column": a.b.stride(1)}
    tile = {"ADD": a.add, "ROWS": ROWS, "COLUMNS": columns, "num_warps": 4}
    grid = triton.cdiv(num_rows, ROWS), triton.cdiv(width, columns)
    launch(bit_product_kernel, grid, a, num_rows=num_rows, width=width, **of_b, **tile)
    if a.after is not None:
        epilogue(a.out, *a.after[:-1], a.out, a.after.ids)


@like(reference.bit_gram)
def bit_gram(a: Any) -> None:
    """Compute like the twin; float32, the rows of ``a`` contiguous."""
    height, width = a.out.shape
    if a.out.numel() == 0:
        return
    words, columns = a.bits.shape[0], _tile(height)
    words_per_part = max(WORDS_OF_A_PART, triton.cdiv(words, PARTS))
    parts = max(triton.cdiv(words, words_per_part), 1)
    partial = a.out.new_empty((parts, width, height))
    work = {"partial": partial, "num_rows": a.a.shape[0], "words_per_part": words_per_part}
    grid = triton.cdiv(width, ROWS), triton.cdiv(height, columns), parts
    tile = {"ROWS": ROWS, "COLUMNS": columns, "num_warps": 4}
    launch(bit_gram_kernel, grid, a, **work, height=height, width=width, **tile)
    a.out.copy_(partial.sum(0).t())


def _tile(width: int) -> int:
    """Return the columns of a tile, at least the 16 that tensor cores need."""
    return int(min(max(triton.next_power_of_2(width), 16), 64))
