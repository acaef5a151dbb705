"""Binary features, kept as bits: rows whose non-zero features are all one number, as in bags of words.

A bag of words holds zeros and ones or, if divided by its number of words, zeros and one other number. 32
features then fit in a word, and a product with a weight needs no multiplications: it sums rows of the weight.

A matrix of bits has one row of 32-bit words for every 32 rows to sum: bit ``j`` of ``bits[w, i]`` says
whether sum ``i`` includes row ``32 w + j``. Bits past the last row are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphbraid.graph.scaled_features import Features
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.ops import reference
from graphbraid.ops.kernels import backend, row_contiguous
from graphbraid.ops.library import RowEpilogue

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


CELLS_AT_A_TIME = 1 << 20
"""Number of features processed at a time, so that the temporaries fit in the cache."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class BinaryRows:
    """Feature rows as bits, both by row and by column; see :mod:`graphbraid.ops.binary`."""

    by_row: Tensor
    """``(ceil(num_columns / 32), num_rows)`` int32."""
    by_column: Tensor
    """``(ceil(num_rows / 32), num_columns)`` int32."""
    factors: Tensor | None
    """``(num_rows,)`` float32 value of each row's non-zero features; None if all are 1."""

    def apply(self, change: Callable[[Tensor], Tensor]) -> BinaryRows:
        """Return the rows with every array changed, for example moved."""
        return BinaryRows(
            by_row=change(self.by_row),
            by_column=change(self.by_column),
            factors=None if self.factors is None else change(self.factors),
        )

    @classmethod
    def of(cls, x: Features, nodes: Tensor | None) -> BinaryRows:
        """Pack the features of ``nodes`` (of all nodes if None), which must be binary (:func:`is_binary`)."""
        num_rows, num_columns = x.shape[0] if nodes is None else nodes.numel(), int(x.shape[1])
        by_row = torch.zeros(_words(num_columns), num_rows, dtype=torch.int32)
        by_column = torch.zeros(_words(num_rows), num_columns, dtype=torch.int32)
        factors = torch.ones(num_rows)
        for start, rows in dense_chunks(x, nodes):
            here, is_set = slice(start, start + len(rows)), rows != 0
            by_row[:, here] = _packed(is_set)
            words = _packed(is_set.t())
            by_column[start // WORD_BITS : start // WORD_BITS + len(words)] = words
            value = _value_of_each(rows)
            factors[here] = torch.where(value != 0, value, 1)
        has_factors = bool((factors != 1).any())
        return cls(by_row=by_row, by_column=by_column, factors=factors if has_factors else None)


def is_binary(x: Features) -> bool:
    """Return whether the non-zero features of each node are one number; stops at the first that are not."""
    return all(
        bool(((rows == 0) | (rows == _value_of_each(rows)[:, None])).all())
        for _, rows in dense_chunks(x, None)
    )


def binary_bytes(num_rows: int, num_columns: int) -> int:
    """Return the bytes of :class:`BinaryRows` of that shape, with factors."""
    return 4 * (_words(num_columns) * num_rows + _words(num_rows) * num_columns + num_rows)


def _value_of_each(rows: Tensor) -> Tensor:
    """Return a non-zero value of each row, ``(num_rows,)``; 0 for a row of zeros."""
    if rows.shape[1] == 0:
        return rows.new_zeros(len(rows))
    low, high = torch.aminmax(rows, dim=1)
    return torch.where(high > 0, high, low)


def dense_chunks(x: Features, nodes: Tensor | None) -> Iterator[tuple[int, Tensor]]:
    """Yield chunks of dense float32 rows and the number of their first row, a multiple of ``WORD_BITS``."""
    num_rows = x.shape[0] if nodes is None else nodes.numel()
    step = max(CELLS_AT_A_TIME // max(int(x.shape[1]), 1) // WORD_BITS, 1) * WORD_BITS
    for start in range(0, num_rows, step):
        end = min(start + step, num_rows)
        if not isinstance(x, Tensor):
            ids = torch.arange(start, end) if nodes is None else nodes[start:end]
            found = x.rows(ids)
            rows = found.to_dense() if isinstance(found, SparseFeatures) else found
        else:
            rows = x[start:end] if nodes is None else x[nodes[start:end]]
        yield start, rows.to(torch.float32)


def _packed(is_set: Tensor) -> Tensor:
    """Pack the rows of a bool matrix into ``(ceil(num_columns / 32), num_rows)`` int32 words."""
    num_rows, num_columns = is_set.shape
    octets = np.zeros((num_rows, 4 * _words(num_columns)), np.uint8)
    octets[:, : -(-num_columns // 8)] = np.packbits(is_set.contiguous().numpy(), axis=1, bitorder="little")
    return torch.from_numpy(octets.view("<i4").astype(np.int32, copy=False)).t()


def _words(count: int) -> int:
    return -(-count // WORD_BITS)
