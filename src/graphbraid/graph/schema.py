"""Schema: the meaning of a graph's feature columns and classes, by node type and relation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from graphbraid.graph.types import EdgeType

NodesOrEdges = str | EdgeType
"""A node type, whose rows are of nodes, or a relation, whose rows are of edges."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """The encoder of one column of a table, with all values that were fitted on the training part."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": False}  # JSON has no tuples

    column: str
    """Name of the column."""
    kind: str
    """What it holds: ``number``, ``category``, ``categories``, ``boolean``, ``time``, ``text``,
    ``embedding``; ``id``, ``constant`` and ``ignore`` columns have no encoder."""
    how: str
    """The encoding, such as ``standard`` or ``one-hot``; docs/tables.md lists them."""
    stored: str
    """What the file held: ``number``, ``text``, ``boolean``, ``time``, ``list`` or ``nothing``."""
    numbers: tuple[float, ...] = ()
    """Fitted numbers: mean and standard deviation, quantiles, or bounds of buckets."""
    entries: tuple[str, ...] = ()
    """Fitted entries: categories or words, the most frequent first; the name of a text model."""
    missing: bool = False
    """Whether a column of its own says where the field was empty."""
    width: int = 0
    """Number of columns of an embedding, or 1 if the hour of a time is encoded."""
    size: int | None = None
    """Most entries to keep whenever it is fitted; None for the encoding's own limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The columns of one matrix of features."""

    names: tuple[str, ...] | None = None
    """Name of each column, in their order; None if they are not known."""
    fill_missing: float | None = None
    """Value that was put into empty fields; None if there was none."""
    normalized: bool = False
    """Whether each row was divided by the sum of its absolute values (``normalize_features``)."""
    encoders: tuple[Encoder, ...] | None = None
    """How the columns were made of those of ``table``; None if they were not."""
    table: Any = field(default=None, compare=False, repr=False)
    """The table's own columns, a ``pyarrow.Table`` with a row per node; None if they are not kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """The meaning of a graph's columns and classes; a graph without types has the type ``"node"``."""

    columns: Mapping[NodesOrEdges, Columns] = field(default_factory=dict)
    """The columns of features by node type, and of edge features by relation."""
    class_names: Mapping[NodesOrEdges, tuple[str, ...]] = field(default_factory=dict)
    """Name of each class, or of each column of a label matrix, by node type and relation."""

    @property
    def has_tables(self) -> bool:
        """Whether the graph keeps the columns that its features were made of."""
        return any(columns.table is not None for columns in self.columns.values())

    def without(self, *fields: str) -> Schema:
        """Return the schema of a graph whose ``x``, ``y``, ``edge_attr`` or ``types`` are other ones."""
        keeps_nodes, keeps_edges = "x" not in fields, "edge_attr" not in fields
        return Schema(
            columns={
                of: columns
                for of, columns in self.columns.items()
                if "types" not in fields and (keeps_nodes if isinstance(of, str) else keeps_edges)
            },
            class_names={} if {"y", "types"} & set(fields) else self.class_names,
        )


def learned_columns(columns: Columns) -> dict[int, int]:
    """Return the columns that number categories with a learned row, and how many rows each needs."""
    counts = {
        f"{one.column}#": len(one.entries) + 1 + one.missing
        for one in columns.encoders or ()
        if one.how == "learned"
    }
    return {at: counts[name] for at, name in enumerate(columns.names or ()) if name in counts}
