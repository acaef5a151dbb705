"""Labels and splits of nodes, of a graph or of one of its types: tasks, classes, and marks of no label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph.types import NodeSet

TaskName = Literal["single-label", "multi-label", "regression"]
SPLITS = ("train", "val", "test")
"""Names of the splits that training knows."""
_SCAN = 1 << 20
UNLABELLED = (-1, -100)
"""Class numbers that mean "no label": graphbraid's, and torch's (``ignore_index`` of its losses)."""


class LabelledNodes:
    """The part of :class:`graphbraid.Graph` about labels and splits, which a node type has as well."""

    __slots__ = ()

    @property
    def task(self) -> TaskName:
        """Task that ``y`` implies: int64 is single-label, a matrix of 0 and 1 multi-label, else regression.

        A matrix of 0 and 1 may have cells of NaN, and rows of -1 or -100 throughout, for labels that are not
        known.

        Raises:
            DataError: the graph has no labels.
        """
        y = self._labels()
        if not y.dtype.is_floating_point:
            return "single-label"
        return "multi-label" if y.ndim == 2 and is_multi_hot(y) else "regression"

    @property
    def num_classes(self) -> int:
        """Number of classes (largest class plus one), of labels (multi-label) or of targets (regression).

        Raises:
            DataError: the graph has no labels.
        """
        y = self._labels()
        if y.dtype.is_floating_point:
            return 1 if y.ndim == 1 else int(y.shape[1])
        return max(int(y.max()) + 1, 0) if y.numel() else 0

    @typed
    def split(self, name: str) -> Tensor:
        """Return the node ids of a split.

        Raises:
            DataError: there is no such split, or it is empty.
        """
        splits = cast("NodeSet", self).splits
        ids = splits.get(name)
        if ids is None:
            present = ", ".join(splits) or "none"
            raise DataError(
                f"the graph has no split {name!r} (present: {present}); pass splits={{{name!r}: ids}}"
            )
        if not ids.numel():
            raise DataError(f"split {name!r} is empty; it needs at least one node id")
        return ids

    def _labels(self) -> Tensor:
        y = cast("NodeSet", self).y
        if y is None:
            raise DataError("the graph has no labels; set them with graph.replace(y=...)")
        return y


def has_class(labels: Tensor) -> Tensor:
    """Return a bool tensor that is True where integer ``labels`` are classes and not :data:`UNLABELLED`."""
    known = labels != UNLABELLED[0]
    for none in UNLABELLED[1:]:
        known &= labels != none
    return known


def has_labels(y: Tensor) -> Tensor:
    """Return a bool tensor that is False for the rows of a matrix of labels that are marks of no label.

    Such rows are NaN throughout or, in a matrix of several columns, one of :data:`UNLABELLED` throughout; a
    single number may be a target.
    """
    known = ~y.isnan().all(dim=1)
    for none in UNLABELLED if y.shape[1] > 1 else ():
        known &= (y != none).any(dim=1)
    return known


def is_multi_hot(y: Tensor) -> bool:
    """Return whether a float matrix holds 0, 1 and NaN alone, but for rows without :func:`has_labels`."""
    return all(
        bool(((_is_bit(part) | part.isnan()).all(dim=1) | ~has_labels(part)).all()) for part in _row_parts(y)
    )


def misses_cells(y: Tensor) -> bool:
    """Return whether a row of a float matrix has NaN in some of its columns alone."""
    return y.ndim == 2 and any(
        bool((part.isnan().any(dim=1) & ~part.isnan().all(dim=1)).any()) for part in _row_parts(y)
    )


def first_partly_labelled(y: Tensor) -> int:
    """Return the first row that holds marks of no label beside 0 and 1, in a matrix of nothing else; else -1.

    A matrix without a 0 or without a 1 may hold targets, such as signs, and has no such row.
    """
    found, begin, seen = -1, 0, torch.zeros(2, dtype=torch.bool)
    for part in _row_parts(y):
        bits = _is_bit(part)
        marks = part.isnan() | (part == UNLABELLED[0]) | (part == UNLABELLED[1])
        if not bool((bits | marks).all()):
            return -1
        partly = bits.any(dim=1) & marks.any(dim=1)
        if found < 0 and bool(partly.any()):
            found = begin + int(partly.nonzero()[0])
        seen |= torch.tensor([bool((part == bit).any()) for bit in (0, 1)])
        begin += part.shape[0]
    return found if bool(seen.all()) else -1


def _is_bit(values: Tensor) -> Tensor:
    return (values == 0) | (values == 1)


def _row_parts(y: Tensor) -> Iterator[Tensor]:
    """Yield the rows of a matrix, about a million numbers at a time, to make no large temporary."""
    rows = max(1, _SCAN // max(1, y.shape[1]))
    return (y[begin : begin + rows] for begin in range(0, y.shape[0], rows))
