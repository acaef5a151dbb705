"""Descriptions of graphs with types whose nodes and edges are in tables: YAML files, checked by line."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from graphbraid.arguments import check_type
from graphbraid.datasets.splits import seconds_of
from graphbraid.datasets.tables.column_types import ColumnChoice
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
    """Columns of numbers that are features as they are. If None, all columns are encoded."""
    label: str | list[str] | None = None
    split: str | None = None
    time: str | None = None
    fill_missing: float | int | None = None
    columns: dict[str, str | ColumnChoice] = Field(default_factory=dict)
    """Type or encoding of columns that shall not have the one that is inferred."""
    keys: dict[str, str] = Field(default_factory=dict)
    """Node type that a column names the ids of: a relation of the column's name to that type."""
    csv: CsvFormat | None = None

    @property
    def is_encoded(self) -> bool:
        """Whether the features are encoded columns; else they are numbers as they are."""
        return self.file is not None and self.features is None and self.fill_missing is None


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
    label: str | list[str] | None = None
    split: str | None = None
    time: str | None = None
    fill_missing: float | int | None = None
    skip_empty: bool = False
    """Leave out rows without a destination."""
    csv: CsvFormat | None = None

    @property
    def edge_type(self) -> EdgeType:
        """The relation as graphs name it."""
        source, name, destination = self.relation
        return source, name, destination

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns of the edges' labels."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label or ())


class _DescriptionFile(_Entry):
    name: str | None = None
    nodes: dict[str, NodeTableEntry | None]
    edges: list[EdgeTableEntry] = Field(default_factory=list)
    csv: CsvFormat = CsvFormat()
    reverse: bool = False
    now: Any = None


@dataclass(frozen=True, slots=True)
class Description:
    """The tables of a graph with types."""

    name: str
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
    places: list[tuple[str | int, ...]]
    """Where each relation's entry stands: under ``edges``, or a key under ``nodes``."""
    now: float | None = None
    """Seconds since 1970 that ages count to; None for the latest time of the tables."""
    frames: Mapping[str | EdgeType, Any] = field(default_factory=dict)
    """Tables in memory, by node type and relation, in place of files."""

    def table(self, entry: NodeTableEntry | EdgeTableEntry, *place: str | int) -> TableFile:
        """Open the table of the entry at ``place``; DataError and ConfigError name the line, too."""
        assert entry.file is not None
        csv = entry.csv or self.csv
        of = entry.edge_type if isinstance(entry, EdgeTableEntry) and place[0] == "edges" else str(place[1])
        source = self.frames[of] if of in self.frames else self.tree.path.parent / entry.file
        try:
            return TableFile(source, CsvOptions(**csv.model_dump()))
        except (DataError, ConfigError) as error:
            raise self.located(error, *place, "file") from error

    @contextmanager
    def naming(self, *place: str | int) -> Iterator[None]:
        """Name the description's line of ``place`` in errors."""
        try:
            yield
        except (DataError, ConfigError) as error:
            raise self.located(error, *place) from error

    def located(self, error: GraphbraidError, *place: str | int) -> GraphbraidError:
        """Return an error with the description's line of ``place`` before its message."""
        return type(error)(f"{self.tree.where(place)}: {error}")


def read_description(path: str | os.PathLike[str]) -> Description:
    """Read a description; ConfigError names the line that is missing, unknown or of another kind."""
    tree = read_tree(Path(path))
    if not isinstance(tree.value, dict):
        raise ConfigError(f"{tree.path}: a description of tables is needed, with `nodes:` and `edges:`")
    try:
        contents = TypeAdapter(_DescriptionFile).validate_python(tree.value)
    except ValidationError as error:
        place = error.errors(include_url=False)[0]["loc"]
        raise ConfigError(f"{tree.where(place)}: {_hinted(first_mistake(error), place)}") from None
    nodes = {name: entry or NodeTableEntry() for name, entry in contents.nodes.items()}
    edges, places = _with_keys(nodes, contents.edges)
    _check(tree, nodes, edges, places)
    try:
        now = None if contents.now is None else seconds_of(str(contents.now))
    except ConfigError as error:
        raise ConfigError(f"{tree.where(('now',))}: {error}") from None
    return Description(
        name=tree.path.stem if contents.name is None else contents.name,
        nodes=nodes,
        edges=edges,
        reverse=contents.reverse,
        tree=tree,
        csv=contents.csv,
        places=places,
        now=now,
    )


