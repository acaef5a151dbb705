"""Plain twin of the gram whose rows come in rounds, and the parts of the rows that it sums one by one."""

# ruff: noqa: PLR0917 - the kernel takes its arguments by position
from __future__ import annotations

from torch import Tensor

_MOST_PARTS, _LEAST_ROWS = 8, 1024
"""The limits that csrc/dense/dense.h has."""


def gram_parts(num_rows: int) -> list[range]:
    """Return the rows of each part of a gram, which is summed by itself."""
    parts = min(max(num_rows // _LEAST_ROWS, 1), _MOST_PARTS)
    return [range(num_rows * part // parts, num_rows * (part + 1) // parts) for part in range(parts)]


def gram_sums_length(num_rows: int, height: int, width: int) -> int:
    """Return the elements that the sums of a ``(height, width)`` gram take, whichever kernel writes them."""
    whole_height, whole_width = (-(-columns // 16) * 16 for columns in (height, width))
    return len(gram_parts(num_rows)) * max(height * whole_width, width * whole_height)


def tall_gram_round(
    a: Tensor, b: Tensor, sums: Tensor, out: Tensor, first: int, last: int, ends: bool
) -> None:
    """Add a round's rows to the sums of each part; at the end, compute ``out`` by adding these up.

    A round has the rows from ``first`` up to ``last`` of every part, as far as the part has them.

    Args:
        a: ``(num_rows, height)``, all rows.
        b: ``(num_round_rows, width)`` rows of the round, one part's behind the other's.
        sums: ``(gram_sums_length,)`` float32, kept from round to round; the first one clears it.
        out: ``(height, width)``, written if the round ``ends``.
        first: of each part's rows.
        last: the row behind the last, likewise.
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


__all__ = ["gram_parts", "gram_sums_length", "tall_gram_round"]
