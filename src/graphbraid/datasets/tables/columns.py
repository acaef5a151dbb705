"""Columns of tables, batch by batch: ids and their numbers, features, weights, splits and times."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.datasets.ids import NodeIds, sorted_unique
from graphbraid.datasets.tables.file import TableFile, holds_numbers, require_pyarrow
from graphbraid.errors import DataError
from graphbraid.graph import Columns

NumberArray = npt.NDArray[Any]

_PART = 1 << 20  # ids renumbered at a time
_SPLITS = ("train", "val", "test")
_SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """The rows of a column that one batch holds."""

    file: TableFile
    name: str
    values: Any
    """A pyarrow array."""
    first_row: int
    """Its first row's number in the table."""
    rows: NumberArray | None = None
    """Places in the batch of the rows that are left, if some were left out."""

    def wrong(self, at: int, text: str, role: str = "column") -> DataError:
        """Return an error about the value at ``at``: file, row and column, then ``text``."""
        row = self.first_row + (at if self.rows is None else int(self.rows[at]))
        return DataError(f"{self.file.row(row)}: {role} {self.name!r} {text}")

    def refuse_nulls(self, text: str = "is empty", role: str = "column") -> None:
        """Raise DataError for empty fields."""
        if self.values.null_count:
            raise self.wrong(first_null(self.values), text, role)

    def refuse_blanks(self, codes: Any, names: list[str]) -> None:
        """Raise DataError for ids that are empty or only spaces, as between two delimiters."""
        blank = {at for at, name in enumerate(names) if not name.strip()}
        if blank:
            at = next(at for at, code in enumerate(codes.to_pylist()) if code in blank)
            hint = "; are the columns aligned with several spaces?" if self.file.is_aligned else ""
            raise self.wrong(at, f"is empty; every id needs a text{hint}")

    def array(self) -> NumberArray:
        """Return the values as a NumPy array, which may share their memory."""
        found: NumberArray = self.values.to_numpy(zero_copy_only=False)
        return found


def parts_of(
    file: TableFile, wanted: Sequence[str], types: Mapping[str, Any]
) -> Iterator[dict[str, ColumnPart]]:
    """Yield the wanted columns of each batch of a table, read as ``types`` where these name them."""
    row = 0
    names = list(dict.fromkeys(wanted))
    for batch in file.batches(names, types):
        yield {name: ColumnPart(file, name, batch.column(name), row) for name in names}
        row += batch.num_rows


def without_empty(parts: Mapping[str, ColumnPart], column: str) -> dict[str, ColumnPart]:
    """Return a batch without the rows whose ``column`` is empty, such as a key that refers to nothing."""
    from pyarrow import compute

    values = parts[column].values
    kept = values.is_valid()
    if values.type == require_pyarrow().string():  # CSV files have no null text
        kept = compute.and_(kept, compute.not_equal(values.fill_null(""), ""))
    rows = np.flatnonzero(kept.to_numpy(zero_copy_only=False))
    return {name: replace(part, values=part.values.filter(kept), rows=rows) for name, part in parts.items()}


def first_null(values: Any) -> int:
    """Return the position of the first null of a pyarrow array that has one."""
    return int(values.is_null().index(True).as_py())


def join(parts: list[NumberArray], dtype: type[np.generic], *shape: int) -> NumberArray:
    """Concatenate the parts along their rows of ``shape``, releasing each one as it is copied."""
    out = np.empty((sum(map(len, parts)), *shape), dtype)
    at = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        with np.errstate(over="ignore"):  # infinite beyond float32, which Graph.validate refuses
            out[at : at + len(part)] = part
        at += len(part)
    return out


