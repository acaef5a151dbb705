"""Grams of rows that never lie in memory as a whole, and come in rounds.

A gram sums several parts of the rows, each by itself (:func:`.tall_gram`), so that threads may share it. A
round has a piece of each part and continues the part's sum, so the result has the bits of a gram of all rows
at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.ops.kernels import row_contiguous
from graphbraid.ops.linear import kernels_for
from graphbraid.ops.reference.rows import gram_parts, gram_sums_length


@dataclass(frozen=True, slots=True)
class Round:
    """A piece of each part of a table's rows."""

    first: int
    """Place in each part of the first of its rows."""
    last: int
    """The place behind the last."""
    pieces: tuple[range, ...]
    """The rows of each piece, in ascending order."""
    ends: bool
    """Whether it is the last round."""

    @property
    def num_rows(self) -> int:
        """Rows of all pieces."""
        return sum(map(len, self.pieces))

    def ids(self) -> Tensor:
        """``(num_rows,)`` int64 rows of all pieces, in order."""
        return torch.cat([torch.arange(piece.start, piece.stop) for piece in self.pieces])

    def of(self, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield where each piece lies in the table, with its rows among those of the round."""
        at = 0
        for piece in self.pieces:
            yield slice(piece.start, piece.stop), rows[at : at + len(piece)]
            at += len(piece)


def rounds_of(num_rows: int, most: int) -> list[Round]:
    """Divide a table's rows into rounds of at most ``most`` rows, or of one row of each part."""
    parts = gram_parts(num_rows)
    longest, step = max(map(len, parts)), max(1, most // len(parts))
    return [
        Round(first, min(first + step, longest), tuple(p[first : first + step] for p in parts), ends=stop)
        for first in range(0, max(longest, 1), step)
        for stop in (first + step >= longest,)
    ]


class GramRounds:
    """The gram ``a.t() @ b`` of a float32 ``b`` that comes in rounds, to the bits of :func:`tall_gram`.

    The last round writes ``out``, ``(height, width)``; if it is None, a new matrix.
    """

    def __init__(self, a: Tensor, width: int, out: Tensor | None = None) -> None:
        self._a = row_contiguous(a.detach())
        self.out = a.new_empty(a.shape[1], width) if out is None else out
        self._sums = a.new_empty(gram_sums_length(len(a), a.shape[1], width))

    def add(self, part: Round, rows: Tensor) -> None:
        """Add a round's ``(num_round_rows, width)`` float32 rows; rounds come in their order."""
        kernels, rows = kernels_for(self._a, rows, self.out), row_contiguous(rows.detach())
        kernels.tall_gram_round(self._a, rows, self._sums, self.out, part.first, part.last, part.ends)
