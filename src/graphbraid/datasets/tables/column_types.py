"""Columns of tables: their plain values, and their types, which a user chooses or the values tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from graphbraid.arguments import check_type
from graphbraid.datasets.tables.file import is_index, require_pyarrow
from graphbraid.errors import ConfigError, DataError, did_you_mean

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

HOWS: dict[str, tuple[str, ...]] = {
    "number": ("standard", "quantile", "log", "buckets", "raw"),
    "category": ("one-hot", "learned"),
    "categories": ("multi-hot",),
    "boolean": ("flag",),
    "time": ("calendar",),
    "text": ("words", "sentences"),
    "embedding": ("vector",),
    "id": (),
    "constant": (),
    "ignore": (),
}
"""The kinds of columns and their encoders, the default first. A kind without encoders is left out."""
MOST_ENTRIES = {"one-hot": 50, "learned": 100_000, "multi-hot": 50, "words": 100}
"""Most entries that an encoder keeps, unless ``size`` says otherwise."""
_MOST_CODES = 20  # integers with at most this many values, each often, are categories
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_OTHER_NUMBER = r"^[+-]?[$€£]?\s*\d[\d., ']*[%$€£]?$"  # 1,5 or 1,234 or $5 or 5 %
_DAY_FIRST = r"^\d{1,2}[./-]\d{1,2}[./-]\d{4}"
_OFTEN = 5  # rows of a value that is no accident


class ColumnChoice(BaseModel):
    """A user's choice for one column. Fields that are None are inferred."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    type: str | None = None
    """One of :data:`HOWS`."""
    encoder: str | None = None
    """One of the kind's encodings."""
    size: int | None = None
    """Most entries to keep: of categories or words."""
    model: str | None = None
    """Name of the model of ``sentences``."""

    @classmethod
    def of(cls, given: str | ColumnChoice) -> ColumnChoice:
        """Return the choice that a kind or encoding stands for; ConfigError if there is no such one."""
        check_type(given, "the type or encoder of a column", (str, cls), "text", error=ConfigError)
        if isinstance(given, str):
            given = cls(type=given) if given in HOWS else cls(encoder=given)
        choice, kind = given, given.type
        if choice.encoder is not None and kind is None:
            kind = next((name for name, hows in HOWS.items() if choice.encoder in hows), None)
        known = [*HOWS, *(how for hows in HOWS.values() for how in hows)]
        if (choice.type or kind) not in (None, *HOWS) or (choice.encoder is not None and kind is None):
            unknown = choice.encoder if kind is None else choice.type
            hint = did_you_mean(str(unknown), known, joined=True) or f"; known are: {', '.join(known)}"
            raise ConfigError(f"there is no type or encoder of columns {unknown!r}{hint}")
        if kind is not None and choice.encoder is not None and choice.encoder not in HOWS[kind]:
            raise ConfigError(
                f"the type {kind} has no encoder {choice.encoder!r}; it has {', '.join(HOWS[kind]) or 'none'}"
            )
        if choice.encoder == "sentences" and choice.model is None:
            raise ConfigError("the encoder sentences needs model: the name of a sentence-transformers model")
        if choice.size is not None and choice.size < 1:
            raise ConfigError(f"size must be at least 1; got {choice.size}")
        return choice.model_copy(update={"type": kind})


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """The decision about a column, as ``graphbraid convert`` prints it."""

    column: str
    kind: str
    how: str
    """The encoding; "" if the column is left out."""
    width: int
    """Number of columns of features that it becomes."""
    why: str


def infer(name: str, values: Any) -> tuple[str, str]:
    """Return the kind of a column and why it has this kind; ``values`` is a ``pyarrow.ChunkedArray``."""
    family, present = stored_as(values.type), values.drop_null()
    if family == "text":
        present = texts_of(values).drop_null()
    if not len(present):
        return "constant", "all fields are empty"
    if family == "list":
        return _infer_list(values)
    if family == "other" or is_index(name):
        why = f"{values.type} has no encoder" if family == "other" else "an index that pandas wrote"
        return "ignore", why
    distinct = int(require_pyarrow().compute.count_distinct(present).as_py())
    if distinct == 1:
        return "constant", "no different values"
    if family == "number":
        return _infer_number(name, present, distinct)
    return _infer_text(name, present, distinct) if family == "text" else (family, f"{values.type}")


def _infer_list(values: Any) -> tuple[str, str]:
    inner = stored_as(values.type.value_type)
    if inner != "number":
        return ("categories", "lists of texts") if inner == "text" else ("ignore", f"{values.type}")
    lengths = require_pyarrow().compute.list_value_length(values.drop_null()).unique().to_pylist()
    if len(lengths) == 1 and lengths[0]:
        return "embedding", f"lists of {lengths[0]} numbers"
    return "ignore", f"lists of {len(lengths)} different lengths"


def _infer_number(name: str, present: Any, distinct: int) -> tuple[str, str]:
    if not require_pyarrow().types.is_integer(present.type):
        return "number", f"{present.type}"
    if distinct == len(present) and re.search(r"(^|_)(id|key)$", name.lower()):
        return "id", "a different whole number in each row"
    if distinct <= _MOST_CODES:
        rarest = counts_of(present)[1].min()
        if rarest >= _OFTEN:
            return "category", f"{distinct} whole numbers, each in {rarest} rows or more"
    return "number", f"{present.type}"