def describe_frames(
    nodes: Mapping[str, Any],
    edges: Mapping[EdgeType, Any],
    roles: Mapping[str | EdgeType, Mapping[str, Any]],
    *,
    name: str,
    reverse: bool,
    now: float | None,
) -> Description:
    """Describe tables in memory by the entries in ``roles``; ConfigError says which is wrong."""
    tree = Tree({}, Path("the tables"), {})
    for of, given in roles.items():
        check_type(given, f"roles[{of!r}]", Mapping, "a mapping of roles", error=ConfigError)
        if of not in nodes and of not in edges:
            known = [*nodes, *("__".join(one) for one in edges)]
            raise ConfigError(f"roles names {of!r}, and there are {', '.join(known)}")
    try:
        of_nodes = {
            one: NodeTableEntry.model_validate(
                {"file": None if table is None else "in memory", **roles.get(one, {})}
            )
            for one, table in nodes.items()
        }
        of_edges = [
            EdgeTableEntry.model_validate({"relation": list(one), "file": "in memory", **roles.get(one, {})})
            for one in edges
        ]
    except ValidationError as error:
        raise ConfigError(f"roles: {first_mistake(error)}") from None
    every, places = _with_keys(of_nodes, of_edges)
    _check(tree, of_nodes, every, places)
    return Description(
        name=name,
        nodes=of_nodes,
        edges=every,
        reverse=reverse,
        tree=tree,
        csv=CsvFormat(),
        places=places,
        now=now,
        frames=dict(nodes) | dict(edges),
    )


def _with_keys(
    nodes: Mapping[str, NodeTableEntry], edges: Sequence[EdgeTableEntry]
) -> tuple[list[EdgeTableEntry], list[tuple[str | int, ...]]]:
    """Return the relations, with those of foreign keys at the end, and the place of each one's entry."""
    found, places = list(edges), [("edges", at) for at in range(len(edges))]
    every: list[tuple[str | int, ...]] = [*places]
    for name, entry in nodes.items():
        for column, target in entry.keys.items():
            found.append(
                EdgeTableEntry(
                    relation=[name, column, target],
                    file=entry.file or "",
                    source=entry.id,
                    destination=column,
                    skip_empty=True,
                    csv=entry.csv,
                )
            )
            every.append(("nodes", name, "keys", column))
    return found, every


def _check(
    tree: Tree,
    nodes: dict[str, NodeTableEntry],
    edges: list[EdgeTableEntry],
    places: list[tuple[str | int, ...]],
) -> None:
    if not edges:
        raise ConfigError(
            f"{tree.where(('edges',))}: edges: List should have at least 1 item, unless nodes have "
            "keys: columns that name other nodes"
        )
    seen: dict[EdgeType, tuple[str | int, ...]] = {}
    for place, entry in zip(places, edges, strict=True):
        where = tree.where((*place, "relation"))
        for end in (entry.edge_type[0], entry.edge_type[2]):
            if end not in nodes:
                raise ConfigError(
                    f"{where}: there is no node type {end!r} under nodes; there are {', '.join(nodes)}."
                    f"{did_you_mean(end, list(nodes))}"
                )
        if entry.edge_type in seen:
            first = tree.where((*seen[entry.edge_type], "relation"))
            raise ConfigError(f"{where}: the relation {entry.edge_type} stands there twice; first at {first}")
        seen[entry.edge_type] = place
        if entry.source == entry.destination:
            raise ConfigError(
                f"{tree.where(place)}: source and destination are the same column {entry.source!r}"
            )
    _check_columns(tree, nodes)
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


def _check_columns(tree: Tree, nodes: Mapping[str, NodeTableEntry]) -> None:
    for name, node_entry in nodes.items():
        if node_entry.columns and not node_entry.is_encoded:
            raise ConfigError(
                f"{tree.where(('nodes', name, 'columns'))}: columns are encoded, and with features or "
                "fill_missing numbers are taken as they are; give one of these"
            )
        for column, one in node_entry.columns.items():
            try:
                ColumnChoice.of(one)
            except ConfigError as error:
                raise ConfigError(f"{tree.where(('nodes', name, 'columns', column))}: {error}") from None


def _hinted(text: str, place: tuple[Any, ...]) -> str:
    """Add the known names to a message about an unknown one."""
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
