"""Narrowing: features written to a store as float16, bfloat16 or int8, and their rounding errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_choice
from graphbraid.datasets.store.arrays import ArrayParts
from graphbraid.errors import DataError
from graphbraid.graph.checks import named
from graphbraid.graph.scaled_features import rounded, rows_at_a_time, widened
from graphbraid.graph.scans import check_finite
from graphbraid.graph.sparse_features import FEATURE_DTYPES
from graphbraid.signatures import typed

DTYPES = ("float16", "bfloat16", "int8")
"""Dtypes that features may be narrowed to."""
_ONE_TYPE: Mapping[str, str] = MappingProxyType({"x": ""})


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
    node_type: str = ""
    """Node type of that row, in a graph with types."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        of_type = f" of {self.node_type}" if self.node_type else ""
        at = f" (row {self.largest_row}{of_type})" if self.largest_row >= 0 else ""
        return (
            f"features as {self.dtype}: relative error of a row at most {self.largest:.2g}{at}, "
            f"{self.mean:.2g} on average"
        )


@typed
class Narrowing:
    """Narrows a store's features while they are written, and sums up the rounding errors.

    ``int8`` makes rows of int8 with a float32 scale each (:class:`graphbraid.ScaledFeatures`).

    Args:
        dtype: one of :data:`DTYPES`.

    Raises:
        ConfigError: there is no such dtype.
    """

    def __init__(self, dtype: str) -> None:
        check_choice(dtype, "features_dtype", DTYPES)
        self.dtype = dtype
        self._errors: dict[str, _Errors] = {}

    @property
    def rounding(self) -> Rounding:
        """The rounding of the rows written so far."""
        found = list(self._errors.values())
        count = sum(errors.count for errors in found)
        most = max(found, key=lambda errors: errors.largest, default=_Errors(""))
        return Rounding(
            dtype=self.dtype,
            largest=most.largest,
            largest_row=most.largest_row,
            mean=sum(errors.sum for errors in found) / count if count else 0.0,
            node_type=most.node_type if most.largest_row >= 0 else "",
        )

    def arrays(
        self, arrays: Mapping[str, ArrayParts], of_types: Mapping[str, str] = _ONE_TYPE
    ) -> dict[str, ArrayParts]:
        """Return a store's arrays after narrowing; parts of features are narrowed as they are written.

        Args:
            arrays: by name.
            of_types: names of the arrays of features, with their node types; "" in a graph without types.
                Sparse features of a type are not narrowed.

        Raises:
            DataError: there are no dense float features. While they are written: a number is not finite, or
                is beyond what the dtype holds.
        """
        self._errors.clear()
        dense = [name for name in of_types if name in arrays and arrays[name].dtype in FEATURE_DTYPES]
        if not dense or any(f"{name}_scale" in arrays for name in of_types):
            raise DataError(
                f"only dense float features are stored as {self.dtype}; {_why_not(arrays, of_types)}"
            )
        made: dict[str, ArrayParts] = {}
        for name in dense:
            made |= self._narrowed(name, arrays[name], of_types[name])
        if self.dtype != "int8":
            return {**arrays, **made}
        rest = {name: array for name, array in arrays.items() if name not in made}
        return {**rest, **made}

    def _narrowed(self, name: str, x: ArrayParts, node_type: str) -> dict[str, ArrayParts]:
        if self.dtype != "int8":
            dtype = getattr(torch, self.dtype)
            return {name: ArrayParts(dtype, x.shape, lambda: self._parts(name, x, node_type))}
        scale = torch.empty(x.shape[0])
        return {
            name: ArrayParts(torch.int8, x.shape, lambda: self._parts(name, x, node_type, scale)),
            f"{name}_scale": ArrayParts.whole(scale),  # written behind the rows, by which it is filled
        }

    def _parts(
        self, name: str, x: ArrayParts, node_type: str, scale: Tensor | None = None
    ) -> Iterator[Tensor]:
        errors = self._errors[name] = _Errors(node_type)
        first = 0
        for part in x.parts():
            for begin in range(0, len(part), rows_at_a_time(part)):
                rows = part[begin : begin + rows_at_a_time(part)].detach().cpu()
                with named(f"nodes of type {node_type!r}") if node_type else nullcontext():
                    check_finite(rows, first)
                    made, of_rows = (self._cast(rows, first), None) if scale is None else rounded(rows)
                if scale is not None and of_rows is not None:
                    scale[first : first + len(rows)] = of_rows
                errors.add(rows, made if of_rows is None else widened(made, of_rows), first)
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


class _Errors:
    """Sums up the errors of the rows of an array."""

    def __init__(self, node_type: str) -> None:
        self.node_type = node_type
        self.count, self.sum, self.largest, self.largest_row = 0, 0.0, 0.0, -1

    def add(self, rows: Tensor, wide: Tensor, first: int) -> None:
        """Count rows and their rounded form; ``first`` is the number of the first row."""
        exact = rows.double()
        length = exact.norm(dim=1)
        error = (exact - wide.double()).norm(dim=1)
        relative = torch.where(length > 0, error / length.where(length > 0, 1.0), 0.0)
        self.count += int((length > 0).sum())
        self.sum += float(relative.sum())
        if relative.numel() and float(relative.max()) > self.largest:
            row = int(relative.argmax())
            self.largest, self.largest_row = float(relative[row]), first + row


def _why_not(arrays: Mapping[str, ArrayParts], of_types: Mapping[str, str]) -> str:
    held = [name for name in of_types if name in arrays]
    if any(f"{name}_scale" in arrays for name in held):
        return "these are int8 already, so convert what they were made of"
    if any(f"{name}_values" in arrays for name in of_types):
        return "these are sparse: each number has its column beside it"
    return f"these are {arrays[held[0]].dtype}" if held else "the graph has none"
