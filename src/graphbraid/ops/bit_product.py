"""Products with rows of zeros and ones kept as bits: a layer's map of bags of words, its weight's gradient.

A matrix of bits has a row of 32-bit words for every 32 rows that are summed: bit ``j`` of ``bits[w, i]`` says
whether sum ``i`` takes row ``32 w + j``. Bits behind the last row are 0.
"""

from __future__ import annotations

from torch import Tensor

from graphbraid.ops import reference
from graphbraid.ops.aggregation import backend, row_contiguous
from graphbraid.ops.row_epilogue import RowEpilogue

WORD_BITS = reference.WORD_BITS
"""Rows that a word of bits chooses among."""


def bit_product(
    bits: Tensor,
    b: Tensor,
    *,
    out: Tensor,
    factors: Tensor | None = None,
    add: bool = False,
    after: RowEpilogue | None = None,
) -> Tensor:
    """``out = diag(factors) x b`` for the ``(num_rows, depth)`` matrix ``x`` of bits. Not seen by autograd.

    Args:
        bits: ``(ceil(depth / 32), num_rows)`` int32.
        b: ``(depth, width)`` float32; any strides, so that ``weight.t()`` is not copied.
        out: ``(num_rows, width)`` float32, written; its rows may stand apart.
        factors: ``(num_rows,)`` float32; None: ones.
        add: add to what ``out`` holds.
        after: what follows the product, done to the rows while the cache holds them.
    """
    backend(out).bit_product(bits, factors, b.detach(), out.detach(), add, after)
    return out


def bit_gram(a: Tensor, bits: Tensor, *, out: Tensor, factors: Tensor | None = None) -> Tensor:
    """``out = aᵀ diag(factors) x`` for the ``(num_rows, width)`` matrix ``x`` of bits. Not seen by autograd.

    Args:
        a: ``(num_rows, height)`` float32.
        bits: ``(ceil(num_rows / 32), width)`` int32.
        out: ``(height, width)`` float32, contiguous, written.
        factors: ``(num_rows,)`` float32; None: ones.
    """
    backend(out).bit_gram(row_contiguous(a.detach()), bits, factors, out)
    return out
