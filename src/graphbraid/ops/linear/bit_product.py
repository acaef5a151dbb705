"""Products with zeros and ones kept as bits: a layer's linear map of bags of words, and its weight gradient.

A matrix of bits has one row of 32-bit words for every 32 rows to sum: bit ``j`` of ``bits[w, i]`` says
whether sum ``i`` includes row ``32 w + j``. Bits past the last row are 0.
"""

from __future__ import annotations

from torch import Tensor

from graphbraid.ops import reference
from graphbraid.ops.aggregation import backend, row_contiguous
from graphbraid.ops.row_epilogue import RowEpilogue

WORD_BITS = reference.WORD_BITS
"""Number of rows that the bits of one word select from."""


def bit_product(
    bits: Tensor,
    b: Tensor,
    *,
    out: Tensor,
    factors: Tensor | None = None,
    add: bool = False,
    after: RowEpilogue | None = None,
) -> Tensor:
    """Compute ``diag(factors) x b`` for the ``(num_rows, depth)`` matrix ``x`` of bits, without autograd.

    Args:
        bits: ``(ceil(depth / 32), num_rows)`` int32.
        b: ``(depth, width)`` float32; any strides, so that ``weight.t()`` is not copied.
        out: ``(num_rows, width)`` float32, written; its rows may be strided.
        factors: ``(num_rows,)`` float32, or None for ones.
        add: whether to add to the values in ``out``.
        after: epilogue, applied to the rows while the cache holds them.
    """
    backend(out).bit_product(bits, factors, b.detach(), out.detach(), add, after)
    return out


def bit_gram(a: Tensor, bits: Tensor, *, out: Tensor, factors: Tensor | None = None) -> Tensor:
    """Compute ``aᵀ diag(factors) x`` for the ``(num_rows, width)`` matrix ``x`` of bits, without autograd.

    Args:
        a: ``(num_rows, height)`` float32.
        bits: ``(ceil(num_rows / 32), width)`` int32.
        out: ``(height, width)`` float32, contiguous, written.
        factors: ``(num_rows,)`` float32, or None for ones.
    """
    backend(out).bit_gram(row_contiguous(a.detach()), bits, factors, out)
    return out
