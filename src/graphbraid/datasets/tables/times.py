"""Columns of times in tables: numbers as they are, dates and timestamps as seconds since 1970."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.datasets.tables.file import TableFile, first_null, require_pyarrow
from graphbraid.errors import DataError

_Array = npt.NDArray[Any]


def time_type(file: TableFile, column: str) -> Any:
    """Return the pyarrow type to read a column of times as.

    Raises:
        DataError: there is no such column, or it holds neither numbers nor dates.
    """
    arrow = require_pyarrow()
    kind = file.types[file.require(column, "time")]
    if arrow.types.is_integer(kind):
        return arrow.int64()
    if arrow.types.is_floating(kind):
        return arrow.float64()
    if arrow.types.is_date(kind) or arrow.types.is_timestamp(kind):
        return arrow.timestamp("s", tz=getattr(kind, "tz", None))
    raise DataError(f"{file.name}: time column {column!r} holds {kind}; numbers or dates are needed")


def times_of(file: TableFile, values: Any, row: int, column: str) -> _Array:
    """Return the times of a batch that was read as :func:`time_type`: ``(num_rows,)`` int64 or float64.

    Args:
        file: the table, for messages.
        values: the column of the batch.
        row: row of the table that the batch begins with.
        column: name of the column.

    Raises:
        DataError: a time is empty or not finite; names file, row and column.
    """
    arrow = require_pyarrow()
    if values.null_count:
        raise DataError(
            f"{file.row(row + first_null(values))}: time column {column!r} is empty; every row needs a time"
        )
    if arrow.types.is_timestamp(values.type):
        values = values.cast(arrow.int64())
    found: _Array = values.to_numpy(zero_copy_only=False)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        at = int(np.flatnonzero(~np.isfinite(found))[0])
        raise DataError(f"{file.row(row + at)}: time column {column!r} is {found[at]}, not finite")
    return found
