"""Graphs with types from tables, one file per node type and relation, as a YAML file describes them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from graphbraid.datasets.memory import require_memory, table_bytes
from graphbraid.datasets.store.manifest import StoreNames
from graphbraid.datasets.tables.columns import NumberArray, Numbering, id_type_of
from graphbraid.datasets.tables.description import Description, EdgeTableEntry, read_description
from graphbraid.datasets.tables.file import TableFile
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
from graphbraid.graph.schema import NodesOrEdges
from graphbraid.signatures import typed


@dataclass(frozen=True, kw_only=True, slots=True)
class TypedTableGraph:
    """A graph with types made from tables, with the names that the tables use."""

    graph: Graph
    names: dict[str, StoreNames]
    """Original id of each node and name of each class, by node type."""
    unused_columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns that were ignored, by node type: they have no role and hold no numbers."""


@typed
def from_typed_tables(path: str | os.PathLike[str]) -> TypedTableGraph:
    """Make a graph with types from the tables that a YAML file describes; docs/datasets.md has its entries.

    Ids count within each node type. Nodes are numbered in the order of their type's table; without one, in
    the ascending (integers) or alphabetical (strings) order of the ids that edges name.

    Args:
        path: The YAML file; the paths in it are relative to its folder.

    Raises:
        MissingPackageError: pyarrow is not installed.
        ConfigError: The YAML file is invalid or contradicts itself; names the line.
        DataError: A table or column is missing, or a value is invalid; names file, row and column.
    """
    described = read_description(path)
    files = [described.table(entry, "edges", at) for at, entry in enumerate(described.edges)]
    for at, (file, entry) in enumerate(zip(files, described.edges, strict=True)):
        try:
            check_columns(file, entry)
        except (DataError, ConfigError) as error:
            raise described.located(error, "edges", at) from error
    needed = sum(table_bytes(Path(file.name)) for file in files)
    require_memory(needed, f"reading the tables of {os.fspath(path)}")
    columns, nodes = _read_nodes(described)
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
    return TypedTableGraph(
        graph=graph.with_reverse_relations() if described.reverse else graph,
        names={
            name: StoreNames(ids=one, class_names=nodes[name].class_names if name in nodes else None)
            for name, one in ids.items()
        },
        unused_columns={name: one.unused for name, one in columns.items() if one.unused},
    )


def _read_nodes(described: Description) -> tuple[dict[str, NodeColumns], dict[str, NodeTable]]:
    columns, tables = {}, {}
    for name, entry in described.nodes.items():
        if entry.file is None:
            continue
        file = described.table(entry, "nodes", name)
        try:
            columns[name] = NodeColumns.resolve(
                file, entry.id, entry.features, entry.label, entry.split, time=entry.time
            )
        except (DataError, ConfigError) as error:
            raise described.located(error, "nodes", name) from error
        tables[name] = read_nodes(file, columns[name], entry.id_type, entry.fill_missing)
    return columns, tables


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
    columns: dict[NodesOrEdges, Columns] = {
        name: table.columns for name, table in relations.items() if table.columns is not None
    }
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
        edge_splits={one: table.splits for one, table in relations.items()},
        name=described.name,
    )
    return graph.replace(schema=schema_of_tables(nodes, columns))
