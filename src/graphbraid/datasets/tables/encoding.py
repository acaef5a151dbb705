"""Columns of tables as features: kinds are inferred, encoders are fitted on some rows and applied to all.

pyarrow and NumPy do the work (decision 0019). A fitted encoder is a
:class:`~graphbraid.graph.schema.Encoder`, which is plain data: stores and runs keep it as JSON.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphbraid.datasets.npy import require_memory
from graphbraid.datasets.tables.column_types import (
    HELD,
    HOWS,
    LARGEST,
    MOST_ENTRIES,
    SEPARATOR,
    ColumnChoice,
    EncodedRows,
    as_numpy,
    counts_of,
    list_width,
    numbers_of,
    reading_column,
    stored_as,
    texts_of,
    times_of,
)
from graphbraid.datasets.tables.file import require_pyarrow
from graphbraid.errors import DataError, needing
from graphbraid.graph.schema import Encoder

_QUANTILES = 101
_BUCKETS = 20
"""Ranges with equally many training rows. A model finds thresholds by them, such as "in its first month"."""
_DAY = 86_400.0
_NO_LETTER = r"[^\pL\pN]+"


def fitted(
    column: str, values: Any, rows: EncodedRows | None, choice: ColumnChoice, reference: EncodedRows | None
) -> Encoder | None:
    """Fit the encoder of a column on ``rows`` (None: all); None for a column that is left out.

    ``reference`` is ``(num_rows,)`` seconds that the age of times counts to. DataError names the column of a
    value that is not what its kind needs.
    """
    kind, how = choice.type, choice.encoder
    if how is None:
        return None
    assert kind is not None
    with reading_column(column, kind):
        here = values if rows is None else values.take(require_pyarrow().array(rows))
        made = Encoder(column=column, kind=kind, how=how, stored=stored_as(values.type), size=choice.size)
        made = replace(made, missing=bool(_readable(made, here).null_count))
        if kind == "number":
            return replace(made, numbers=_fit_numbers(how, _finite(made, numbers_of(here))))
        if kind == "time":
            seconds = times_of(column, here)
            ages = _ages(seconds, reference if rows is None or reference is None else reference[rows])
            has_hours = bool((seconds[~np.isnan(seconds)] % _DAY != 0).any())
            return replace(made, numbers=_fit_buckets(ages), width=int(has_hours))
        if kind == "embedding" or how == "sentences":
            entries = (choice.model or "",) if how == "sentences" else ()
            return replace(made, width=list_width(column, values), entries=entries)  # all rows have one width
        return made if kind == "boolean" else _fit_entries(made, here, choice.size or MOST_ENTRIES[how])


def _fit_numbers(how: str, numbers: EncodedRows) -> tuple[float, ...]:
    if how == "raw":
        return 0.0, 1.0
    if how in ("quantile", "buckets"):
        return _quantiles(numbers, _QUANTILES) if how == "quantile" else _fit_buckets(numbers)
    return _mean_and_deviation(_log(numbers) if how == "log" else numbers)


def _mean_and_deviation(numbers: EncodedRows) -> tuple[float, float]:
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        return 0.0, 1.0
    mean, deviation = float(known.mean()), float(known.std())
    # Rounding may move the mean of equal numbers by so much; scikit-learn's scalers have this bound too.
    rounding = len(known) * np.finfo(np.float64).eps * abs(mean)
    return mean, deviation if deviation > rounding else 1.0


def _quantiles(numbers: EncodedRows, count: int) -> tuple[float, ...]:
    known = numbers[~np.isnan(numbers)]
    return tuple(np.quantile(known, np.linspace(0, 1, count)).tolist()) if len(known) else (0.0,) * count


def _fit_buckets(numbers: EncodedRows) -> tuple[float, ...]:
    """Return the bounds of buckets, then mean and deviation of how far rows have come through each."""
    bounds = _quantiles(numbers, _BUCKETS + 1)
    each = [_mean_and_deviation(passed) for passed in _passed_shares(numbers, bounds).T]
    return (*bounds, *(mean for mean, _ in each), *(deviation for _, deviation in each))


def _passed_shares(numbers: EncodedRows, bounds: Sequence[float]) -> EncodedRows:
    """Return the share of each bucket that each number has passed, from 0 to 1.

    This is the piecewise linear encoding of Gorishniy et al., "On Embeddings for Numerical Features in
    Tabular Deep Learning".
    """
    low, high = np.asarray(bounds[:-1]), np.asarray(bounds[1:])
    found: EncodedRows = np.clip((numbers[:, None] - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    return found


def _in_buckets(encoder: Encoder, numbers: EncodedRows) -> EncodedRows:
    """Return the share of each bucket that each number has passed, as standard scores; 0 for NaN.

    Without centring, most of these numbers are equal in all rows, and models are slow to tell rows apart.
    """
    if len(encoder.numbers) != 3 * _BUCKETS + 1:
        raise DataError(
            f"column {encoder.column!r} was encoded by an earlier version; convert its tables and train again"
        )
    mean, deviation = np.asarray(encoder.numbers[_BUCKETS + 1 :]).reshape(2, _BUCKETS)
    passed = _passed_shares(numbers, encoder.numbers[: _BUCKETS + 1])
    found: EncodedRows = np.nan_to_num((passed - mean) / deviation, nan=0.0)
    return found


def _log(numbers: EncodedRows) -> EncodedRows:
    return np.sign(numbers) * np.log1p(np.abs(numbers))


def _fit_entries(made: Encoder, here: Any, size: int) -> Encoder:
    """Keep the most frequent entries. Those that only one row has count as unknown, unless all are such."""
    is_category = made.how in ("one-hot", "learned")
    if is_category:
        entries = texts_of(here).drop_null()
    else:
        pairs = require_pyarrow().table(_parts(made, here), names=["row", "entry"])
        entries = pairs.group_by(pairs.column_names).aggregate([])["entry"]  # a word counts once in a row
    names, counts = counts_of(entries)
    # A word is kept if rows differ by it: a word in nearly all rows tells few rows apart.
    says = counts * (len(here) - counts) if made.how == "words" else counts
    order = sorted(range(len(names)), key=lambda at: (-says[at], names[at]))
    often = [at for at in order if counts[at] > 1 and says[at]]
    kept = [names[at] for at in often or order if names[at]][:size]
    return replace(made, entries=tuple(kept), width=int(is_category and len(kept) < len(names)))


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
    """Encode a column, ``(num_rows, width)`` float32; DataError names the first row that does not fit."""
    with reading_column(encoder.column, encoder.kind):
        now, count = stored_as(values.type), len(values)
        if now not in (encoder.stored, "nothing") and values.null_count < count:
            raise DataError(
                f"column {encoder.column!r} ({encoder.kind}) held {HELD[encoder.stored]} when its encoder "
                f"was fitted, and holds {HELD[now]} now ({values.type}). Write it as it was, or name its "
                "type under columns: in both descriptions"
            )
        out = np.zeros((count, len(names_of(encoder))), np.float32)
        if values.null_count == count:  # its type may be null
            if encoder.missing:
                out[:, -1] = len(encoder.entries) + 1 if encoder.how == "learned" else 1
            return out
        _FILL[encoder.how](encoder, values, reference, out)
        if encoder.missing and encoder.how != "learned":
            out[:, -1] = as_numpy(_readable(encoder, values).is_null())
        return out


def _fill_number(encoder: Encoder, values: Any, _: EncodedRows | None, out: EncodedRows) -> None:
    numbers = _finite(encoder, numbers_of(values))
    if encoder.how == "buckets":
        out[:, :_BUCKETS] = _in_buckets(encoder, numbers)
        return
    if encoder.how == "quantile":
        scaled = np.interp(numbers, encoder.numbers, np.linspace(-1, 1, _QUANTILES))
    else:
        mean, deviation = encoder.numbers
        scaled = ((_log(numbers) if encoder.how == "log" else numbers) - mean) / deviation
    scaled = np.nan_to_num(scaled, nan=0.0)
    if (bad := np.flatnonzero(np.abs(scaled) > LARGEST)).size:
        raise DataError(
            f"column {encoder.column!r} is {numbers[bad[0]]} in row {bad[0]}, which is too far from the rows "
            "for training to be scaled as they were; take encoder: quantile"
        )
    out[:, 0] = scaled


def _finite(encoder: Encoder, numbers: EncodedRows) -> EncodedRows:
    """Refuse numbers that no feature, which is float32, can hold; NaN is an empty field."""
    if (bad := np.flatnonzero(np.abs(numbers) > LARGEST)).size:
        why = "not finite" if np.isinf(numbers[bad[0]]) else "beyond float32"
        raise DataError(f"column {encoder.column!r} is {numbers[bad[0]]} in row {bad[0]}, {why}")
    return numbers


def _fill_flag(encoder: Encoder, values: Any, _: EncodedRows | None, out: EncodedRows) -> None:
    out[:, 0] = as_numpy(_readable(encoder, values).fill_null(False))


def _fill_category(encoder: Encoder, values: Any, _: EncodedRows | None, out: EncodedRows) -> None:
    texts = texts_of(values)
    codes = _codes(encoder, texts)
    count, empty = len(encoder.entries), as_numpy(texts.is_null())
    if encoder.how == "learned":  # 0 is the code of unknown texts, the last one of empty fields
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
    lists = values.combine_chunks()
    if len(lists) > lists.null_count and (width := list_width(encoder.column, values)) != encoder.width:
        raise DataError(
            f"column {encoder.column!r} held lists of {encoder.width} numbers when its encoder was fitted, "
            f"and holds lists of {width} now"
        )
    known = np.flatnonzero(~as_numpy(lists.is_null()))
    flat = lists.drop_null().flatten().cast(require_pyarrow().float32(), safe=False)
    out[known, : encoder.width] = as_numpy(flat).reshape(len(known), encoder.width)
    if (bad := np.flatnonzero(~np.isfinite(out).all(axis=1))).size:
        raise DataError(f"column {encoder.column!r} holds a number that is not finite in row {bad[0]}")


def _fill_calendar(encoder: Encoder, values: Any, reference: EncodedRows | None, out: EncodedRows) -> None:
    seconds = times_of(encoder.column, values)
    out[:, :_BUCKETS] = _in_buckets(encoder, _ages(seconds, reference))
    rows = np.flatnonzero(~np.isnan(seconds))
    whole = seconds[rows].astype("int64").astype("datetime64[s]")
    weekday = (whole.astype("datetime64[D]").astype(np.int64) + 3) % 7  # 1970 began on a Thursday
    month = whole.astype("datetime64[M]").astype(np.int64) % 12
    out[rows, _BUCKETS + weekday] = 1
    out[rows, _BUCKETS + 7 + month] = 1
    if encoder.width:
        turn, at = 2 * np.pi * (seconds[rows] % _DAY) / _DAY, _BUCKETS + 7 + 12
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
    widths = [len(names_of(one)) for one in encoders]
    if not (width := sum(widths)):
        return None
    require_memory(4 * table.num_rows * width, f"features of {table.num_rows:,} rows and {width} columns")
    out = np.empty((table.num_rows, width), np.float32)
    for one, part in zip(encoders, np.split(out, np.cumsum(widths)[:-1], 1), strict=True):
        part[:] = applied(one, table.column(one.column), reference)
    return out


def sentences(values: Any, model: str) -> Any:
    """Return texts' embeddings by a sentence-transformers model, as lists; MissingPackageError without it."""
    arrow = require_pyarrow()
    with needing(
        "the encoder sentences needs sentence-transformers: pip install 'graphbraid[text]'; without it, "
        "give the texts' embeddings as a column of lists, or take encoder: words"
    ):
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found,unused-ignore]
    texts = texts_of(values)
    found = np.asarray(SentenceTransformer(model).encode(texts.fill_null("").to_pylist()), np.float32)
    lists = arrow.FixedSizeListArray.from_arrays(arrow.array(found.ravel()), found.shape[1])
    return arrow.chunked_array([arrow.compute.if_else(texts.combine_chunks().is_valid(), lists, None)])


