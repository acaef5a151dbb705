"""Columns of tables as features: kinds are inferred, encoders are fitted on some rows and applied to all.

pyarrow and NumPy do the work (decision 0019). Everything that is fitted stands in a
:class:`~graphbraid.graph.schema.Encoder`, which is plain data: stores and runs keep it as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from graphbraid.datasets.memory import require_memory
from graphbraid.datasets.tables.file import require_pyarrow
from graphbraid.errors import ConfigError, DataError, MissingPackageError, did_you_mean
from graphbraid.graph.schema import Encoder

EncodedRows = npt.NDArray[Any]
"""``(num_rows, width)`` float32 columns of features, or numbers of rows."""

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
_ENTRIES = {"one-hot": 50, "learned": 100_000, "multi-hot": 50, "words": 100}
"""Most entries that an encoder keeps, unless ``size`` says otherwise."""
_QUANTILES = 101
_BUCKETS = (
    10  # of equally many rows for training, so that a model finds thresholds, such as "in its first month"
)
_DAY = 86_400.0
_LARGEST = float(np.finfo(np.float32).max)
_MOST_CODES = 20  # integers with at most so many values, each often, are categories
_OFTEN = 5  # rows of a value that is no accident
_SEPARATOR = r"\s*[|;,]\s*"
_NO_LETTER = r"[^\pL\pN]+"


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
        """Return the choice that one word stands for: a kind or an encoding.

        Raises:
            ConfigError: there is no such kind or encoding, or they do not go together.
        """
        if isinstance(given, ColumnChoice):
            choice = given
        else:
            choice = cls(type=given) if given in HOWS else cls(encoder=given)
        kind = choice.type
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
    """What was decided about a column, as ``graphbraid convert`` prints it."""

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
        present = _texts(values).drop_null()
    if not len(present):
        return "constant", "all fields are empty"
    if family == "list":
        return _infer_list(values)
    if family == "other":
        return "ignore", f"{values.type} has no encoder"
    distinct = int(_compute().count_distinct(present).as_py())
    if distinct == 1:
        return "constant", "no different values"
    if family == "number":
        return _infer_number(name, present, distinct)
    return _infer_text(name, present, distinct) if family == "text" else (family, f"{values.type}")


def _infer_list(values: Any) -> tuple[str, str]:
    compute, inner = _compute(), values.type.value_type
    if stored_as(inner) != "number":
        return (
            ("categories", "lists of texts") if stored_as(inner) == "text" else ("ignore", f"{values.type}")
        )
    lengths = compute.unique(compute.list_value_length(values.drop_null())).to_pylist()
    if len(lengths) == 1 and lengths[0]:
        return "embedding", f"lists of {lengths[0]} numbers"
    return "ignore", f"lists of {len(lengths)} different lengths"


def _infer_number(name: str, present: Any, distinct: int) -> tuple[str, str]:
    if not require_pyarrow().types.is_integer(present.type):
        return "number", f"{present.type}"
    if distinct == len(present) and re.search(r"(^|_)(id|key)$", name.lower()):
        return "id", "a different whole number in each row"
    if distinct <= _MOST_CODES:
        rarest = _counts(present)[1].min()
        if rarest >= _OFTEN:
            return "category", f"{distinct} whole numbers, each in {rarest} rows or more"
    return "number", f"{present.type}"


def _infer_text(name: str, present: Any, distinct: int) -> tuple[str, str]:
    compute, count = _compute(), len(present)
    if _are_times(present):
        return "time", "dates as text"
    lengths = [compute.list_value_length(compute.split_pattern_regex(present, p)) for p in (r"[|;]", r"\s+")]
    parts, words = (float(compute.mean(one).as_py()) for one in lengths)
    if parts > 1.2:
        pieces = compute.list_flatten(compute.split_pattern_regex(present, _SEPARATOR))
        if compute.count_distinct(pieces).as_py() <= max(_ENTRIES["multi-hot"], len(pieces) // _OFTEN):
            return "categories", f"{parts:.1f} parts between | or ; in a row"
    if distinct == count or re.search(r"(^|_)(id|key)$", name.lower()):
        is_text = distinct == count and words >= 3
        return (
            ("text", f"{words:.1f} words in a row") if is_text else ("id", "a name, or different in each row")
        )
    is_repeated = count >= (2 if distinct <= _ENTRIES["one-hot"] else _OFTEN) * distinct
    if is_repeated and (distinct <= _ENTRIES["one-hot"] or words < 3):
        return "category", f"{distinct} different texts"
    if words > 1.5:
        return "text", f"{words:.1f} words in a row"
    return "ignore", f"{distinct} texts, most of them rare"


def _are_times(present: Any) -> bool:
    """Return whether all texts are dates as in ISO 8601."""
    arrow = require_pyarrow()
    if not re.match(r"\d{4}-\d\d-\d\d", str(present[0])):
        return False
    try:
        present.cast(arrow.timestamp("s"))
    except arrow.ArrowInvalid:
        return False
    return True


def decide(
    table: Any, given: Mapping[str, ColumnChoice], taken: Sequence[str]
) -> dict[str, tuple[ColumnChoice, str]]:
    """Return kind and encoding of each column without another role, and why.

    Args:
        table: a ``pyarrow.Table``.
        given: what the user says, by column.
        taken: columns with another role, which are left out unless the user names them.

    Raises:
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
        with _reading(name, choice.type):
            kind, why = (choice.type, "as given") if choice.type else infer(name, table.column(name))
            how = choice.encoder or _default_how(kind, table.column(name))
        found[name] = choice.model_copy(update={"type": kind, "encoder": how}), why
    return found