class Attributes:
    """Features, weights, splits and times of the rows of a table of nodes or edges.

    The feature columns exist and may hold numbers. Without ``fill_missing``, empty feature fields are
    refused.
    """

    def __init__(
        self,
        file: TableFile,
        features: Sequence[str],
        *,
        weight: str | None = None,
        split: str | None = None,
        time: str | None = None,
        fill_missing: float | None = None,
    ) -> None:
        arrow = require_pyarrow()
        self._features, self._weight, self._split, self._time = tuple(features), weight, split, time
        self._fill = fill_missing
        # Numbers are read as float64, since only the first rows of a column may look like integers.
        numbers = [column for column in features if not arrow.types.is_boolean(file.types[column])]
        self.types: dict[str, Any] = dict.fromkeys(numbers, arrow.float64())
        """pyarrow type to read each column as, if it is not the column's own."""
        self.types |= {} if weight is None else {weight: arrow.float64()}
        self.types |= {} if split is None else {split: arrow.string()}
        self.types |= {} if time is None else {time: time_type(file, time)}
        self._rows: list[NumberArray] = []
        self._weights: list[NumberArray] = []
        self._codes: list[NumberArray] = []
        self._times: list[NumberArray] = []

    @property
    def wanted(self) -> list[str]:
        """The columns to read."""
        return [*self._features, *(c for c in (self._weight, self._split, self._time) if c is not None)]

    def add(self, parts: Mapping[str, ColumnPart]) -> None:
        """Take in the next batch; DataError names file, row and column of an empty or impossible field."""
        if self._features:
            self._rows.append(_feature_rows([parts[c] for c in self._features], self._fill))
        if self._weight is not None:
            parts[self._weight].refuse_nulls()
            self._weights.append(parts[self._weight].array())
        if self._split is not None:
            self._codes.append(_split_codes(parts[self._split]))
        if self._time is not None:
            self._times.append(_times(parts[self._time]))

    @property
    def columns(self) -> Columns | None:
        """The columns of the features."""
        return Columns(names=self._features, fill_missing=self._fill) if self._features else None

    def x(self) -> NumberArray | None:
        """Return the features, ``(num_rows, num_features)`` float32, and forget their batches."""
        return join(self._rows, np.float32, len(self._features)) if self._features else None

    def weight(self) -> NumberArray | None:
        """Return the weights, ``(num_rows,)`` float32, and forget their batches."""
        return None if self._weight is None else join(self._weights, np.float32)

    def time(self) -> NumberArray | None:
        """Return the times, ``(num_rows,)`` int64 or float64."""
        if self._time is None:
            return None
        return np.concatenate(self._times) if self._times else np.empty(0, np.int64)

    def splits(self) -> dict[str, NumberArray]:
        """Return the rows of each split that has some."""
        code = np.concatenate(self._codes) if self._codes else np.empty(0, np.int8)
        found = {name: np.flatnonzero(code == at) for at, name in enumerate(_SPLITS)}
        return {name: rows for name, rows in found.items() if rows.size}


def require_number(file: TableFile, column: str) -> None:
    """Raise DataError for a feature column without numbers; a text in a CSV file is refused when read."""
    if not holds_numbers(file.types[column]) and not file.is_text:
        raise DataError(f"{file.name}: feature column {column!r} holds {file.types[column]}, not numbers")


def time_type(file: TableFile, column: str) -> Any:
    """Return the pyarrow type to read a column of times as: numbers as they are, dates in seconds since 1970.

    Raises:
        DataError: there is no such column, or it holds neither numbers nor dates.
    """
    arrow = require_pyarrow()
    kind = file.types[file.require(column, "time")]
    if arrow.types.is_integer(kind):
        return arrow.int64()
    if arrow.types.is_floating(kind):
        return arrow.float64()
    if arrow.types.is_date(kind) or arrow.types.is_timestamp(kind) or arrow.types.is_null(kind):
        return arrow.timestamp("s", tz=getattr(kind, "tz", None))  # a table without rows has no type either
    raise DataError(f"{file.name}: time column {column!r} holds {kind}; numbers or dates are needed")


def _feature_rows(parts: list[ColumnPart], fill: float | None) -> NumberArray:
    out = np.empty((len(parts[0].values), len(parts)), np.float32)
    for at, part in enumerate(parts):
        if fill is None:
            part.refuse_nulls(
                "holds no number (empty or NaN); fill it in, or take one for all with fill_missing= "
                "(--fill-missing)",
                "feature column",
            )
        values = part.values
        if values.null_count:  # true and false have no other number to fill in
            values = values.cast(require_pyarrow().float64(), safe=False).fill_null(fill)
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, which is refused below
            out[:, at] = values.to_numpy(zero_copy_only=False)
    if not np.isfinite(out).all():
        bad, at = np.argwhere(~np.isfinite(out))[0]
        raise parts[at].wrong(int(bad), f"is {out[bad, at]}, not finite", "feature column")
    return out


def _split_codes(part: ColumnPart) -> NumberArray:
    """Return the split of each row: 0 for train, 1 for val, 2 for test, -1 for none."""
    codes = np.full(len(part.values), -1, np.int8)
    for at, value in enumerate(part.values.to_pylist()):
        name = (value or "").strip().lower()
        if name in _SPLIT_NAMES:
            codes[at] = _SPLITS.index(_SPLIT_NAMES[name])
        elif name:
            raise part.wrong(at, f"is {value!r}; train, val, test or nothing is needed")
    return codes


