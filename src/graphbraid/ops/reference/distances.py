"""Plain PyTorch twins of the distances of rows from each other."""

# ruff: noqa: PLR0917 - the kernel takes its arguments by position
from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from graphbraid.ops.reference.kinds import Matrix

DISTANCES = ("absolute", "euclidean", "moduli")
"""Kinds of distances, by their codes: sums of absolute values, lengths, and sums of complex moduli."""
_MODULI = DISTANCES.index("moduli")
_HELD = 1 << 16
"""Numbers of each temporary matrix of a sum of moduli: they stay in a core's cache."""


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