def _default_how(kind: str, values: Any) -> str | None:
    hows = HOWS[kind]
    if kind == "category" and _compute().count_distinct(_texts(values)).as_py() > _ENTRIES["one-hot"]:
        return "learned"
    if kind == "number" and stored_as(values.type) == "number":
        numbers = _numbers(values)
        numbers = numbers[np.abs(numbers) <= _LARGEST]
        # a long tail, such as of prices: the largest is ten deviations away
        if len(numbers) and numbers.min() >= 0 and numbers.max() > numbers.mean() + 10 * numbers.std():
            return "log"
    return hows[0] if hows else None


def fitted(
    column: str, values: Any, rows: EncodedRows | None, choice: ColumnChoice, reference: EncodedRows | None
) -> Encoder | None:
    """Fit the encoder of a column; None for a column that is left out.

    Args:
        column: its name.
        values: the column, a ``pyarrow.ChunkedArray``.
        rows: numbers of the rows to fit on; None for all.
        choice: its kind and encoding.
        reference: ``(num_rows,)`` seconds that the age of times counts to.

    Raises:
        DataError: a value is not what the kind needs; names the column.
    """
    if choice.encoder is None:
        return None
    assert choice.type is not None
    with _reading(column, choice.type):
        return _fitted(column, values, rows, choice, reference)


def _fitted(
    column: str, values: Any, rows: EncodedRows | None, choice: ColumnChoice, reference: EncodedRows | None
) -> Encoder:
    assert choice.type is not None and choice.encoder is not None
    here = values if rows is None else values.take(require_pyarrow().array(rows))
    made = Encoder(
        column=column, kind=choice.type, how=choice.encoder, stored=stored_as(values.type), size=choice.size
    )
    missing = bool(_readable(made, here).null_count)
    made = replace(made, missing=missing)
    if choice.type == "number":
        return replace(made, numbers=_fit_numbers(made.how, _finite(made, _numbers(here))))
    if choice.type == "time":
        at = reference if rows is None or reference is None else reference[rows]
        seconds = _seconds(made, here)
        ages = _ages(seconds, at)
        known = seconds[~np.isnan(seconds)]
        bounds = _quantiles(ages, _BUCKETS + 1)
        return replace(made, numbers=bounds, width=int((known % _DAY != 0).any()))
    if choice.type == "embedding" or choice.encoder == "sentences":
        entries = (choice.model or "",) if choice.encoder == "sentences" else ()
        return replace(made, width=_list_width(column, values), entries=entries)  # of any row: a type
    if choice.type == "boolean":
        return made
    return _fit_entries(made, here, choice.size or _ENTRIES[made.how])


def _fit_numbers(how: str, numbers: EncodedRows) -> tuple[float, ...]:
    known = numbers[~np.isnan(numbers)]
    if how == "raw" or (not len(known) and how in ("standard", "log")):
        return (0.0, 1.0)
    if how in ("quantile", "buckets"):
        return _quantiles(numbers, _QUANTILES if how == "quantile" else _BUCKETS + 1)
    return _mean_and_deviation(_log(numbers) if how == "log" else numbers)


