"""Descriptions of graphs with types whose nodes and edges are in tables: YAML files, checked by line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from graphbraid.datasets.tables.file import CsvOptions, TableFile
from graphbraid.errors import ConfigError, DataError, GraphbraidError, did_you_mean
from graphbraid.files.schema import first_mistake
from graphbraid.files.yaml_file import Tree, read_tree
from graphbraid.graph.types import EdgeType


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CsvFormat(_Entry):
    """The format of CSV files; see :class:`graphbraid.datasets.CsvOptions`."""

    delimiter: str | None = None
    header: bool = True
    skip_rows: int = 0


class NodeTableEntry(_Entry):
    """The table of a node type."""

    file: str | None = None
    """Path, relative to the description. If None, the nodes are those that edges name."""
    id: str = "id"
    """Column of the ids."""
    id_type: Literal["auto", "int", "string"] = "auto"
    features: list[str] | None = None
    """Feature columns. If None, every numeric column without another role."""
    label: str | list[str] | None = None
    split: str | None = None
    time: str | None = None
    fill_missing: float | int | None = None
    csv: CsvFormat | None = None


class EdgeTableEntry(_Entry):
    """The table of a relation."""

    relation: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=3, max_length=3)]
    """Type of the sources, name, type of the destinations."""
    file: str
    """Path, relative to the description."""
    source: str = "source"
    """Column of the sources' ids."""
    destination: str = "destination"
    """Column of the destinations' ids."""
    weight: str | None = None
    features: list[str] = Field(default_factory=list)
    split: str | None = None
    time: str | None = None
    fill_missing: float | int | None = None
    csv: CsvFormat | None = None

    @property
    def edge_type(self) -> EdgeType:
        """The relation as graphs name it."""
        source, name, destination = self.relation
        return source, name, destination


class _DescriptionFile(_Entry):
    name: str | None = None
    nodes: dict[str, NodeTableEntry | None]
    edges: Annotated[list[EdgeTableEntry], Field(min_length=1)]
    csv: CsvFormat = CsvFormat()
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """The tables of a graph with types."""

    name: str
    """Name of the graph."""
    nodes: dict[str, NodeTableEntry]
    """Tables of the node types, in the types' order."""
    edges: list[EdgeTableEntry]
    """Tables of the relations, in their order."""
    reverse: bool
    """Whether each relation gets its reverse beside it."""
    tree: Tree
    """Where everything stands."""
    csv: CsvFormat
    """Format of the CSV files of entries without one."""

    def table(self, entry: NodeTableEntry | EdgeTableEntry, *place: str | int) -> TableFile:
        """Open the table of the entry at ``place``.

        Raises:
            DataError: the file is missing or broken; names the description's line too.
            ConfigError: the format is impossible, likewise.
        """
        assert entry.file is not None
        csv = entry.csv or self.csv
        try:
            return TableFile(self.tree.path.parent / entry.file, CsvOptions(**csv.model_dump()))
        except (DataError, ConfigError) as error:
            raise self.located(error, *place, "file") from error

    def located(self, error: GraphbraidError, *place: str | int) -> GraphbraidError:
        """Return an error with the description's line of ``place`` before its message."""
        return type(error)(f"{self.tree.where(place)}: {error}")


def read_description(path: str | os.PathLike[str]) -> Description:
    """Read a description.

    Raises:
        ConfigError: the file cannot be read, lacks an entry, or has one that is unknown or of another kind;
            names the line.
    """
    tree = read_tree(Path(path))
    try:
        contents = TypeAdapter(_DescriptionFile).validate_python(tree.value)
    except ValidationError as error:
        place = error.errors(include_url=False)[0]["loc"]
        raise ConfigError(f"{tree.where(place)}: {_hinted(first_mistake(error), place)}") from None
    nodes = {name: entry or NodeTableEntry() for name, entry in contents.nodes.items()}
    _check(tree, nodes, contents.edges)
    return Description(
        name=tree.path.stem if contents.name is None else contents.name,
        nodes=nodes,
        edges=contents.edges,
        reverse=contents.reverse,
        tree=tree,
        csv=contents.csv,
    )


def _check(tree: Tree, nodes: dict[str, NodeTableEntry], edges: list[EdgeTableEntry]) -> None:
    """Check what entries say of each other."""
    seen: dict[EdgeType, int] = {}
    for number, entry in enumerate(edges):
        where = tree.where(("edges", number, "relation"))
        for end in (entry.edge_type[0], entry.edge_type[2]):
            if end not in nodes:
                raise ConfigError(
                    f"{where}: there is no node type {end!r} under nodes; there are {', '.join(nodes)}."
                    f"{did_you_mean(end, list(nodes))}"
                )
        if entry.edge_type in seen:
            first = tree.where(("edges", seen[entry.edge_type], "relation"))
            raise ConfigError(f"{where}: the relation {entry.edge_type} stands there twice; first at {first}")
        seen[entry.edge_type] = number
        if entry.source == entry.destination:
            raise ConfigError(
                f"{tree.where(('edges', number))}: source and destination are the same column "
                f"{entry.source!r}"
            )
    named = {end for edge_type in seen for end in (edge_type[0], edge_type[2])}
    for name, node_entry in nodes.items():
        given = node_entry.model_fields_set - {"id_type", "file"}
        if node_entry.file is None and given:
            raise ConfigError(
                f"{tree.where(('nodes', name, min(given)))}: {min(given)} is a column of the table of "
                f"{name!r}, which has no file"
            )
        if node_entry.file is None and name not in named:
            raise ConfigError(
                f"{tree.where(('nodes', name))}: nodes of type {name!r} have no file, and no relation names "
                "them"
            )


def _hinted(text: str, place: tuple[Any, ...]) -> str:
    """Add the names that are known where one is not."""
    if "Extra inputs are not permitted" not in text or not place:
        return text
    kinds: dict[Any, type[BaseModel]] = {"nodes": NodeTableEntry, "edges": EdgeTableEntry}
    kind = (
        _DescriptionFile
        if len(place) == 1
        else CsvFormat
        if "csv" in place[:-1]
        else kinds.get(place[0], _DescriptionFile)
    )
    known = list(kind.model_fields)
    return (
        f"there is no entry {place[-1]!r}; there are {', '.join(known)}.{did_you_mean(str(place[-1]), known)}"
    )
