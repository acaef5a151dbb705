"""Graphs with types from tables, one file per node type and relation, as a YAML file describes them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphbraid.arguments import shown
from graphbraid.datasets.npy import require_memory, table_bytes
from graphbraid.datasets.store.manifest import StoreNames
from graphbraid.datasets.tables.column_types import ColumnChoice, TypedColumn, decide, stored_as, times_of
from graphbraid.datasets.tables.columns import NumberArray, Numbering, id_type_of
from graphbraid.datasets.tables.description import (
    Description,
    EdgeTableEntry,
    NodeTableEntry,
    describe_frames,
    read_description,
)
from graphbraid.datasets.tables.encoded import NOW, with_fitted_features
from graphbraid.datasets.tables.encoding import names_of, sentences
from graphbraid.datasets.tables.file import TableFile, require_pyarrow
from graphbraid.datasets.tables.reading import (
    EdgeTable,
    NodeColumns,
    NodeTable,
    check_columns,
    read_edges,
    read_nodes,
    schema_of_tables,
)
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Columns, Graph
from graphbraid.graph.types import EdgeType
from graphbraid.signatures import typed


@dataclass(frozen=True, kw_only=True, slots=True)
class TypedTableGraph:
    """A graph with types made from tables, with the names that the tables use."""

    graph: Graph
    names: dict[str, StoreNames]
    """Original id of each node and name of each class, by node type."""
    unused_columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns that were ignored, by node type: they have no role and no encoder."""
    columns: dict[str, tuple[TypedColumn, ...]] = field(default_factory=dict)
    """Inferred kind and encoder of each column, by node type."""


@typed
def from_typed_tables(
    path: str | os.PathLike[str], *, columns: Mapping[str, Mapping[str, str]] | None = None
) -> TypedTableGraph:
    """Make a graph with types from the tables that a YAML file describes; docs/tables.md has its entries.

    Ids count within each node type. Nodes are numbered in the order of their type's table; without one, in
    the ascending (integers) or alphabetical (strings) order of the ids that edges name.

    Args:
        path: The YAML file; the paths in it are relative to its folder.
        columns: By node type and column, the type or encoding to take in place of that in the file, or of the
            inferred one.

    Raises:
        MissingPackageError: pyarrow is not installed.
        ConfigError: The YAML file is invalid or contradicts itself; names the line.
        DataError: A table or column is missing, or a value is invalid; names file, row and column.
    """
    described = read_description(path)
    for name, given in (columns or {}).items():
        if name not in described.nodes:
            known = ", ".join(described.nodes)
            raise ConfigError(f"columns names the node type {name!r}, and there are {known}")
        if not isinstance(given, Mapping):
            raise ConfigError(f"columns[{name!r}] must map columns to types or encoders; got {shown(given)}")
        entry = described.nodes[name]
        described.nodes[name] = entry.model_copy(update={"columns": {**entry.columns, **given}})
    return _made(described)


@typed
def from_frames(
    nodes: Mapping[str, Any],
    edges: Mapping[EdgeType, Any] | None = None,
    *,
    roles: Mapping[str | EdgeType, Mapping[str, Any]] | None = None,
    reverse: bool = False,
    now: float | None = None,
    name: str = "",
) -> TypedTableGraph:
    """Make a graph with types from tables in memory, as :meth:`graphbraid.Graph.from_tables` does, with ids.

    Args:
        nodes: By node type a table with a row per node: of pandas, polars, pyarrow or another library that
            Arrow reads; None for a type that has no table: its nodes are the ids in edges.
        edges: By relation a table with a row per edge.
        roles: By node type and relation the entries that a YAML file would have: ``id``, ``label``, ``time``,
            ``split``, ``columns``, ``keys``, ``features`` of nodes; ``source``, ``destination``, ``weight``,
            ``label``, ``split``, ``time``, ``features`` of edges.
        reverse: Add a relation ``rev_NAME`` beside each.
        now: Seconds since 1970 that ages count to. If None, the latest time in the tables.
        name: Name of the graph in reports.

    Raises:
        MissingPackageError: pyarrow is not installed.
        ConfigError: A role is unknown or contradicts another.
        DataError: A column is missing or a value is invalid; names the table, row and column.
    """
    return _made(describe_frames(nodes, edges or {}, roles or {}, name=name, reverse=reverse, now=now))


