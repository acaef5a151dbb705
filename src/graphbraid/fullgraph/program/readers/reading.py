"""Interface of readers of graph layers and of modules that map rows to rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from graphbraid.fullgraph.program.readers.exact import Known, check, is_from
from graphbraid.fullgraph.program.readers.functions import NodeRows
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.fullgraph.program.writer import Writer
from graphbraid.graph import Graph
from graphbraid.graph.types import Relation


@dataclass(frozen=True)
class Edges:
    """The edges that a layer is called with."""

    weighted: bool = False
    """Whether the layer receives edge weights."""
    sparse: bool = False
    """Whether the edges are a sparse matrix, whose values are the weights."""
    channels: int | None = None
    """Number of edge features that the layer receives; None if it receives none."""
    graph: Graph | None = field(default=None, compare=False)
    """The graph that the edges belong to, for checks that must look at them."""
    relations: tuple[Relation, ...] = ()
    """The relations with edges, for a layer that receives the relation of each edge."""
    relation: Relation | None = None
    """The relation whose edges they are, in a graph with types."""


@dataclass(frozen=True)
class LayerCall:
    """One call of a module.

    Attributes:
        writer: the writer that collects operations.
        name: name of the module in the model.
        layer: the module, already checked against its reader's :class:`Known`.
        x: name of the value of its input rows.
        edges: the edges that a graph layer is called with.
        given: its other arguments that are not None, by name; a matrix of node rows is a :class:`NodeRows`.
        several: names of the values, if its first argument is a list of matrices; of a graph layer a pair,
            the sources' rows and the destinations'.
    """

    writer: Writer
    name: str
    layer: Any
    x: str
    edges: Edges = field(default_factory=Edges)
    given: Mapping[str, Any] = field(default_factory=dict)
    several: tuple[str, ...] = ()

    @property
    def own(self) -> str:
        """Name of the value with a graph layer's destinations' rows: its input, or the second of two."""
        return self.several[1] if self.several else self.x

    def rows(self, key: str) -> str:
        """Return the name of the value of another argument that is a matrix of node rows.

        Raises:
            NotLoweredError: it is something else.
        """
        given = self.given.get(key)
        if isinstance(given, NodeRows):
            return given.value
        raise self.refuse(f"with a {key!r} that is not a matrix of node rows has no lowered form")

    def refuse(self, reason: str, needed: str = "") -> NotLoweredError:
        """Return the error to raise if this call has no lowered form; ``reason`` follows the class's name."""
        return NotLoweredError(self.name, f"{type(self.layer).__name__} {reason}", needed)


@dataclass(frozen=True)
class Reader:
    """Reader of the instances of one class.

    Attributes:
        read: appends the operations and returns the name of the result.
        known: what an instance may hold.
        takes: names of ``forward``'s parameters in order. The first receives the rows; ``edge_index`` or
            ``csc`` of a graph layer receives the edges. The others must be None, unless ``gives`` names them.
        gives: parameters that ``read`` handles itself.
        relates: whether ``read`` handles the edges of one relation between two node types, with a pair of
            matrices, and a pair in a graph of one type.
    """

    read: Callable[[LayerCall], str]
    known: Known
    takes: tuple[str, ...] = ("x",)
    gives: tuple[str, ...] = ()
    relates: bool = False


Registry = dict[tuple[str, str], Reader]
"""Readers by the module and name of their class, which need not be imported."""


def reader_of(registry: Registry, kind: type) -> Reader | None:
    """Return the reader of exactly this class; None if there is none."""
    reader = registry.get((kind.__module__, kind.__name__))
    return reader if reader is not None and is_from(kind, kind.__module__) else None


def checked_reader(registry: Registry, name: str, module: nn.Module) -> Reader:
    """Return the reader of a module, after checking that the module holds only what it handles.

    Raises:
        NotLoweredError: there is no reader, or the module holds something else.
    """
    reader = reader_of(registry, type(module))
    if reader is None:
        raise no_reader(name, module)
    check(name, module, reader.known)
    return reader


def no_reader(name: str, module: nn.Module) -> NotLoweredError:
    """Return the error for a module whose exact class has no reader."""
    kind = type(module)
    what = kind.__name__
    if not kind.__module__.startswith(("torch.", "torch_geometric.", "graphbraid.")):
        what += f" of {kind.__module__}"
    return NotLoweredError(name, f"no operation stands for {what}", "a layer of docs/lowered_models.md")


__all__ = ["Edges", "LayerCall", "Reader", "Registry", "checked_reader", "no_reader", "reader_of"]