def _mean_and_deviation(numbers: EncodedRows) -> tuple[float, float]:
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        return 0.0, 1.0
    mean, deviation = float(known.mean()), float(known.std())
    # Rounding makes the mean of equal numbers differ from them by so much, as in scikit-learn's scalers.
    rounding = len(known) * np.finfo(np.float64).eps * abs(mean)
    return mean, deviation if deviation > rounding else 1.0


def _quantiles(numbers: EncodedRows, count: int) -> tuple[float, ...]:
    known = numbers[~np.isnan(numbers)]
    return tuple(np.quantile(known, np.linspace(0, 1, count)).tolist()) if len(known) else (0.0,) * count


def _in_buckets(numbers: EncodedRows, bounds: Sequence[float]) -> EncodedRows:
    """Return how far each number has come through each bucket, from 0 to 1; zeros where there is none.

    This is the piecewise linear encoding of Gorishniy et al., "On Embeddings for Numerical Features in
    Tabular Deep Learning".
    """
    low, high = np.asarray(bounds[:-1]), np.asarray(bounds[1:])
    width = np.where(high > low, high - low, 1.0)
    found: EncodedRows = np.nan_to_num(np.clip((numbers[:, None] - low) / width, 0.0, 1.0), nan=0.0)
    return found


def _log(numbers: EncodedRows) -> EncodedRows:
    found: EncodedRows = np.sign(numbers) * np.log1p(np.abs(numbers))
    return found


def _fit_entries(made: Encoder, here: Any, size: int) -> Encoder:
    """Keep the most frequent entries; those in one row alone stand for all that are not known."""
    if made.how in ("one-hot", "learned"):
        names, counts = _counts(_texts(here).drop_null())
        total = len(here)
    else:
        parents, parts = _parts(made, here)
        encoded = parts.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        names, total = encoded.dictionary.to_pylist(), len(here)
        pairs = np.unique(parents * max(1, len(names)) + codes)  # a word counts once in a row
        counts = np.bincount(pairs % max(1, len(names)), minlength=len(names))
    order = sorted(range(len(names)), key=lambda at: (-counts[at], names[at]))
    common = total // 2 if made.how == "words" else total  # more frequent words say little
    often = [at for at in order if 1 < counts[at] <= common]
    kept = [names[at] for at in often or order if names[at]][:size]
    other = made.how in ("one-hot", "learned") and len(kept) < len(names)
    return replace(made, entries=tuple(kept), width=int(other))


def width_of(encoder: Encoder) -> int:
    """Return how many columns of features an encoder makes."""
    return len(names_of(encoder))


def names_of(encoder: Encoder) -> list[str]:
    """Return the names of the columns of features that an encoder makes."""
    column, how = encoder.column, encoder.how
    empty = [f"{column} is empty"] if encoder.missing else []
    if how == "learned":
        return [f"{column}#"]
    if how in ("one-hot", "multi-hot", "words"):
        rare = [f"{column} is another"] if how == "one-hot" and encoder.width else []
        return [*(f"{column}={entry}" for entry in encoder.entries), *rare, *empty]
    if how in ("vector", "sentences"):
        return [*(f"{column}[{at}]" for at in range(encoder.width)), *empty]
    if how == "calendar":
        hours = [f"{column} hour {part}" for part in ("sin", "cos")] if encoder.width else []
        days = [f"{column} weekday {day}" for day in range(1, 8)]
        months = [f"{column} month {month}" for month in range(1, 13)]
        ages = [f"{column} age {bucket}" for bucket in range(1, _BUCKETS + 1)]
        return [*ages, *days, *months, *hours, *empty]
    if how == "buckets":
        return [*(f"{column} {bucket}" for bucket in range(1, _BUCKETS + 1)), *empty]
    return [column, *empty]


def applied(encoder: Encoder, values: Any, reference: EncodedRows | None) -> EncodedRows:
    """Encode a column, ``(num_rows, width)`` float32.

    Raises:
        DataError: the column holds another type than it did when the encoder was fitted, or a value that it
            cannot encode; names the column and the first row.
    """
    with _reading(encoder.column, encoder.kind):
        return _applied(encoder, values, reference)


def _applied(encoder: Encoder, values: Any, reference: EncodedRows | None) -> EncodedRows:
    check_stored(encoder, values)
    out = np.zeros((len(values), width_of(encoder)), np.float32)
    if values.null_count == len(values):  # its type may be null
        if encoder.missing:
            out[:, -1] = len(encoder.entries) + 1 if encoder.how == "learned" else 1
        return out
    _FILL[encoder.how](encoder, values, reference, out)
    if encoder.missing and encoder.how != "learned":
        out[:, -1] = _is_empty(_readable(encoder, values))
    return out


