"""Graphs from tables: an edge list and, optionally, a table of nodes, each as CSV, Parquet or in memory.

Ids may be any integers or strings; the graph's nodes are numbered from 0 and :class:`NodeIds` maps them back.
Files are read in batches: beside the result, only a batch and the table of ids are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from graphbraid.datasets.ids import NodeIds
from graphbraid.datasets.memory import require_memory, table_bytes
from graphbraid.datasets.tables.columns import Numbering, id_type_of
from graphbraid.datasets.tables.description import EdgeTableEntry
from graphbraid.datasets.tables.file import CsvOptions, TableFile
from graphbraid.datasets.tables.reading import (
    NodeColumns,
    NodeTable,
    check_columns,
    read_edges,
    read_nodes,
    schema_of_tables,
)
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.signatures import typed

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
    """Columns of the node table that were ignored: they have no role and hold no numbers."""


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