def _ages(seconds: EncodedRows, reference: EncodedRows | None) -> EncodedRows:
    """Return days up to the reference, else since 1970.

    They are on no log scale: in the first bucket, which begins at 0, the first days would be most of it.
    """
    return (seconds if reference is None else reference - seconds) / _DAY


def _parts(encoder: Encoder, values: Any) -> tuple[EncodedRows, Any]:
    """Return the parts of a column of words or categories, each with the number of its row."""
    compute = require_pyarrow().compute
    lists = values.combine_chunks()
    if stored_as(values.type) != "list":
        texts = texts_of(values).combine_chunks()
        if encoder.how == "words":
            lists = compute.split_pattern_regex(compute.utf8_lower(texts), _NO_LETTER)
        else:
            lists = compute.split_pattern_regex(texts, SEPARATOR)
    parents, parts = compute.list_parent_indices(lists), compute.list_flatten(lists)
    known = parts.is_valid()  # a list may hold empty parts
    return parents.filter(known).to_numpy().astype(np.int64), parts.filter(known)


def _codes(encoder: Encoder, texts: Any) -> EncodedRows:
    """Return the place of each text among the encoder's entries, -1 for others."""
    arrow = require_pyarrow()
    entries = arrow.array(encoder.entries, arrow.string())
    found = arrow.compute.index_in(texts.cast(arrow.string()), value_set=entries).fill_null(-1)
    return np.where(as_numpy(texts.is_null()), -1, as_numpy(found)).astype(np.int64)


def _readable(encoder: Encoder, values: Any) -> Any:
    """Return a column whose empty fields are null, whatever its kind."""
    arrow = require_pyarrow()
    if encoder.kind == "boolean":
        texts = arrow.compute.utf8_lower(texts_of(values))
        known = arrow.array([*_TRUE, *_FALSE])
        codes = arrow.compute.index_in(texts, value_set=known)
        if codes.null_count > texts.null_count:
            unknown = texts.filter(arrow.compute.and_(codes.is_null(), texts.is_valid()))[0]
            raise DataError(f"column {encoder.column!r} holds {unknown.as_py()!r}, neither true nor false")
        return arrow.compute.less(codes, len(_TRUE))
    if encoder.kind in ("number", "time") and stored_as(values.type) == "number":
        return arrow.chunked_array([arrow.array(numbers_of(values), from_pandas=True)])
    return texts_of(values) if stored_as(values.type) == "text" else values


_TRUE, _FALSE = ("true", "1", "yes", "t", "y"), ("false", "0", "no", "f", "n")