def _made(described: Description) -> TypedTableGraph:
    files = [
        described.table(entry, *place) for entry, place in zip(described.edges, described.places, strict=True)
    ]
    for place, file, entry in zip(described.places, files, described.edges, strict=True):
        try:
            check_columns(file, entry)
        except (DataError, ConfigError) as error:
            raise described.located(error, *place) from error
    needed = 0 if described.frames else sum(table_bytes(Path(file.name)) for file in files)
    require_memory(needed, f"reading the tables of {described.tree.path}")
    columns, nodes, raw = _read_nodes(described)
    numbering = {
        name: Numbering(nodes[name].ids, nodes[name].id_type)
        if name in nodes
        else Numbering(None, id_type_of(entry.id_type, _columns_of(name, files, described.edges)))
        for name, entry in described.nodes.items()
    }
    edges = [
        (entry, read_edges(file, entry, numbering[entry.edge_type[0]], numbering[entry.edge_type[2]]))
        for file, entry in zip(files, described.edges, strict=True)
    ]
    ends: dict[str, list[NumberArray]] = {name: [] for name in numbering}
    for entry, table in edges:
        ends[entry.edge_type[0]].append(table.src)
        ends[entry.edge_type[2]].append(table.dst)
    ids = {name: one.finish(*ends[name]) for name, one in numbering.items()}
    graph = _graph(described, nodes, edges, {name: len(one) for name, one in ids.items()})
    graph, decided = _with_features(described, graph, raw, columns)
    left_out = {name: one.unused for name, one in columns.items() if one.unused}
    left_out |= {name: tuple(one.column for one in of if not one.how) for name, of in decided.items()}
    return TypedTableGraph(
        graph=graph.with_reverse_relations() if described.reverse else graph,
        names={
            name: StoreNames(ids=one, class_names=nodes[name].class_names if name in nodes else None)
            for name, one in ids.items()
        },
        unused_columns={name: one for name, one in left_out.items() if one},
        columns=decided,
    )


def _read_nodes(
    described: Description,
) -> tuple[dict[str, NodeColumns], dict[str, NodeTable], dict[str, Any]]:
    """Return columns and content of each table of nodes, and the raw tables whose columns are encoded."""
    columns, tables, raw = {}, {}, {}
    for name, entry in described.nodes.items():
        if entry.file is None:
            continue
        file = described.table(entry, "nodes", name)
        try:
            features = [] if entry.is_encoded else entry.features
            columns[name] = NodeColumns.resolve(
                file, entry.id, features, entry.label, entry.split, time=entry.time
            )
        except (DataError, ConfigError) as error:
            raise described.located(error, "nodes", name) from error
        tables[name] = read_nodes(file, columns[name], entry.id_type, entry.fill_missing)
        if entry.is_encoded:
            with described.naming("nodes", name):
                raw[name] = _raw_table(file, entry)
    return columns, tables, raw


def _raw_table(file: TableFile, entry: NodeTableEntry) -> Any:
    """Return all columns of a table; those that a user says are texts are read as texts."""
    arrow = require_pyarrow()
    choices = {name: ColumnChoice.of(given) for name, given in entry.columns.items()}
    types = {
        name: arrow.float64() if one.type == "number" else arrow.string()
        for name, one in choices.items()
        if one.type in ("number", "category", "categories", "text", "id") and name in file.types
    }
    for name in file.columns if file.is_text else ():
        if arrow.types.is_binary(file.types[name]) and name not in entry.columns:
            raise DataError(
                f"{file.name} is not UTF-8 text in column {name!r}; write it in UTF-8, or leave the column "
                f"out (columns: {{{name}: ignore}})"
            )
    table = _plain(file.whole(types))
    for name, one in choices.items():
        if one.encoder == "sentences" and stored_as(table.column(name).type) != "list":
            at = table.column_names.index(name)
            table = table.set_column(at, name, sentences(table.column(name), str(one.model)))
    return table


