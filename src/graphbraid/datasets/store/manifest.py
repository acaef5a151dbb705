"""The content of a store's ``graph.json``: arrays, names of nodes, classes and columns, and node types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, field_validator
from torch import Tensor

from graphbraid.datasets.ids import NodeIds
from graphbraid.datasets.store.arrays import ArrayEntry, FolderKind
from graphbraid.datasets.store.types import TypesEntry, described_types
from graphbraid.errors import ConfigError, DataError
from graphbraid.files.schema import Count, FileModel
from graphbraid.graph import Columns, Graph, Schema
from graphbraid.graph.schema import Encoder, NodesOrEdges
from graphbraid.graph.types import ONLY_NODE_TYPE

STORE = FolderKind(name="store", manifest="graph.json", again="store", version=4)
"""Stores of graphs."""

_IDS = re.compile(r"(?:node(\d+)_)?ids_(\w+)")


class ColumnsEntry(FileModel):
    """The columns of the features of a node type or of a relation in a file."""

    of: list[str]
    """The node type, or the three parts of the relation."""
    names: list[str] | None
    fill_missing: float | None
    normalized: bool
    encoders: list[Encoder] | None = None

    @property
    def key(self) -> NodesOrEdges:
        """The node type or relation as graphs name it."""
        return self.of[0] if len(self.of) == 1 else (self.of[0], self.of[1], self.of[2])

    @field_validator("of")
    @classmethod
    def _has_parts(cls, of: list[str]) -> list[str]:
        if len(of) not in (1, 3):
            raise ValueError(f"must be a node type or the three parts of a relation; got {of}")
        return of


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreNames:
    """The names that a store keeps beside the graph."""

    ids: NodeIds | None = None
    """Original id of each node, if nodes were renumbered."""
    class_names: tuple[str, ...] | None = None
    """Name of each class, if labels had names."""
    types: Mapping[str, StoreNames] = field(default_factory=dict)
    """Names of the nodes and classes of each node type, in a graph with types."""


def names_to_store(
    graph: Graph,
    ids: NodeIds | None,
    class_names: Sequence[str] | None,
    types: Mapping[str, StoreNames] | None,
) -> StoreNames:
    """Return the names to store: those given, else class names that the graph has.

    ConfigError: names are by node type of a graph without types, or the other way. DataError: they do not
    fit.
    """
    if types is not None and not graph.is_typed:
        raise ConfigError("names are by node type, and the graph has no types: give ids and class_names")
    if graph.is_typed and (ids is not None or class_names is not None):
        raise ConfigError("ids and class_names of a graph with types are by node type: give names")
    _check_length(ids, graph.num_nodes, "ids")
    for node_type, named in (types or {}).items():
        _check_length(named.ids, graph.nodes_of(node_type).num_nodes, f"ids of {node_type!r}")
    known = graph.schema.class_names
    if not graph.is_typed:
        own = known.get(ONLY_NODE_TYPE) if class_names is None else tuple(class_names)
        return StoreNames(ids=ids, class_names=own)
    given = {name: (types or {}).get(name, StoreNames()) for name in graph.node_types}
    return StoreNames(
        types={
            name: StoreNames(ids=one.ids, class_names=one.class_names or known.get(name))
            for name, one in given.items()
        }
    )


def _check_length(ids: NodeIds | None, num_nodes: int, what: str) -> None:
    if ids is not None and len(ids) != num_nodes:
        raise DataError(f"{what} must have one entry per node ({num_nodes}); got {len(ids)}")


def ids_to_store(named: StoreNames, node_types: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and content of each array of ids; a name begins with the number of its node type."""
    of_types = [named.types.get(node_type, StoreNames()).ids for node_type in node_types]
    for prefix, ids in [("", named.ids), *((f"node{i}_", ids) for i, ids in enumerate(of_types))]:
        for key, array in ({} if ids is None else ids.arrays()).items():
            yield f"{prefix}ids_{key}", array


def is_ids(name: str) -> bool:
    """Return whether an array holds original ids, and no part of the graph."""
    return _IDS.fullmatch(name) is not None