def check_stored(encoder: Encoder, values: Any) -> None:
    """Refuse a column of another type than the encoder was fitted on; an empty one fits all.

    Raises:
        DataError: it has another type.
    """
    now = stored_as(values.type)
    if now not in (encoder.stored, "nothing") and values.null_count < len(values):
        raise DataError(
            f"column {encoder.column!r} ({encoder.kind}) held {_HELD[encoder.stored]} when its encoder was "
            f"fitted, and holds {_HELD[now]} now ({values.type}). Write it as it was, or name its type under "
            "columns: in both descriptions"
        )


def _fill_number(encoder: Encoder, values: Any, _: EncodedRows | None, out: EncodedRows) -> None:
    numbers = _finite(encoder, _numbers(values))
    if encoder.how == "buckets":
        out[:, :_BUCKETS] = _in_buckets(numbers, encoder.numbers)
        return
    if encoder.how == "quantile":
        scaled = np.interp(numbers, encoder.numbers, np.linspace(-1, 1, _QUANTILES))
    else:
        mean, deviation = encoder.numbers
        scaled = ((_log(numbers) if encoder.how == "log" else numbers) - mean) / deviation
    scaled = np.nan_to_num(scaled, nan=0.0)
    if (bad := np.flatnonzero(np.abs(scaled) > _LARGEST)).size:
        raise DataError(
            f"column {encoder.column!r} is {numbers[bad[0]]} in row {bad[0]}, which is too far from the rows "
            "for training to be scaled as they were; take encoder: quantile"
        )
    out[:, 0] = scaled


def _finite(encoder: Encoder, numbers: EncodedRows) -> EncodedRows:
    """Refuse numbers that no feature, which is float32, can hold; NaN is an empty field."""
    if (bad := np.flatnonzero(np.abs(numbers) > _LARGEST)).size:
        why = "not finite" if np.isinf(numbers[bad[0]]) else "beyond float32"
        raise DataError(f"column {encoder.column!r} is {numbers[bad[0]]} in row {bad[0]}, {why}")
    return numbers


def _fill_flag(encoder: Encoder, values: Any, _: EncodedRows | None, out: EncodedRows) -> None:
    out[:, 0] = _as_numpy(_readable(encoder, values).fill_null(False))


def _fill_category(encoder: Encoder, values: Any, _: EncodedRows | None, out: EncodedRows) -> None:
    texts = _texts(values)
    codes = _codes(encoder, texts)
    count, empty = len(encoder.entries), _is_empty(texts)
    if encoder.how == "learned":  # 0 stands for what is not known, and the last code for an empty field
        out[:, 0] = np.where(empty, count + 1 if encoder.missing else 0, codes + 1)
        return
    if encoder.width:
        codes = np.where((codes < 0) & ~empty, count, codes)
    rows = np.flatnonzero(codes >= 0)
    out[rows, codes[rows]] = 1


def _fill_parts(encoder: Encoder, values: Any, _: EncodedRows | None, out: EncodedRows) -> None:
    parents, parts = _parts(encoder, values)
    codes = _codes(encoder, parts)
    out[parents[codes >= 0], codes[codes >= 0]] = 1


def _fill_vector(encoder: Encoder, values: Any, _: EncodedRows | None, out: EncodedRows) -> None:
    compute = _compute()
    lists = values.combine_chunks()
    if len(lists) > lists.null_count and (width := _list_width(encoder.column, values)) != encoder.width:
        raise DataError(
            f"column {encoder.column!r} held lists of {encoder.width} numbers when its encoder was fitted, "
            f"and holds lists of {width} now"
        )
    known = np.flatnonzero(~_is_empty(lists))
    flat = compute.list_flatten(lists.drop_null()).cast(require_pyarrow().float32(), safe=False)
    out[known, : encoder.width] = _as_numpy(flat).reshape(len(known), encoder.width)
    if (bad := np.flatnonzero(~np.isfinite(out).all(axis=1))).size:
        raise DataError(f"column {encoder.column!r} holds a number that is not finite in row {bad[0]}")


