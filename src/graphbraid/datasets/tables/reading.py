"""Tables of nodes and of edges, read whole, and graphs made of an edge list and one table of nodes.

Tables are CSV, Parquet or in memory. Ids may be any integers or strings; the graph's nodes are numbered from
0 and :class:`NodeIds` maps them back. Files are read in batches: beside the result, only a batch and the
table of ids are in memory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from graphbraid.datasets.ids import NodeIds
from graphbraid.datasets.npy import require_memory, table_bytes
from graphbraid.datasets.tables.column_types import numbers_of, stored_as
from graphbraid.datasets.tables.columns import (
    Attributes,
    ColumnPart,
    NumberArray,
    Numbering,
    first_null,
    id_type_of,
    join,
    parts_of,
    refuse_spaces,
    require_number,
    time_type,
    without_empty,
)
from graphbraid.datasets.tables.description import EdgeTableEntry
from graphbraid.datasets.tables.file import CsvOptions, TableFile, holds_numbers, is_index, require_pyarrow
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Columns, Graph, Schema
from graphbraid.graph.checks import named
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.signatures import typed

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeColumns:
    """The roles of the columns of a node table."""

    id: str
    features: tuple[str, ...]
    labels: tuple[str, ...]
    split: str | None
    unused: tuple[str, ...]
    """Columns that are ignored because they hold no numbers, or an index that pandas wrote."""
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
            features = [c for c in others if holds_numbers(file.types[c]) and not is_index(c)]
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
    x: NumberArray | None
    y: NumberArray | None
    splits: dict[str, NumberArray]
    class_names: tuple[str, ...] | None
    """Name of each class, or of each column of a label matrix."""
    time: NumberArray | None
    columns: Columns | None
    """The columns of ``x``."""


def read_nodes(file: TableFile, columns: NodeColumns, id_type: str, fill_missing: float | None) -> NodeTable:
    """Read a node table; DataError names file, row and column of a bad id, feature or split."""
    id_type = id_type_of(id_type, [(file, columns.id)])
    attributes = Attributes(
        file, columns.features, split=columns.split, time=columns.time, fill_missing=fill_missing
    )
    types = {columns.id: Numbering(None, id_type).arrow_type} | attributes.types
    ids, labels = [], []
    for parts in parts_of(file, [columns.id, *columns.labels, *attributes.wanted], types):
        ids.append(_ids(parts[columns.id]))
        labels.append([parts[column].values for column in columns.labels])
        attributes.add(parts)
    all_ids = np.concatenate(ids) if ids else np.empty(0, object if id_type == "string" else np.int64)
    _refuse_repeats(file, all_ids, columns.id)
    y, class_names = _labels(file, columns.labels, labels, matrix=columns.matrix)
    return NodeTable(
        ids=NodeIds(all_ids),
        id_type=id_type,
        x=attributes.x(),
        y=y,
        splits=attributes.splits(),
        class_names=class_names,
        time=attributes.time(),
        columns=attributes.columns,
    )


@dataclass(slots=True)
class EdgeTable:
    """The content of a table of edges."""

    src: NumberArray
    """``(num_edges,)`` int64 sources; node numbers once :class:`Numbering` has finished."""
    dst: NumberArray
    """``(num_edges,)`` int64 destinations."""
    weight: NumberArray | None
    """``(num_edges,)`` float32."""
    x: NumberArray | None
    """``(num_edges, num_edge_features)`` float32."""
    columns: Columns | None
    """The columns of ``x``."""
    time: NumberArray | None
    splits: dict[str, NumberArray]
    y: NumberArray | None
    """Labels, one row per edge."""
    class_names: tuple[str, ...] | None
    """Name of each class, or of each column of a label matrix."""


def check_columns(file: TableFile, entry: EdgeTableEntry) -> None:
    """Raise unless the columns of a table of edges exist, hold what their roles need, and have one each."""
    given = {"weight": entry.weight, "split": entry.split, "time": entry.time}
    roles = {entry.source: "source", entry.destination: "destination"}
    roles |= {column: role for role, column in given.items() if column is not None}
    for column in entry.labels:
        if column in roles:
            raise ConfigError(f"column {column!r} cannot be a label and the {roles[column]} at once")
        roles[column] = "label"
    for column, role in roles.items():
        file.require(column, role)
    if entry.time is not None:
        time_type(file, entry.time)
    for column in file.expanded(entry.features):
        file.require(column, "feature")
        if column in roles:
            raise ConfigError(f"column {column!r} cannot be a feature and the {roles[column]} at once")
        require_number(file, column)


def read_edges(
    file: TableFile, entry: EdgeTableEntry, source: Numbering, destination: Numbering
) -> EdgeTable:
    """Read a table of edges; its ends are final once both numberings have finished.

    DataError names file, row and column of an id that is empty or unknown, or of another impossible field.
    """
    attributes = Attributes(
        file,
        file.expanded(entry.features),
        weight=entry.weight,
        split=entry.split,
        time=entry.time,
        fill_missing=entry.fill_missing,
    )
    types = {entry.source: source.arrow_type, entry.destination: destination.arrow_type} | attributes.types
    src, dst, labels = [], [], []
    wanted = [entry.source, entry.destination, *entry.labels, *attributes.wanted]
    for whole in parts_of(file, wanted, types):
        parts = without_empty(whole, entry.destination) if entry.skip_empty else whole
        src.append(source.encode(parts[entry.source]))
        dst.append(destination.encode(parts[entry.destination]))
        labels.append([parts[column].values for column in entry.labels])
        attributes.add(parts)
    y, class_names = _labels(file, entry.labels, labels, matrix=isinstance(entry.label, list))
    return EdgeTable(
        src=join(src, np.int64),
        dst=join(dst, np.int64),
        weight=attributes.weight(),
        x=attributes.x(),
        columns=attributes.columns,
        time=attributes.time(),
        splits=attributes.splits(),
        y=y,
        class_names=class_names,
    )


def schema_of_tables(tables: Mapping[Any, NodeTable | EdgeTable]) -> Schema:
    """Return the columns and class names of the tables of node types and of relations."""
    return Schema(
        columns={of: one.columns for of, one in tables.items() if one.columns is not None},
        class_names={of: one.class_names for of, one in tables.items() if one.class_names is not None},
    )


def _ids(part: ColumnPart) -> NumberArray:
    part.refuse_nulls("is empty; every node needs an id")
    found = part.array()
    if found.dtype == object:
        encoded = part.values.dictionary_encode()
        part.refuse_blanks(encoded.indices, encoded.dictionary.to_pylist())
    return found


def _refuse_repeats(file: TableFile, ids: NumberArray, column: str) -> None:
    values, first, counts = np.unique(ids, return_index=True, return_counts=True)
    if (counts > 1).any():
        at = int(np.argmax(counts > 1))
        again = int(np.flatnonzero(ids == values[at])[1])
        value = values[at : at + 1].tolist()[0]  # shown as 7, not as np.int64(7)
        raise DataError(
            f"{file.row(again)}: column {column!r} has the id {value!r} again, first at "
            f"{file.row(int(first[at]))}"
        )
    if ids.dtype == object:
        with named(f"{file.name}, column {column!r}"):
            refuse_spaces(ids)


def _labels(
    file: TableFile, labels: tuple[str, ...], batches: list[list[Any]], *, matrix: bool
) -> tuple[NumberArray | None, tuple[str, ...] | None]:
    if not labels:
        return None, None
    arrow = require_pyarrow()
    whole = [
        arrow.chunked_array([batch[at] for batch in batches], None if batches else file.types[column])
        for at, column in enumerate(labels)
    ]
    if matrix:
        return np.stack(
            [_targets(file, c, values) for c, values in zip(labels, whole, strict=True)], 1
        ), labels
    column, [values] = labels[0], whole
    if arrow.types.is_floating(values.type):
        bits = _bits_of(values, column)
        if bits is None:
            return _targets(file, column, values), None
        values = bits
    return classes_of(values, column)


def _bits_of(values: Any, column: str) -> Any:
    """Return a column as integers if it holds nothing but 0.0, 1.0 and empty fields; else None.

    Labels of 0 and 1 come as floats where a program such as pandas has no integers with empty fields.
    """
    arrow = require_pyarrow()
    found = values.cast(arrow.float64()).to_numpy()
    is_missing = np.isnan(found)
    if is_missing.all() or not (is_missing | (found == 0) | (found == 1)).all():
        return None
    _log.warning(
        "the labels in column %r are 0.0 and 1.0, which are taken for two classes, not for targets of a "
        "regression; empty ones are not known",
        column,
    )
    return arrow.chunked_array([arrow.array(np.nan_to_num(found).astype(np.int64), mask=is_missing)])


def classes_of(values: Any, column: str) -> tuple[NumberArray, tuple[str, ...] | None]:
    """Return the labels in a column, and the classes' names where it holds texts, or raise DataError.

    Texts are classes in alphabetical order; whole numbers, true and false, and the floats 0.0 and 1.0 are
    classes from 0. Other numbers are targets. An empty field is -1 among classes and NaN among targets.
    """
    arrow = require_pyarrow()
    kind = values.type
    if arrow.types.is_decimal(kind):
        values = values.cast(arrow.int64() if kind.scale == 0 else arrow.float64())
        kind = values.type
    if arrow.types.is_boolean(kind):
        values = values.cast(arrow.int64())
    elif arrow.types.is_floating(kind) and (bits := _bits_of(values, column)) is not None:
        values = bits
    elif arrow.types.is_floating(kind):
        return targets_of(values, column)
    elif stored_as(kind) == "time":
        raise DataError(
            f"column {column!r} holds {kind}, and a label is a class or a number; make a column of what "
            "is to be learned, such as days up to a date"
        )
    elif not arrow.types.is_integer(kind):
        try:
            return _named_classes(values.cast(arrow.string()))
        except arrow.ArrowException as error:
            raise DataError(f"column {column!r} of {kind} cannot be a label: {error}") from error
    classes = values.cast(arrow.int64()).fill_null(-1).to_numpy()
    if count := np.count_nonzero(classes < 0) - values.null_count:
        _log.warning(
            "%d labels in column %r are below 0, which stands for no label; if they are classes, write texts",
            *(count, column),
        )
    return np.maximum(classes, -1), None


def targets_of(values: Any, column: str) -> tuple[NumberArray, None]:
    """Return a column's numbers as float32, NaN where empty; DataError if it holds something else."""
    try:
        found = numbers_of(values)
    except require_pyarrow().ArrowException as error:
        raise DataError(
            f"{values.type} of column {column!r} cannot be learned as numbers: {error}"
        ) from error
    with np.errstate(over="ignore"):
        return found.astype(np.float32), None


