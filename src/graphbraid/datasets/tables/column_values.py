"""Columns of tables as plain values: numbers, times and texts of pyarrow as arrays of NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.datasets.tables.file import require_pyarrow
from graphbraid.errors import DataError

EncodedRows = npt.NDArray[Any]
"""``(num_rows, width)`` float32 columns of features, or numbers of rows."""
LARGEST = float(np.finfo(np.float32).max)
SEPARATOR = r"\s*[|;,]\s*"
"""Separator of the categories in a row."""
HELD = {
    "number": "numbers",
    "text": "text",
    "boolean": "true and false",
    "time": "times",
    "list": "lists",
    "nothing": "nothing",
    "other": "something else",
}


def stored_as(kind: Any) -> str:
    """Return the encoders' name of a pyarrow type, a key of :data:`HELD`."""
    of = require_pyarrow().types
    if of.is_dictionary(kind):
        kind = kind.value_type
    if of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        return "list"
    tests = {
        "boolean": (of.is_boolean,),
        "number": (of.is_integer, of.is_floating, of.is_decimal),
        "time": (of.is_timestamp, of.is_date),
        "text": (of.is_string, of.is_large_string, of.is_string_view),
        "nothing": (of.is_null,),
    }
    return next((name for name, checks in tests.items() if any(check(kind) for check in checks)), "other")


def arrow_compute() -> Any:
    """Return ``pyarrow.compute``, once pyarrow is known to be there."""
    require_pyarrow()
    from pyarrow import compute

    return compute


def counts_of(values: Any) -> tuple[list[Any], EncodedRows]:
    """Return the different values of a column, and in how many rows each is."""
    found = arrow_compute().value_counts(values)
    return found.field("values").to_pylist(), found.field("counts").to_numpy(zero_copy_only=False)


def texts_of(values: Any) -> Any:
    """Return a column as text without spaces around it; an empty text is null, and 1.0 is ``1``."""
    arrow, compute = require_pyarrow(), arrow_compute()
    if arrow.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if stored_as(values.type) == "number" and not arrow.types.is_integer(values.type):
        values = values.cast(arrow.float64())
        # one by one: what a number is called must not depend on the others of its column
        whole = compute.and_(
            compute.equal(compute.floor(values), values), compute.less(compute.abs(values), 2**53)
        )
        integers = values.cast(arrow.int64(), safe=False).cast(arrow.string())
        values = compute.if_else(whole, integers, values.cast(arrow.string()))
    texts = compute.utf8_trim_whitespace(values.cast(arrow.string()))
    return compute.if_else(compute.equal(texts, ""), arrow.scalar(None, arrow.string()), texts)


def numbers_of(values: Any) -> EncodedRows:
    """Return a column of numbers as float64; empty fields are NaN."""
    # not safe: integers beyond 2**53 are rounded, as all are to float32 in the end
    texts = texts_of(values) if stored_as(values.type) == "text" else values
    return as_numpy(texts.cast(require_pyarrow().float64(), safe=False))


def times_of(column: str, values: Any) -> EncodedRows:
    """Return times as float64 seconds since 1970; empty fields are NaN."""
    arrow = require_pyarrow()
    if stored_as(values.type) == "number":
        seconds = numbers_of(values)
        if (bad := np.flatnonzero(np.abs(seconds) > 2**53)).size:
            raise DataError(f"column {column!r} is {seconds[bad[0]]} in row {bad[0]}, no time in seconds")
        return seconds
    texts = texts_of(values) if stored_as(values.type) == "text" else values
    found = texts.cast(arrow.timestamp("s", tz=getattr(values.type, "tz", None)), safe=False)
    return as_numpy(found.cast(arrow.int64()).cast(arrow.float64()))


def latest_of(values: Any) -> float:
    """Return the latest time of a column of times in seconds since 1970; NaN if all fields are empty."""
    seconds = times_of("", values)
    return float(np.nanmax(seconds, initial=-np.inf)) if not np.isnan(seconds).all() else np.nan


def is_empty(values: Any) -> EncodedRows:
    """Return which fields are null."""
    return as_numpy(values.is_null())


def as_numpy(values: Any) -> EncodedRows:
    """Return the values of a pyarrow array, in one piece or in chunks; nulls of numbers are NaN."""
    if hasattr(values, "num_chunks"):
        values = values.combine_chunks()
    found: EncodedRows = values.to_numpy(zero_copy_only=False)
    return found


@contextmanager
def reading_column(column: str, kind: str | None) -> Iterator[None]:
    """Name the column in pyarrow's errors, such as about a value or type that the kind cannot be."""
    try:
        yield
    except require_pyarrow().ArrowException as error:
        what = "cannot be read" if kind is None else f"holds something that is no {kind}"
        raise DataError(f"column {column!r} {what}: {error}") from error


def list_width(column: str, values: Any) -> int:
    """Return the length of a column's lists; 0 if all fields are empty.

    Raises:
        DataError: the lists have different lengths.
    """
    lengths = arrow_compute().unique(arrow_compute().list_value_length(values.drop_null())).to_pylist()
    if len(lengths) > 1:
        raise DataError(
            f"column {column!r} holds lists of {lengths[0]} and of {lengths[1]} numbers; all need one length"
        )
    return int(lengths[0]) if lengths else 0