def _fill_calendar(encoder: Encoder, values: Any, reference: EncodedRows | None, out: EncodedRows) -> None:
    seconds = _seconds(encoder, values)
    out[:, :_BUCKETS] = _in_buckets(_ages(seconds, reference), encoder.numbers)
    rows = np.flatnonzero(~np.isnan(seconds))
    whole = seconds[rows].astype("int64").astype("datetime64[s]")
    weekday = (whole.astype("datetime64[D]").astype(np.int64) + 3) % 7  # 1970 began on a Thursday
    month = whole.astype("datetime64[M]").astype(np.int64) % 12
    out[rows, _BUCKETS + weekday] = 1
    out[rows, _BUCKETS + 7 + month] = 1
    if encoder.width:
        turn = 2 * np.pi * (seconds[rows] % _DAY) / _DAY
        at = _BUCKETS + 7 + 12
        out[rows, at], out[rows, at + 1] = np.sin(turn), np.cos(turn)


_FILL: dict[str, Callable[[Encoder, Any, EncodedRows | None, EncodedRows], None]] = {
    **dict.fromkeys(HOWS["number"], _fill_number),
    **dict.fromkeys(HOWS["category"], _fill_category),
    "flag": _fill_flag,
    "multi-hot": _fill_parts,
    "words": _fill_parts,
    "calendar": _fill_calendar,
    "vector": _fill_vector,
    "sentences": _fill_vector,
}


def encoded(table: Any, encoders: Sequence[Encoder], reference: EncodedRows | None) -> EncodedRows | None:
    """Encode a table, ``(num_rows, width)`` float32; None if nothing is encoded.

    Columns are found by name; their order does not matter, and further ones are left out.

    Raises:
        DataError: columns are missing or hold another type; names them.
        ResourceError: the features do not fit in memory.
    """
    if lacking := [one.column for one in encoders if one.column not in table.column_names]:
        raise DataError(
            f"the table lacks columns that its encoders were fitted on: {', '.join(lacking)}; it has "
            f"{', '.join(table.column_names)}"
        )
    width = sum(width_of(one) for one in encoders)
    if not width:
        return None
    require_memory(4 * table.num_rows * width, f"features of {table.num_rows:,} rows and {width} columns")
    out = np.empty((table.num_rows, width), np.float32)
    at = 0
    for one in encoders:
        made = applied(one, table.column(one.column), reference)
        out[:, at : at + made.shape[1]] = made
        at += made.shape[1]
    return out


def sentences(values: Any, model: str) -> Any:
    """Return the embeddings of a column of texts by a sentence-transformers model, as lists of numbers.

    Raises:
        MissingPackageError: sentence-transformers is not installed.
    """
    arrow = require_pyarrow()
    try:
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingPackageError(
            "the encoder sentences needs sentence-transformers: pip install 'graphbraid[text]'; without it, "
            "give the texts' embeddings as a column of lists, or take encoder: words"
        ) from error
    texts = _texts(values)
    found = np.asarray(SentenceTransformer(model).encode(texts.fill_null("").to_pylist()), np.float32)
    lists = arrow.FixedSizeListArray.from_arrays(arrow.array(found.ravel()), found.shape[1])
    return arrow.chunked_array([_compute().if_else(texts.combine_chunks().is_valid(), lists, None)])


# ---- columns as plain values

_HELD = {
    "number": "numbers",
    "text": "text",
    "boolean": "true and false",
    "time": "times",
    "list": "lists",
    "nothing": "nothing",
    "other": "something else",
}


def stored_as(kind: Any) -> str:
    """Return what a pyarrow type is for encoders, a key of :data:`_HELD`."""
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


def _compute() -> Any:
    require_pyarrow()
    from pyarrow import compute

    return compute


def _counts(values: Any) -> tuple[list[Any], EncodedRows]:
    found = _compute().value_counts(values)
    return found.field("values").to_pylist(), found.field("counts").to_numpy(zero_copy_only=False)


def _texts(values: Any) -> Any:
    """Return a column as text without spaces around it; an empty text is null, and 1.0 is ``1``."""
    arrow, compute = require_pyarrow(), _compute()
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


def _numbers(values: Any) -> EncodedRows:
    """Return a column of numbers as float64; empty fields are NaN."""
    # not safe: integers beyond 2**53 are rounded, as all are to float32 in the end
    texts = _texts(values) if stored_as(values.type) == "text" else values
    return _as_numpy(texts.cast(require_pyarrow().float64(), safe=False))


