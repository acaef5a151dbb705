"""Plain PyTorch twins of products of tall matrices and of bits, their grams, and distances of rows."""

# ruff: noqa: PLR0917 - the kernel takes its arguments by position
from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from graphbraid.ops.dropout import RowEpilogue
from graphbraid.ops.reference.kinds import Ids, Matrix, Matrix32, Vector, Vector32, WordMatrix
from graphbraid.ops.reference.rowwise import apply_epilogue

_MOST_PARTS, _LEAST_ROWS = 8, 1024
"""The limits that csrc/dense/dense.h has."""
DISTANCES = ("absolute", "euclidean", "moduli")
"""Kinds of distances, by their codes: sums of absolute values, lengths, and sums of complex moduli."""
_MODULI = DISTANCES.index("moduli")
_HELD = 1 << 16
"""Numbers of each temporary matrix of a sum of moduli: they stay in a core's cache."""


def gram_parts(num_rows: int) -> list[range]:
    """Return the rows of each part of a gram, which is summed by itself."""
    parts = min(max(num_rows // _LEAST_ROWS, 1), _MOST_PARTS)
    return [range(num_rows * part // parts, num_rows * (part + 1) // parts) for part in range(parts)]


def gram_sums_length(num_rows: int, height: int, width: int) -> int:
    """Return the elements that the sums of a ``(height, width)`` gram take, whichever kernel writes them."""
    whole_height, whole_width = (-(-columns // 16) * 16 for columns in (height, width))
    return len(gram_parts(num_rows)) * max(height * whole_width, width * whole_height)


def tall_gram_round(
    a: Matrix32, b: Matrix32, sums: Vector32, out: Matrix32, first: int, last: int, ends: bool
) -> None:
    """Add a round's rows to the sums of each part; at the end, compute ``out`` by adding these up.

    A round has the rows from ``first`` up to ``last`` of every part, as far as the part has them.

    Args:
        a: ``(num_rows, height)``, all rows.
        b: ``(num_round_rows, width)`` rows of the round, one part's behind the other's.
        sums: ``(gram_sums_length,)`` float32, kept from round to round; the first one clears it.
        out: ``(height, width)``, written if the round ``ends``.
        first: of each part's rows.
        last: the row behind the last of each part.
        ends: whether this is the last round.
    """
    parts, height, width = gram_parts(len(a)), a.shape[1], b.shape[1]
    totals = sums[: len(parts) * height * width].view(len(parts), height, width)
    if first == 0:
        totals.zero_()
    at = 0
    for total, part in zip(totals, parts, strict=True):
        rows = part[first:last]
        total.addmm_(a[rows.start : rows.stop].t(), b[at : at + len(rows)])
        at += len(rows)
    if ends:
        out.copy_(totals.sum(0))


WORD_BITS = 32
"""Number of bits in a word."""


def tall_product(
    a: Matrix32,
    b: Matrix32,
    out: Matrix32,
    add: bool = False,
    ids: Ids | None = None,
    after: RowEpilogue | None = None,
) -> None:
    """Compute ``out = a[ids] @ b`` or ``out += a[ids] @ b`` (all rows without ids), then the epilogue."""
    rows = a if ids is None else a[ids]
    if add:
        out.addmm_(rows, b)
    else:
        torch.mm(rows, b, out=out)
    apply_epilogue(out, after)


def bit_product(
    bits: WordMatrix,
    factors: Vector | None,
    b: Matrix32,
    out: Matrix32,
    add: bool = False,
    after: RowEpilogue | None = None,
) -> None:
    """Compute ``out = diag(factors) x b`` or ``out += ...`` for the matrix x of bits, then the epilogue."""
    rows = _unpacked(bits, b.shape[0], b.dtype)
    if factors is not None:
        rows *= factors[:, None]
    tall_product(rows, b, out, add, None, after)


def bit_gram(a: Matrix32, bits: WordMatrix, factors: Vector | None, out: Matrix32) -> None:
    """Compute ``out = a.t() diag(factors) x`` for the matrix x of bits."""
    scaled = a if factors is None else a * factors[:, None]
    torch.mm(scaled.t(), _unpacked(bits, a.shape[0], a.dtype).t(), out=out)


def _unpacked(bits: Tensor, depth: int, dtype: torch.dtype) -> Tensor:
    """Unpack to ``(num_rows, depth)`` zeros and ones: bit j of ``bits[w, i]`` is row i, column 32 w + j."""
    octets = bits.t().clone(memory_format=torch.contiguous_format).view(torch.uint8)
    each = octets[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device) & 1
    return each.flatten(1)[:, :depth].to(dtype)


def tall_gram(a: Matrix32, b: Matrix32, out: Matrix32, ids: Ids | None = None) -> None:
    """Compute ``out = a.t() @ b[ids]`` (all rows without ids)."""
    torch.mm(a.t(), b if ids is None else b[ids], out=out)


def distances(query: Matrix, rows: Matrix, kind: int, out: Matrix) -> None:
    """Compute ``out[i, j]``, the distance of ``query[i]`` from ``rows[j]``.

    Args:
        query: ``(num_queries, width)`` float32 or float64; complex rows are real, then imaginary parts.
        rows: ``(num_rows, width)`` of the same dtype.
        kind: place in :data:`DISTANCES`.
        out: ``(num_queries, num_rows)``, written.
    """
    if kind != _MODULI:
        # Squares of lengths less a product would save time, and cancel where rows are near each other.
        out.copy_(torch.cdist(query, rows, kind + 1, "donot_use_mm_for_euclid_dist"))
        return
    for i, j, _, moduli in _differences(query, rows):
        torch.sum(moduli, -1, out=out[i, j])


def distances_backward(
    query: Matrix, rows: Matrix, kind: int, out: Matrix, grad: Matrix, of_query: Matrix, of_rows: Matrix
) -> None:
    """Write the gradients of :func:`distances`; what has no difference has none.

    Args:
        query: as before.
        rows: as before.
        kind: as before.
        out: the distances.
        grad: the gradient of ``out``.
        of_query: shaped as ``query``, written.
        of_rows: shaped as ``rows``, written.
    """
    if kind != _MODULI:
        norm, back = kind + 1, torch.ops.aten._cdist_backward
        of_query.copy_(back(grad, query, rows, norm, out))
        of_rows.copy_(back(grad.t().contiguous(), rows, query, norm, out.t().contiguous()))
        return
    of_query.zero_()
    of_rows.zero_()
    for i, j, parts, moduli in _differences(query, rows):
        share = (grad[i, j, None] / moduli).masked_fill_(moduli == 0, 0)
        for part, a, b in zip(parts, of_query[i].chunk(2, -1), of_rows[j].chunk(2, -1), strict=True):
            slope = part.mul_(share)
            a.add_(slope.sum(1))
            b.sub_(slope.sum(0))


def _differences(query: Tensor, rows: Tensor) -> Iterator[tuple[slice, slice, tuple[Tensor, Tensor], Tensor]]:
    """Yield blocks: which queries and rows, real and imaginary parts of their differences, and moduli."""
    width = max(1, query.shape[1] // 2)
    each = max(1, math.isqrt(_HELD // width))
    for i in (slice(begin, begin + each) for begin in range(0, query.shape[0], each)):
        for j in (slice(begin, begin + each) for begin in range(0, rows.shape[0], each)):
            (a, b), (c, d) = query[i, None].chunk(2, -1), rows[None, j].chunk(2, -1)
            real, imaginary = a - c, b - d
            yield i, j, (real, imaginary), torch.addcmul(real * real, imaginary, imaginary).sqrt_()
