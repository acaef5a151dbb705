"""Node tables: ids, features, labels and splits from the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.datasets.ids import NodeIds
from graphbraid.datasets.tables.edges import refuse_blank_ids
from graphbraid.datasets.tables.file import TableFile, first_null, holds_numbers, require_pyarrow
from graphbraid.datasets.tables.times import time_type, times_of
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Columns, Schema
from graphbraid.graph.schema import NodesOrEdges

_Array = npt.NDArray[Any]

_SPLITS = ("train", "val", "test")
_SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True, slots=True)
class NodeColumns:
    """The roles of the columns of a node table."""

    id: str
    features: tuple[str, ...]
    labels: tuple[str, ...]
    split: str | None
    unused: tuple[str, ...]
    """Columns that are ignored because they hold no numbers."""
    matrix: bool
    """Whether the labels were given as a list of columns, which makes a matrix even of one column."""
    time: str | None = None

    @classmethod
    def resolve(
        cls,
        file: TableFile,
        id_column: str,
        features: Sequence[str] | None,
        label: str | Sequence[str] | None,
        split: str | None,
        *,
        time: str | None = None,
    ) -> NodeColumns:
        """Check that the columns exist and are numeric where needed, and find the feature columns."""
        matrix = label is not None and not isinstance(label, str)
        labels = () if label is None else (label,) if isinstance(label, str) else tuple(label)
        file.require(id_column, "id")
        for column in labels:
            file.require(column, "label")
        if split is not None:
            file.require(split, "split")
        if time is not None:
            time_type(file, time)
        taken = {id_column, *labels, split, time}
        unused: tuple[str, ...] = ()
        if features is None:
            others = [c for c in file.columns if c not in taken]
            features = [c for c in others if holds_numbers(file.types[c])]
            unused = tuple(c for c in others if c not in features)
        features = file.expanded(features)
        for column in features:
            file.require(column, "feature")
            if column in taken:
                raise ConfigError(
                    f"column {column!r} cannot be a feature and the id, a label, the split or the time at "
                    "once"
                )
            require_number(file, column)
        return cls(id_column, tuple(features), labels, split, unused, matrix, time)


@dataclass(slots=True)
class NodeTable:
    """The content of a node table."""

    ids: NodeIds
    id_type: str
    x: _Array | None
    y: _Array | None
    splits: dict[str, _Array]
    class_names: tuple[str, ...] | None
    """Name of each class, or of each column of a label matrix."""
    time: _Array | None
    columns: Columns | None
    """The columns of ``x``."""


def read_nodes(file: TableFile, columns: NodeColumns, id_type: str, fill_missing: float | None) -> NodeTable:
    """Read a node table.

    Raises:
        DataError: An id is empty or repeated, a feature is empty or not finite, or a split has an unknown
            name; names file, row and column.
    """
    arrow = require_pyarrow()
    if id_type == "auto":
        id_type = "int" if file.is_whole(columns.id) else "string"
    types = {columns.id: arrow.int64() if id_type == "int" else arrow.string()}
    types.update(feature_types(file, columns.features))
    if columns.split is not None:
        types[columns.split] = arrow.string()
    if columns.time is not None:
        types[columns.time] = time_type(file, columns.time)
    single = [column for column in (columns.split, columns.time) if column is not None]
    wanted = [columns.id, *columns.features, *columns.labels, *single]
    ids, features, labels, splits, times = [], [], [], [], []
    row = 0
    for batch in file.batches(list(dict.fromkeys(wanted)), types):
        ids.append(_ids(file, batch.column(columns.id), row, columns.id))
        if columns.features:
            features.append(feature_rows(file, batch, columns.features, row, fill_missing))
        labels.append([batch.column(c) for c in columns.labels])
        if columns.split is not None:
            splits.append(split_codes(file, batch.column(columns.split), row, columns.split))
        if columns.time is not None:
            times.append(times_of(file, batch.column(columns.time), row, columns.time))
        row += batch.num_rows
    if row == 0:
        raise DataError(f"{file.name} has no rows; a node table needs one per node")
    all_ids = np.concatenate(ids)
    _refuse_repeats(file, all_ids, columns.id)
    y, class_names = _labels(file, columns, labels)
    return NodeTable(
        ids=NodeIds(all_ids),
        id_type=id_type,
        x=join_rows(features, len(columns.features)) if columns.features else None,
        y=y,
        splits=splits_of(splits),
        class_names=class_names,
        time=np.concatenate(times) if times else None,
        columns=Columns(names=columns.features, fill_missing=fill_missing) if columns.features else None,
    )


def schema_of_tables(tables: Mapping[str, NodeTable], edges: Mapping[NodesOrEdges, Columns]) -> Schema:
    """Return the columns and class names of the tables of node types, and the columns of relations."""
    columns = dict(edges)
    columns |= {name: one.columns for name, one in tables.items() if one.columns is not None}
    return Schema(
        columns=columns,
        class_names={name: one.class_names for name, one in tables.items() if one.class_names is not None},
    )


def _ids(file: TableFile, values: Any, row: int, column: str) -> _Array:
    if values.null_count:
        raise DataError(
            f"{file.row(row + first_null(values))}: column {column!r} is empty; every node needs an id"
        )
    found: _Array = values.to_numpy(zero_copy_only=False)
    if found.dtype == object:
        encoded = values.dictionary_encode()
        refuse_blank_ids(encoded.dictionary.to_pylist(), encoded.indices, file, row, column)
    return found


def _refuse_repeats(file: TableFile, ids: _Array, column: str) -> None:
    values, first, counts = np.unique(ids, return_index=True, return_counts=True)
    if (counts > 1).any():
        at = int(np.argmax(counts > 1))
        again = int(np.flatnonzero(ids == values[at])[1])
        value = values[at : at + 1].tolist()[0]  # shown as 7, not as np.int64(7)
        raise DataError(
            f"{file.row(again)}: column {column!r} has the id {value!r} again, first at "
            f"{file.row(int(first[at]))}"
        )


def require_number(file: TableFile, column: str) -> None:
    """Refuse a feature column that cannot hold numbers; one of text fails, with its line, when it is read.

    Raises:
        DataError: it holds something else.
    """
    if not holds_numbers(file.types[column]) and not file.is_text:
        raise DataError(f"{file.name}: feature column {column!r} holds {file.types[column]}, not numbers")


def feature_types(file: TableFile, columns: Sequence[str]) -> dict[str, Any]:
    """Return the pyarrow types to read feature columns as."""
    arrow = require_pyarrow()
    # Numbers are read as float64, since only the first rows of a column may look like integers.
    numbers = [column for column in columns if not arrow.types.is_boolean(file.types[column])]
    return dict.fromkeys(numbers, arrow.float64())


def feature_rows(file: TableFile, batch: Any, columns: Sequence[str], row: int, fill: float | None) -> _Array:
    """Return the features of a batch, ``(num_rows, num_columns)`` float32.

    Args:
        file: the table, for messages.
        batch: the batch, whose columns were read as :func:`feature_types`.
        columns: the feature columns.
        row: row of the table that the batch begins with.
        fill: value for empty fields. If None, they are refused.

    Raises:
        DataError: a feature is empty or not finite; names file, row and column.
    """
    out = np.empty((batch.num_rows, len(columns)), np.float32)
    for at, column in enumerate(columns):
        values = batch.column(column)
        if values.null_count:
            if fill is None:
                raise DataError(
                    f"{file.row(row + first_null(values))}: feature column {column!r} holds no number "
                    "(empty or NaN); fill it in, or take one for all with fill_missing= (--fill-missing)"
                )
            values = values.fill_null(fill)
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, which is refused below
            out[:, at] = values.to_numpy(zero_copy_only=False)
    if not np.isfinite(out).all():
        bad, at = np.argwhere(~np.isfinite(out))[0]
        raise DataError(
            f"{file.row(row + int(bad))}: feature column {columns[at]!r} is {out[bad, at]}, not finite"
        )
    return out


def split_codes(file: TableFile, values: Any, row: int, column: str) -> _Array:
    """Return the split of each row of a batch: 0 for train, 1 for val, 2 for test, -1 for none.

    Raises:
        DataError: a split has another name; says where the first one is.
    """
    codes = np.full(len(values), -1, np.int8)
    for at, value in enumerate(values.to_pylist()):
        name = (value or "").strip().lower()
        if name in _SPLIT_NAMES:
            codes[at] = _SPLITS.index(_SPLIT_NAMES[name])
        elif name:
            raise DataError(
                f"{file.row(row + at)}: column {column!r} is {value!r}; train, val, test or nothing is needed"
            )
    return codes


def splits_of(codes: Sequence[_Array]) -> dict[str, _Array]:
    """Return the rows of each split that has some, from the :func:`split_codes` of all batches."""
    code = np.concatenate(codes) if codes else np.empty(0, np.int8)
    found = {name: np.flatnonzero(code == at) for at, name in enumerate(_SPLITS)}
    return {name: rows for name, rows in found.items() if rows.size}


def _labels(
    file: TableFile, columns: NodeColumns, batches: list[list[Any]]
) -> tuple[_Array | None, tuple[str, ...] | None]:
    if not columns.labels:
        return None, None
    arrow = require_pyarrow()
    whole = [arrow.chunked_array([batch[at] for batch in batches]) for at in range(len(columns.labels))]
    if columns.matrix:
        return np.stack(
            [_targets(file, c, values) for c, values in zip(columns.labels, whole, strict=True)], 1
        ), columns.labels
    column, values = columns.labels[0], whole[0]
    kind = values.type
    if arrow.types.is_decimal(kind):
        values = values.cast(arrow.int64() if kind.scale == 0 else arrow.float64())
        kind = values.type
    if arrow.types.is_boolean(kind):
        values = values.cast(arrow.int64())
    elif arrow.types.is_floating(kind):
        return _targets(file, column, values), None
    elif not arrow.types.is_integer(kind):
        return _named_classes(values.cast(arrow.string()))
    return np.maximum(values.cast(arrow.int64()).fill_null(-1).to_numpy(), -1), None


def _targets(file: TableFile, column: str, values: Any) -> _Array:
    if not holds_numbers(file.types[column]):
        raise DataError(
            f"{file.name}: label column {column!r} holds {file.types[column]}; a matrix needs numbers"
        )
    if values.null_count:
        raise DataError(f"{file.row(first_null(values.combine_chunks()))}: label column {column!r} is empty")
    with np.errstate(over="ignore"):
        found: _Array = values.to_numpy().astype(np.float32)
    return found


def _named_classes(values: Any) -> tuple[_Array, tuple[str, ...]]:
    """Number the classes in alphabetical order of their names; an empty one is -1."""
    encoded = values.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    order = sorted(name for name in names if name)
    number = {name: at for at, name in enumerate(order)}
    classes = np.asarray([*(number.get(name, -1) for name in names), -1], np.int64)  # the last one for null
    return classes[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)], tuple(order)


def join_rows(parts: list[_Array], width: int) -> _Array:
    """Concatenate the parts into a matrix, releasing each one as it is copied."""
    out = np.empty((sum(map(len, parts)), width), np.float32)
    at = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        out[at : at + len(part)] = part
        at += len(part)
    return out