def _times(part: ColumnPart) -> NumberArray:
    arrow = require_pyarrow()
    part.refuse_nulls("is empty; every row needs a time", "time column")
    values = part.values.cast(arrow.int64()) if arrow.types.is_timestamp(part.values.type) else part.values
    found: NumberArray = values.to_numpy(zero_copy_only=False)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        at = int(np.flatnonzero(~np.isfinite(found))[0])
        raise part.wrong(at, f"is {found[at]}, not finite", "time column")
    return found


def id_type_of(id_type: str, columns: Sequence[tuple[TableFile, str]]) -> str:
    """Return ``id_type``; ``"auto"`` is ``"int"`` where all the columns are whole numbers."""
    if id_type != "auto":
        return id_type
    return "int" if all(file.is_whole(column) for file, column in columns) else "string"


@dataclass(slots=True)
class Numbering:
    """Node numbers of the ids that tables of edges name, for one node type.

    Nodes of a node table are looked up. Without one, ids are numbered in ascending (integers) or alphabetical
    (strings) order once all tables have been read, so that the order of rows does not matter.
    """

    known: NodeIds | None
    """The nodes of the node table, if there is one."""
    id_type: str
    """``"int"`` or ``"string"``."""
    _seen: list[NumberArray] = field(default_factory=list)
    _number: dict[str, int] = field(default_factory=dict)

    @property
    def arrow_type(self) -> Any:
        """The pyarrow type to read columns of ids as."""
        arrow = require_pyarrow()
        return arrow.string() if self.id_type == "string" else arrow.int64()

    def encode(self, part: ColumnPart) -> NumberArray:
        """Return placeholders until :meth:`finish`; DataError names file, row and column of a bad id."""
        part.refuse_nulls()
        return self._encode_strings(part) if self.id_type == "string" else self._encode_ints(part)

    def _encode_ints(self, part: ColumnPart) -> NumberArray:
        found = part.array()
        if self.known is None:
            self._seen.append(sorted_unique(found))
            return found
        nodes = self.known.search(found)
        if (missing := np.flatnonzero(nodes < 0)).size:
            raise _unknown(part, int(missing[0]), int(found[missing[0]]))
        return nodes

    def _encode_strings(self, part: ColumnPart) -> NumberArray:
        encoded = part.values.dictionary_encode()  # repeated ids are handled once
        names = encoded.dictionary.to_pylist()
        part.refuse_blanks(encoded.indices, names)
        if self.known is None:
            numbers = [self._number.setdefault(name, len(self._number)) for name in names]
        else:
            numbers = [self.known.by_name.get(name, -1) for name in names]
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        nodes: NumberArray = np.asarray(numbers, np.int64)[codes] if names else np.empty(0, np.int64)
        if (missing := np.flatnonzero(nodes < 0)).size:
            raise _unknown(part, int(missing[0]), names[codes[missing[0]]])
        return nodes

    def finish(self, *ends: NumberArray) -> NodeIds:
        """Change results of :meth:`encode` to node numbers in place; return the original ids."""
        if self.known is not None:
            return self.known
        if self.id_type == "int":
            values = sorted_unique(join(self._seen, np.int64))
            for part in _slices(ends):
                part[:] = np.searchsorted(values, part)
            return NodeIds(values)
        names = sorted(self._number)
        refuse_spaces(names)
        rank = np.empty(len(names), np.int64)
        rank[[self._number[name] for name in names]] = np.arange(len(names))
        for part in _slices(ends):
            part[:] = rank[part]
        values = np.empty(len(names), object)
        values[:] = names
        return NodeIds(values)


def refuse_spaces(names: Iterable[str]) -> None:
    """Raise DataError for ids that differ by spaces around them only."""
    found: dict[str, str] = {}
    for name in names:
        if (other := found.setdefault(name.strip(), name)) != name:
            raise DataError(
                f"the ids {other!r} and {name!r} differ by spaces only; are the table's columns "
                "aligned with spaces? Take them out, or write one delimiter between fields"
            )


def _slices(arrays: Sequence[NumberArray]) -> Iterator[NumberArray]:
    for array in arrays:
        for first in range(0, len(array), _PART):
            yield array[first : first + _PART]


def _unknown(part: ColumnPart, at: int, value: int | str) -> DataError:
    return part.wrong(
        at, f"names node {value!r}, which the node table does not have; add it there or remove the edge"
    )