def _infer_text(name: str, present: Any, distinct: int) -> tuple[str, str]:
    compute, count = require_pyarrow().compute, len(present)
    if _are_times(present):
        return "time", "dates as text"
    lengths = [compute.list_value_length(compute.split_pattern_regex(present, p)) for p in (r"[|;]", r"\s+")]
    parts, words = (float(compute.mean(one).as_py()) for one in lengths)
    if parts > 1.2:
        pieces = compute.list_flatten(compute.split_pattern_regex(present, SEPARATOR))
        if compute.count_distinct(pieces).as_py() <= max(MOST_ENTRIES["multi-hot"], len(pieces) // _OFTEN):
            return "categories", f"{parts:.1f} parts between | or ; in a row"
    share = float(compute.mean(compute.match_substring_regex(present, _NUMBER)).as_py())
    hint = f"; {int(100 * share)} % are numbers: empty the others to have numbers" if 0.5 < share < 1 else ""
    if share < 1 and compute.all(compute.match_substring_regex(present, _OTHER_NUMBER)).as_py():
        hint = "; numbers are read if they are written as 1234.5"
    if compute.all(compute.match_substring_regex(present, _DAY_FIRST)).as_py():
        hint = "; dates are times if they are written as 2026-01-31"
    if distinct == count and words >= 3:
        return "text", f"{words:.1f} words in a row{hint}"
    if distinct == count or re.search(r"(^|_)(id|key)$", name.lower()):
        return "id", f"a name, or different in each row{hint}"
    is_repeated = count >= (2 if distinct <= MOST_ENTRIES["one-hot"] else _OFTEN) * distinct
    if is_repeated and (distinct <= MOST_ENTRIES["one-hot"] or words < 3):
        return "category", f"{distinct} different texts{hint}"
    return (
        ("text", f"{words:.1f} words in a row{hint}")
        if words > 1.5
        else ("ignore", f"{distinct} texts, most of them rare{hint}")
    )


def _are_times(present: Any) -> bool:
    """Return whether all texts are dates as in ISO 8601, all with an offset from UTC or all without one."""
    if not re.match(r"\d{4}-\d\d-\d\d", str(present[0])):
        return False
    try:
        _as_times(present)
    except require_pyarrow().ArrowInvalid:
        return False
    return True


def _as_times(texts: Any) -> Any:
    """Return texts as timestamps, in the largest unit that they fit; ArrowInvalid if they are none."""
    arrow, present = require_pyarrow(), texts.drop_null()
    zone = "UTC" if len(present) and re.search(r":.*[Z+-]", str(present[0])) else None
    for unit in ("s", "us"):
        with suppress(arrow.ArrowInvalid):
            return texts.cast(arrow.timestamp(unit, tz=zone))
    return texts.cast(arrow.timestamp("ns", tz=zone))


def decide(
    table: Any, given: Mapping[str, ColumnChoice], taken: Sequence[str]
) -> dict[str, tuple[ColumnChoice, str]]:
    """Return kind and encoding of each column without another role, and why.

    ``taken`` are columns with another role, which are left out unless the user's choices ``given`` name them.
    ConfigError: a choice is of a column that does not exist.
    """
    for name in given:
        if name not in table.column_names:
            hint = did_you_mean(name, table.column_names)
            raise ConfigError(
                f"columns names {name!r}, and the table has {', '.join(table.column_names)}.{hint}"
            )
    found = {}
    for name in table.column_names:
        choice = given.get(name, ColumnChoice())
        if name in taken and name not in given:
            continue
        with reading_column(name, choice.type):
            kind, why = (choice.type, "as given") if choice.type else infer(name, table.column(name))
            how = choice.encoder or _default_how(kind, table.column(name))
        found[name] = choice.model_copy(update={"type": kind, "encoder": how}), why
    return found


def _default_how(kind: str, values: Any) -> str | None:
    hows = HOWS[kind]
    if kind == "category":
        distinct = require_pyarrow().compute.count_distinct(texts_of(values)).as_py()
        return "one-hot" if distinct <= MOST_ENTRIES["one-hot"] else "learned"
    if kind == "number" and stored_as(values.type) == "number":
        numbers = numbers_of(values)
        numbers = numbers[np.abs(numbers) <= LARGEST]
        # a long tail, such as of prices: the largest is ten deviations away
        if len(numbers) and numbers.min() >= 0 and numbers.max() > numbers.mean() + 10 * numbers.std():
            return "log"
    return hows[0] if hows else None


# ---- plain values: numbers, times and texts of pyarrow as arrays of NumPy


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


def counts_of(values: Any) -> tuple[list[Any], EncodedRows]:
    """Return the different values of a column, and in how many rows each is."""
    found = values.value_counts()
    return found.field("values").to_pylist(), found.field("counts").to_numpy(zero_copy_only=False)


def texts_of(values: Any) -> Any:
    """Return a column as text without spaces around it; an empty text is null, and 1.0 is ``1``."""
    arrow, compute = require_pyarrow(), require_pyarrow().compute
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
    found = _as_times(texts_of(values)) if stored_as(values.type) == "text" else values
    found = found.cast(arrow.timestamp("s", tz=getattr(found.type, "tz", None)), safe=False)
    return as_numpy(found.cast(arrow.int64()).cast(arrow.float64()))


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
    """Return the length of a column's lists, 0 if all are empty; DataError if lengths differ."""
    lengths = require_pyarrow().compute.list_value_length(values.drop_null()).unique().to_pylist()
    if len(lengths) > 1:
        raise DataError(
            f"column {column!r} holds lists of {lengths[0]} and of {lengths[1]} numbers; all need one length"
        )
    return int(lengths[0]) if lengths else 0
