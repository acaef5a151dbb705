"""Tables of relations: the edges between two node types, whose ids are numbered type by type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.datasets.ids import NodeIds
from graphbraid.datasets.tables.description import EdgeTableEntry
from graphbraid.datasets.tables.edges import Numbering, join_parts, numbering_of, weights_of
from graphbraid.datasets.tables.file import TableFile, require_pyarrow
from graphbraid.datasets.tables.nodes import (
    NodeTable,
    feature_rows,
    feature_types,
    join_rows,
    require_number,
    split_codes,
    splits_of,
)
from graphbraid.datasets.tables.times import time_type, times_of
from graphbraid.errors import ConfigError
from graphbraid.graph import Columns

_Array = npt.NDArray[Any]


@dataclass(slots=True)
class RelationTable:
    """The content of the table of a relation."""

    src: _Array
    """``(num_edges,)`` int64 sources."""
    dst: _Array
    """``(num_edges,)`` int64 destinations."""
    weight: _Array | None
    x: _Array | None
    """``(num_edges, num_edge_features)`` float32."""
    columns: Columns | None
    """The columns of ``x``."""
    time: _Array | None
    splits: dict[str, _Array]


class TypeIds:
    """The ids of a node type, over all tables that name them.

    Args:
        known: the type's table of nodes. If None, nodes are those that edges name.
        id_type: ``"int"``, ``"string"``, or ``"auto"`` to decide by the columns of ``named_by``.
        named_by: the columns of edge tables that name nodes of the type.
    """

    def __init__(self, known: NodeTable | None, id_type: str, named_by: list[tuple[TableFile, str]]) -> None:
        if known is not None:
            id_type = known.id_type
        elif id_type == "auto":
            id_type = "int" if all(file.is_whole(column) for file, column in named_by) else "string"
        self.as_string = id_type == "string"
        self.numbering: Numbering = numbering_of(
            None if known is None else known.ids, as_string=self.as_string
        )

    @property
    def arrow_type(self) -> Any:
        """The pyarrow type to read columns of ids as."""
        arrow = require_pyarrow()
        return arrow.string() if self.as_string else arrow.int64()


def check_columns(file: TableFile, entry: EdgeTableEntry) -> None:
    """Check that the columns of a relation exist, and that each has one role.

    Raises:
        DataError: a column is missing, or does not hold what its role needs.
        ConfigError: a feature column has another role too.
    """
    given = {"weight": entry.weight, "split": entry.split, "time": entry.time}
    roles = {entry.source: "source", entry.destination: "destination"}
    roles |= {column: role for role, column in given.items() if column is not None}
    for column, role in roles.items():
        file.require(column, role)
    if entry.time is not None:
        time_type(file, entry.time)
    for column in file.expanded(entry.features):
        file.require(column, "feature")
        if column in roles:
            raise ConfigError(f"column {column!r} cannot be a feature and the {roles[column]} at once")
        require_number(file, column)


def read_relation(
    file: TableFile, entry: EdgeTableEntry, source: TypeIds, destination: TypeIds
) -> RelationTable:
    """Read the edges of a relation; ends are final once the numberings of both types are finished.

    Raises:
        DataError: an id is empty or unknown, or another field is empty or impossible; names file, row and
            column.
    """
    arrow = require_pyarrow()
    types = {entry.source: source.arrow_type, entry.destination: destination.arrow_type}
    columns = file.expanded(entry.features)
    types |= feature_types(file, columns)
    if entry.weight is not None:
        types[entry.weight] = arrow.float64()
    if entry.split is not None:
        types[entry.split] = arrow.string()
    if entry.time is not None:
        types[entry.time] = time_type(file, entry.time)
    src, dst, weights, features, times, codes = [], [], [], [], [], []
    row = 0
    for batch in file.batches(list(dict.fromkeys([*types, *columns])), types):
        src.append(source.numbering.encode(batch.column(entry.source), file, row, entry.source))
        dst.append(
            destination.numbering.encode(batch.column(entry.destination), file, row, entry.destination)
        )
        if entry.weight is not None:
            weights.append(weights_of(file, batch.column(entry.weight), row, entry.weight))
        if columns:
            features.append(feature_rows(file, batch, columns, row, entry.fill_missing))
        if entry.time is not None:
            times.append(times_of(file, batch.column(entry.time), row, entry.time))
        if entry.split is not None:
            codes.append(split_codes(file, batch.column(entry.split), row, entry.split))
        row += batch.num_rows
    return RelationTable(
        src=join_parts(src, np.int64),
        dst=join_parts(dst, np.int64),
        weight=None if entry.weight is None else join_parts(weights, np.float32),
        x=join_rows(features, len(columns)) if columns else None,
        columns=Columns(names=tuple(columns), fill_missing=entry.fill_missing) if columns else None,
        time=np.concatenate(times) if times else None if entry.time is None else np.empty(0, np.int64),
        splits=splits_of(codes),
    )


def finish_ids(
    types: dict[str, TypeIds], tables: list[tuple[EdgeTableEntry, RelationTable]]
) -> dict[str, NodeIds]:
    """Give the ends of all relations their node ids, and return the original ids by node type."""
    ends: dict[str, list[_Array]] = {name: [] for name in types}
    for entry, table in tables:
        ends[entry.edge_type[0]].append(table.src)
        ends[entry.edge_type[2]].append(table.dst)
    return {name: ids.numbering.finish(*ends[name]) for name, ids in types.items()}