def _seconds(encoder: Encoder, values: Any) -> EncodedRows:
    """Return times as float64 seconds since 1970; empty fields are NaN."""
    arrow = require_pyarrow()
    if stored_as(values.type) == "number":
        seconds = _numbers(values)
        if (bad := np.flatnonzero(np.abs(seconds) > 2**53)).size:
            raise DataError(
                f"column {encoder.column!r} is {seconds[bad[0]]} in row {bad[0]}, no time in seconds"
            )
        return seconds
    texts = _texts(values) if stored_as(values.type) == "text" else values
    found = texts.cast(arrow.timestamp("s", tz=getattr(values.type, "tz", None)), safe=False)
    return _as_numpy(found.cast(arrow.int64()).cast(arrow.float64()))


def latest_of(values: Any) -> float:
    """Return the latest time of a column of times in seconds since 1970; NaN if all fields are empty."""
    seconds = _seconds(Encoder(column="", kind="time", how="calendar", stored="time"), values)
    return float(np.nanmax(seconds, initial=-np.inf)) if not np.isnan(seconds).all() else np.nan


def _ages(seconds: EncodedRows, reference: EncodedRows | None) -> EncodedRows:
    """Return days up to the reference (else since 1970), on a log scale."""
    days = (seconds if reference is None else reference - seconds) / _DAY
    return _log(days)


def _parts(encoder: Encoder, values: Any) -> tuple[EncodedRows, Any]:
    """Return the parts of a column of words or categories, each with the number of its row."""
    compute = _compute()
    lists = values.combine_chunks()
    if stored_as(values.type) != "list":
        texts = _texts(values).combine_chunks()
        if encoder.how == "words":
            lists = compute.split_pattern_regex(compute.utf8_lower(texts), _NO_LETTER)
        else:
            lists = compute.split_pattern_regex(texts, _SEPARATOR)
    parents, parts = compute.list_parent_indices(lists), compute.list_flatten(lists)
    known = parts.is_valid()  # a list may hold empty parts
    return parents.filter(known).to_numpy().astype(np.int64), parts.filter(known)


def _codes(encoder: Encoder, texts: Any) -> EncodedRows:
    """Return the place of each text among the encoder's entries, -1 for others."""
    arrow = require_pyarrow()
    entries = arrow.array(encoder.entries, arrow.string())
    found = _compute().index_in(texts.cast(arrow.string()), value_set=entries).fill_null(-1)
    return np.where(_is_empty(texts), -1, _as_numpy(found)).astype(np.int64)


def _readable(encoder: Encoder, values: Any) -> Any:
    """Return a column whose empty fields are null, whatever its kind."""
    arrow = require_pyarrow()
    if encoder.kind == "boolean":
        texts = _compute().utf8_lower(_texts(values))
        known = arrow.array([*_TRUE, *_FALSE])
        codes = _compute().index_in(texts, value_set=known)
        if codes.null_count > texts.null_count:
            unknown = texts.filter(_compute().and_(codes.is_null(), texts.is_valid()))[0]
            raise DataError(f"column {encoder.column!r} holds {unknown.as_py()!r}, neither true nor false")
        return _compute().less(codes, len(_TRUE))
    if encoder.kind in ("number", "time") and stored_as(values.type) == "number":
        return arrow.chunked_array([arrow.array(_numbers(values), from_pandas=True)])
    return _texts(values) if stored_as(values.type) == "text" else values


_TRUE, _FALSE = ("true", "1", "yes", "t", "y"), ("false", "0", "no", "f", "n")


def _is_empty(values: Any) -> EncodedRows:
    return _as_numpy(values.is_null())


def _as_numpy(values: Any) -> EncodedRows:
    """Return the values of a pyarrow array, in one piece or in chunks; nulls of numbers are NaN."""
    if hasattr(values, "num_chunks"):
        values = values.combine_chunks()
    found: EncodedRows = values.to_numpy(zero_copy_only=False)
    return found


@contextmanager
def _reading(column: str, kind: str | None) -> Iterator[None]:
    """Name the column in pyarrow's errors, such as about a value or type that the kind cannot be."""
    try:
        yield
    except require_pyarrow().ArrowException as error:
        what = "cannot be read" if kind is None else f"holds something that is no {kind}"
        raise DataError(f"column {column!r} {what}: {error}") from error


def _list_width(column: str, values: Any) -> int:
    lengths = _compute().unique(_compute().list_value_length(values.drop_null())).to_pylist()
    if len(lengths) > 1:
        raise DataError(
            f"column {column!r} holds lists of {lengths[0]} and of {lengths[1]} numbers; all need one length"
        )
    return int(lengths[0]) if lengths else 0