def _targets(file: TableFile, column: str, values: Any) -> NumberArray:
    if not holds_numbers(file.types[column]):
        raise DataError(
            f"{file.name}: label column {column!r} holds {file.types[column]}; a matrix needs numbers"
        )
    if values.null_count:
        raise DataError(f"{file.row(first_null(values.combine_chunks()))}: label column {column!r} is empty")
    return targets_of(values, column)[0]


def _named_classes(values: Any) -> tuple[NumberArray, tuple[str, ...]]:
    """Number the classes in alphabetical order of their names; an empty one is -1."""
    encoded = values.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    order = sorted(name for name in names if name)
    number = {name: at for at, name in enumerate(order)}
    classes = np.asarray([*(number.get(name, -1) for name in names), -1], np.int64)  # the last one for null
    return classes[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)], tuple(order)


IdType = Literal["auto", "int", "string"]
_Source = str | os.PathLike[str] | Any


@dataclass(frozen=True, kw_only=True, slots=True)
class TableGraph:
    """A graph made from tables, with the names that the tables use."""

    graph: Graph
    ids: NodeIds
    """Original id of each node."""
    class_names: tuple[str, ...] | None
    """Name of each class, if the label column held strings, or of each column of a label matrix."""
    unused_columns: tuple[str, ...] = ()
    """Columns of the node table that have no role, and hold no numbers or an index that pandas wrote."""


