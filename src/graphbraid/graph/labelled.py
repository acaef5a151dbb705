"""LabelledNodes: what nodes with labels and splits say of them, be they of a graph or of one type of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph.array_checks import is_multi_hot
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph.types import NodeSet

TaskName = Literal["single-label", "multi-label", "regression"]
SPLITS = ("train", "val", "test")
"""Names of the splits that training knows."""


class LabelledNodes:
    """The part of :class:`graphbraid.Graph` about labels and splits, which a node type has as well."""

    __slots__ = ()

    @property
    def task(self) -> TaskName:
        """Task that ``y`` implies: int64 is single-label, a matrix of 0 and 1 multi-label, else regression.

        A matrix of 0 and 1 may have rows of NaN, -1 or -100 throughout, for nodes without labels.

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