def _plain(table: Any) -> Any:
    """Return the table with values in place of dictionaries and views, and null for NaN.

    pandas writes an empty number as null, polars as NaN; both must make the same store.
    """
    arrow = require_pyarrow()
    for at, name in enumerate(table.column_names):
        values = table.column(at)
        if arrow.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if arrow.types.is_string_view(values.type):
            values = values.cast(arrow.string())
        if arrow.types.is_float16(values.type):
            values = values.cast(arrow.float32())
        if arrow.types.is_floating(values.type):
            values = arrow.compute.if_else(values.is_nan(), arrow.scalar(None, values.type), values)
        if values is not table.column(at):
            table = table.set_column(at, name, values)
    return table


def _with_features(
    described: Description, graph: Graph, raw: Mapping[str, Any], roles: Mapping[str, NodeColumns]
) -> tuple[Graph, dict[str, tuple[TypedColumn, ...]]]:
    """Return the graph with encoded columns as features, and the decision about each column."""
    decided, choices, columns = {}, {}, dict(graph.schema.columns)
    now = described.now if described.now is not None else _latest(graph, raw)
    for name, table in raw.items():
        entry, role = described.nodes[name], roles[name]
        given = {column: ColumnChoice.of(one) for column, one in entry.columns.items()}
        taken = [role.id, *role.labels, *entry.keys, *(one for one in (role.split, role.time) if one)]
        with described.naming("nodes", name):
            decided[name] = decide(table, given, taken)
        choices[name] = {column: choice for column, (choice, _) in decided[name].items()}
        own_time = role.time is not None and stored_as(table.column(role.time).type) == "time"
        metadata = {} if now is None else {NOW: b"time" if own_time else str(now).encode()}
        columns[name] = Columns(table=table.replace_schema_metadata(metadata))
    if not raw:
        return graph, {}
    graph = graph.replace(schema=replace(graph.schema, columns=columns))
    graph = with_fitted_features(graph, choices)
    found = {}
    for name, of in decided.items():
        widths = {one.column: len(names_of(one)) for one in graph.schema.columns[name].encoders or ()}
        found[name] = tuple(
            TypedColumn(column, str(choice.type), choice.encoder or "", widths.get(column, 0), why)
            for column, (choice, why) in of.items()
        )
    return graph, found


def _latest(graph: Graph, raw: Mapping[str, Any]) -> float | None:
    """Return the latest time of nodes and edges, else the latest in a column of times; None without any."""
    own = [graph.nodes_of(name).time for name in graph.node_types]
    own += [graph.edges_of(one).time for one in graph.edge_types]
    times = [float(time.max()) for time in own if time is not None and time.numel()]
    if not times:
        every = [table.column(name) for table in raw.values() for name in table.column_names]
        of_times = [times_of("", values) for values in every if stored_as(values.type) == "time"]
        times = [float(np.fmax.reduce(one, initial=np.nan)) for one in of_times]
    return max((time for time in times if not math.isnan(time)), default=None)


def _columns_of(
    node_type: str, files: list[TableFile], entries: list[EdgeTableEntry]
) -> list[tuple[TableFile, str]]:
    """Return the columns that name nodes of a type."""
    found = []
    for file, entry in zip(files, entries, strict=True):
        source, _, destination = entry.edge_type
        found += [(file, entry.source)] * (source == node_type)
        found += [(file, entry.destination)] * (destination == node_type)
    return found


def _graph(
    described: Description,
    nodes: dict[str, NodeTable],
    edges: list[tuple[EdgeTableEntry, EdgeTable]],
    counts: dict[str, int],
) -> Graph:
    relations = {entry.edge_type: table for entry, table in edges}
    graph = Graph.from_relations(
        {edge_type: (table.src, table.dst) for edge_type, table in relations.items()},
        counts,
        x={name: table.x for name, table in nodes.items()},
        y={name: table.y for name, table in nodes.items()},
        splits={name: table.splits for name, table in nodes.items()},
        node_time={name: table.time for name, table in nodes.items()},
        edge_weight={one: table.weight for one, table in relations.items() if table.weight is not None},
        edge_attr={one: table.x for one, table in relations.items()},
        edge_time={one: table.time for one, table in relations.items()},
        edge_y={one: table.y for one, table in relations.items() if table.y is not None},
        edge_splits={one: table.splits for one, table in relations.items()},
        name=described.name,
    )
    return graph.replace(schema=schema_of_tables({**relations, **nodes}))