@typed
def from_tables(
    edges: _Source,
    nodes: _Source | None = None,
    *,
    source: str = "source",
    destination: str = "destination",
    weight: str | None = None,
    id_column: str = "id",
    id_type: IdType = "auto",
    features: Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    split: str | None = None,
    fill_missing: float | None = None,
    csv: CsvOptions | None = None,
    name: str = "",
) -> TableGraph:
    """Make a graph from an edge list and, optionally, a table of nodes.

    Nodes are numbered in the order of the node table; without one, in the ascending (integers) or
    alphabetical (strings) order of the ids.

    Args:
        edges: Path of a CSV or Parquet file, a ``pyarrow.Table`` or a ``pandas.DataFrame``, with one row per
            edge.
        nodes: The same with one row per node, each id once.
        source: Column of the edges' sources. If the file has no header, columns are called ``"0"``, ``"1"``,
            ...
        destination: Column of the edges' destinations.
        weight: Column of the edge weights. If None, edges have no weights.
        id_column: Column of the node ids.
        id_type: Type of the ids, ``"int"`` or ``"string"``; ``"auto"`` decides by the first rows.
        features: Feature columns. If None, every numeric column of ``nodes`` that is not id, label or split.
        label: Label column: strings become classes in alphabetical order, integers are classes (unlabelled
            if empty or negative), other numbers are targets. Several columns of numbers become a label
            matrix.
        split: Column with ``train``, ``val`` (or ``valid``, ``validation``), ``test``, or nothing.
        fill_missing: Feature value for empty fields. If None, empty fields are an error.
        csv: Format of the CSV files. If None, commas (tabs in ``.tsv``) and a header.
        name: Name of the graph in reports.

    Raises:
        MissingPackageError: pyarrow is not installed.
        DataError: A file or column is missing, or a value is invalid; names file, row and column.
        ConfigError: Options are invalid or contradict each other.
    """
    if id_type not in ("auto", "int", "string"):
        raise ConfigError(f"id_type must be 'auto', 'int' or 'string'; got {id_type!r}")
    if nodes is None and (features is not None or label is not None or split is not None):
        raise ConfigError(
            "features, label and split are columns of the node table; name it with nodes= (--nodes)"
        )
    edge_file = TableFile(edges, csv)
    entry = EdgeTableEntry(
        relation=["node", "to", "node"], file="", source=source, destination=destination, weight=weight
    )
    check_columns(edge_file, entry)
    if isinstance(edges, (str, os.PathLike)):
        require_memory(table_bytes(Path(edges)), f"reading {os.fspath(edges)}")
    table: NodeTable | None = None
    unused: tuple[str, ...] = ()
    if nodes is not None:
        node_file = TableFile(nodes, csv)
        columns = NodeColumns.resolve(node_file, id_column, features, label, split)
        table, unused = read_nodes(node_file, columns, id_type, fill_missing), columns.unused
        if not len(table.ids):
            raise DataError(f"{node_file.name} has no rows; a node table needs one per node")
        numbering = Numbering(table.ids, table.id_type)
    else:
        ends = [(edge_file, source), (edge_file, destination)]
        numbering = Numbering(None, id_type_of(id_type, ends))
    read = read_edges(edge_file, entry, numbering, numbering)
    if not len(read.src) and table is None:
        raise DataError(f"{edge_file.name} has no rows, and no node table names the nodes")
    ids = numbering.finish(read.src, read.dst)
    graph = Graph.from_edge_index(
        (read.src, read.dst),
        len(ids),
        x=None if table is None else table.x,
        y=None if table is None else table.y,
        splits=None if table is None else table.splits,
        edge_weight=read.weight,
        name=name,
    )
    if table is None:
        return TableGraph(graph=graph, ids=ids, class_names=None)
    schema = schema_of_tables({ONLY_NODE_TYPE: table})
    return TableGraph(
        graph=graph.replace(schema=schema),
        ids=ids,
        class_names=table.class_names,
        unused_columns=unused,
    )