def stored_names(
    arrays: Mapping[str, Tensor],
    class_names: Sequence[str] | None,
    of_types: Sequence[tuple[str, Sequence[str] | None]] = (),
) -> StoreNames:
    """Return the names in a store; DataError if they do not fit, or a node type does not exist.

    ``of_types`` has the name of each node type, and the names of its classes.
    """
    found: dict[int, dict[str, Tensor]] = {}
    for name, array in arrays.items():
        parts = _IDS.fullmatch(name)
        assert parts is not None, f"{name} is an array of ids"
        number = -1 if parts[1] is None else int(parts[1])
        if number >= len(of_types):
            raise DataError(f"{name} is of a node type that does not exist")
        found.setdefault(number, {})[parts[2]] = array
    return StoreNames(
        ids=_ids_of(found.get(-1)),
        class_names=None if class_names is None else tuple(class_names),
        types={
            node_type: StoreNames(
                ids=_ids_of(found.get(number)), class_names=None if classes is None else tuple(classes)
            )
            for number, (node_type, classes) in enumerate(of_types)
        },
    )


def _ids_of(arrays: Mapping[str, Tensor] | None) -> NodeIds | None:
    return NodeIds.from_arrays(arrays) if arrays else None


def described_columns(schema: Schema) -> list[ColumnsEntry]:
    """Return the entries of a schema's columns."""
    return [
        ColumnsEntry(
            of=[of] if isinstance(of, str) else list(of),
            names=None if one.names is None else list(one.names),
            fill_missing=one.fill_missing,
            normalized=one.normalized,
            encoders=None if one.encoders is None else list(one.encoders),
        )
        for of, one in schema.columns.items()
    ]


def schema_of(columns: Sequence[ColumnsEntry], names: Mapping[Any, Sequence[str] | None]) -> Schema:
    """Return the schema of these columns, and of the classes of each node type and relation."""
    return Schema(
        columns={
            one.key: Columns(
                names=None if one.names is None else tuple(one.names),
                fill_missing=one.fill_missing,
                normalized=one.normalized,
                encoders=None if one.encoders is None else tuple(one.encoders),
            )
            for one in columns
        },
        class_names={name: tuple(classes) for name, classes in names.items() if classes is not None},
    )


class StoreManifest(FileModel):
    """The content of ``graph.json``."""

    format: str
    version: int
    name: str = ""
    num_nodes: Count
    num_edges: Count
    num_features: Count
    class_names: list[str] | None = None
    weight_name: str = "edge_weight"
    types: TypesEntry | None = None
    columns: list[ColumnsEntry] = Field(default_factory=list)
    arrays: dict[str, ArrayEntry]

    @property
    def schema_of_graph(self) -> Schema:
        """Meaning of columns and classes."""
        if self.types is None:
            return schema_of(self.columns, {ONLY_NODE_TYPE: self.class_names})
        of_nodes = {one.name: one.class_names for one in self.types.nodes}
        return schema_of(self.columns, of_nodes | {one.key: one.class_names for one in self.types.edges})


def manifest_of(
    graph: Graph, named: StoreNames, num_features: int, described: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the content of ``graph.json`` for a graph, its names and its described arrays."""
    manifest: dict[str, Any] = {
        **STORE.header,
        "name": graph.name,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": num_features,
        "class_names": _listed(named.class_names),
    }
    if graph.weight_name != "edge_weight":
        manifest["weight_name"] = graph.weight_name
    if graph.types is not None:
        class_names: dict[NodesOrEdges, list[str] | None] = {
            of: list(names) for of, names in graph.schema.class_names.items() if not isinstance(of, str)
        }
        class_names |= {node_type: _listed(one.class_names) for node_type, one in named.types.items()}
        manifest["types"] = described_types(graph.types, class_names).model_dump(exclude_defaults=True)
    if graph.schema.columns:
        manifest["columns"] = [
            one.model_dump(exclude=None if one.encoders is not None else {"encoders"})
            for one in described_columns(graph.schema)
        ]
    return manifest | {"arrays": described}


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)
