"""Narrowing: features that are written to a store as float16, bfloat16 or int8, and what that rounds away."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_choice
from graphbraid.datasets.store_arrays import ArrayParts
from graphbraid.errors import DataError
from graphbraid.graph.scaled_features import rounded, rows_at_a_time, widened
from graphbraid.graph.scans import check_finite
from graphbraid.graph.sparse_features import FEATURE_DTYPES
from graphbraid.signatures import typed

DTYPES = ("float16", "bfloat16", "int8")
"""Names of what features may be narrowed to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """How far narrowed rows are from those they were made of.

    The error of a row is the length of the difference divided by the length of the row, |row - stored| /
    |row|; rows of zeros, which are stored exactly, are left out.
    """

    dtype: str
    largest: float
    """Largest error of a row; 0 without rows."""
    largest_row: int
    """The row that has it, in the order in which rows were written; -1 if all are exact."""
    mean: float
    """Mean error of the rows."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        at = f" (row {self.largest_row})" if self.largest_row >= 0 else ""
        return (
            f"features as {self.dtype}: relative error of a row at most {self.largest:.2g}{at}, "
            f"{self.mean:.2g} on average"
        )


@typed
class Narrowing:
    """Narrows a store's features while they are written, and sums up what that rounds away.

    ``int8`` makes rows of int8 with a float32 scale each (:class:`graphbraid.ScaledFeatures`).

    Args:
        dtype: one of :data:`DTYPES`.

    Raises:
        ConfigError: there is no such dtype.
    """

    def __init__(self, dtype: str) -> None:
        check_choice(dtype, "features_dtype", DTYPES)
        self.dtype = dtype
        self._count, self._sum = 0, 0.0
        self._largest: tuple[float, int] = (0.0, -1)

    @property
    def rounding(self) -> Rounding:
        """The rounding of the rows written so far."""
        mean = self._sum / self._count if self._count else 0.0
        largest, row = self._largest
        return Rounding(dtype=self.dtype, largest=largest, largest_row=row, mean=mean)

    def arrays(self, arrays: Mapping[str, ArrayParts]) -> dict[str, ArrayParts]:
        """Return what a store's arrays become; those of ``x`` are made of its parts as these are written.

        Raises:
            DataError: there are no dense float features. While they are written: a number is not finite, or
                is beyond what the dtype holds.
        """
        x = arrays.get("x")
        if x is None or x.dtype not in FEATURE_DTYPES or "x_scale" in arrays:
            raise DataError(f"only dense float features are stored as {self.dtype}; {_why_not(arrays)}")
        if self.dtype != "int8":
            made = {"x": ArrayParts(getattr(torch, self.dtype), x.shape, lambda: self._parts(x))}
            return {**arrays, **made}
        scale = torch.empty(x.shape[0])
        made = {
            "x": ArrayParts(torch.int8, x.shape, lambda: self._parts(x, scale)),
            "x_scale": ArrayParts.whole(scale),  # written behind x, by which it is filled
        }
        rest = {name: array for name, array in arrays.items() if name != "x"}
        return {**rest, **made}

    def _parts(self, x: ArrayParts, scale: Tensor | None = None) -> Iterator[Tensor]:
        self._forget()
        first = 0
        for part in x.parts():
            for begin in range(0, len(part), rows_at_a_time(part)):
                rows = part[begin : begin + rows_at_a_time(part)].detach().cpu()
                check_finite(rows, first)
                if scale is None:
                    made = wide = self._cast(rows, first)
                else:
                    made, of_rows = rounded(rows)
                    wide = widened(made, of_rows)
                    scale[first : first + len(rows)] = of_rows
                self._count_rows(rows, wide, first)
                first += len(rows)
                yield made

    def _cast(self, rows: Tensor, first: int) -> Tensor:
        dtype = getattr(torch, self.dtype)
        made: Tensor = rows.to(dtype)
        beyond = made.isinf()
        if bool(beyond.any()):
            row, column = (int(i) for i in beyond.nonzero()[0])
            raise DataError(
                f"x[{first + row}, {column}] is {float(rows[row, column]):g}, beyond the largest "
                f"{self.dtype}, {torch.finfo(dtype).max:g}. Scale the features first, or take another dtype"
            )
        return made

    def _count_rows(self, rows: Tensor, wide: Tensor, first: int) -> None:
        exact = rows.double()
        length = exact.norm(dim=1)
        error = (exact - wide.double()).norm(dim=1)
        relative = torch.where(length > 0, error / length.where(length > 0, 1.0), 0.0)
        self._count += int((length > 0).sum())
        self._sum += float(relative.sum())
        if relative.numel() and float(relative.max()) > self._largest[0]:
            row = int(relative.argmax())
            self._largest = float(relative[row]), first + row

    def _forget(self) -> None:
        self._count, self._sum = 0, 0.0
        self._largest = (0.0, -1)


def _why_not(arrays: Mapping[str, ArrayParts]) -> str:
    if "x_scale" in arrays:
        return "these are int8 already, so convert what they were made of"
    if "x_values" in arrays:
        return "these are sparse, of which each number has its column beside it"
    return f"these are {arrays['x'].dtype}" if "x" in arrays else "the graph has none"
