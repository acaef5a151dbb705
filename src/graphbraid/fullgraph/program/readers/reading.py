"""What a reader is: of a graph layer, or of a module that maps rows to rows."""

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


@dataclass(frozen=True)
class Edges:
    """The edges that a layer is called with."""

    weighted: bool = False
    """Whether weights reach the layer."""
    sparse: bool = False
    """Whether they are a sparse matrix, whose own values are the weights."""
    channels: int | None = None
    """Columns of the edge features that reach the layer; None: none do."""
    graph: Graph | None = field(default=None, compare=False)
    """The graph whose edges they are, for what cannot be told without a look at them."""


@dataclass(frozen=True)
class LayerCall:
    """One call of a module.

    Attributes:
        writer: collects the operations.
        name: of the module, in the model.
        layer: the module, checked by its reader's :class:`Known`.
        x: the value of the rows that it is given.
        edges: of a graph layer.
        given: its other arguments, by name, that are not None; a matrix of node rows is a :class:`NodeRows`.
        several: the values, where its first argument is a list of matrices.
    """

    writer: Writer
    name: str
    layer: Any
    x: str
    edges: Edges = field(default_factory=Edges)
    given: Mapping[str, Any] = field(default_factory=dict)
    several: tuple[str, ...] = ()

    def rows(self, key: str) -> str:
        """The value of another argument that is a matrix of node rows.

        Raises:
            NotLoweredError: it is something else.
        """
        given = self.given.get(key)
        if isinstance(given, NodeRows):
            return given.value
        raise self.refuse(f"with a {key!r} that is no matrix of node rows has no lowered form")

    def refuse(self, reason: str, needed: str = "") -> NotLoweredError:
        """The error to raise where this call has no lowered form; ``reason`` follows the class's name."""
        return NotLoweredError(self.name, f"{type(self.layer).__name__} {reason}", needed)


@dataclass(frozen=True)
class Reader:
    """Reads the instances of one class.

    Attributes:
        read: appends the operations; returns the value of the result.
        known: what an instance may hold.
        takes: names of ``forward``'s parameters in order; the first is the rows; of a graph layer
            ``edge_index`` or ``csc`` is its edges. Others must be None, or are given to ``read`` if ``gives``
            names them.
        gives: parameters that ``read`` handles itself.
    """

    read: Callable[[LayerCall], str]
    known: Known
    takes: tuple[str, ...] = ("x",)
    gives: tuple[str, ...] = ()


Registry = dict[tuple[str, str], Reader]
"""Readers by the module and the name of their class, which need not be imported."""


def reader_of(registry: Registry, kind: type) -> Reader | None:
    """The reader of exactly this class."""
    reader = registry.get((kind.__module__, kind.__name__))
    return reader if reader is not None and is_from(kind, kind.__module__) else None


def checked_reader(registry: Registry, name: str, module: nn.Module) -> Reader:
    """The reader of a module that was found to hold nothing else than it handles.

    Raises:
        NotLoweredError: there is none, or the module holds something else.
    """
    reader = reader_of(registry, type(module))
    if reader is None:
        raise no_reader(name, module)
    check(name, module, reader.known)
    return reader


def no_reader(name: str, module: nn.Module) -> NotLoweredError:
    """The error for a module whose class no reader knows; a subclass of one may do anything."""
    kind = type(module)
    what = kind.__name__
    if not kind.__module__.startswith(("torch.", "torch_geometric.", "graphbraid.")):
        what += f" of {kind.__module__}"
    return NotLoweredError(name, f"no operation stands for {what}", "a layer of docs/lowered_models.md")


__all__ = ["Edges", "LayerCall", "Reader", "Registry", "checked_reader", "no_reader", "reader_of"]
