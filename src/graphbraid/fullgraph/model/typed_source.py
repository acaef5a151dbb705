"""TypedSource: the current state of a graph with types that a model runs on, and of the data behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError, GraphbraidError
from graphbraid.fullgraph.model.fused_layers import explained_fused
from graphbraid.fullgraph.model.source import READ, Source, graph_of_data
from graphbraid.fullgraph.model.typed_as_written import TypedAsWritten, TypedWholeValues
from graphbraid.fullgraph.model.watch import GraphWatch
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.program.calling import Calling, Given, calling_of, of_data
from graphbraid.fullgraph.program.read_typed import read_typed
from graphbraid.fullgraph.program.refusal import NotLoweredError, explained, failed
from graphbraid.graph import Graph, NodeSet
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures


class TypedSource:
    """A graph with types and, if it was made of PyG's ``HeteroData``, these.

    Args:
        graph: the graph that programs run on.
        node_type: the type whose outputs are wanted.
        data: the user's data. If None, there is only the graph.
        why: why programs cannot run on the data in its current state. If None, they can.
    """

    def __init__(
        self, graph: Graph, node_type: str, data: Any = None, why: NotLoweredError | None = None
    ) -> None:
        self.graph, self.node_type, self._data, self._why = graph, node_type, data, why
        self._held = list(_held(data))
        self.watch = GraphWatch(graph, [*_tensors(graph), *(value for *_, value in self._held)])

    @property
    def nodes(self) -> NodeSet:
        """The nodes that outputs are for, with their splits: those of one type."""
        return self.graph.nodes_of(self.node_type)

    @property
    def store(self) -> Any:
        """The user's data of these nodes; None if there is only a graph."""
        return None if self._data is None else self._data[self.node_type]

    def has_changed(self) -> bool:
        """Return whether a tensor was written to or, in the user's data, replaced."""
        return self.watch.has_changed() or any(
            store.get(key) is not value for store, key, value in self._held
        )

    def anew(self) -> TypedSource:
        """Return a source of the current state of the graph and the user's data."""
        if self._data is None:
            return TypedSource(self.graph, self.node_type)
        try:
            return TypedSource(graph_of_data(self._data), self.node_type, self._data)
        except GraphbraidError as error:  # the model may not use the faulty attribute
            why = NotLoweredError("data", str(error), "data that agrees")
            return TypedSource(self.graph, self.node_type, self._data, why)

    def graph_for(self, _: Program) -> Graph:
        """Return the graph that a program runs on."""
        return self.graph

    def read(self, model: nn.Module) -> Program:
        """Read a model in its current mode into a program.

        Raises:
            NotLoweredError: part of the model cannot be read; the message names it.
        """
        if self._why is not None:
            raise self._why
        if self.watch.wants_gradients():
            raise NotLoweredError("graph", "its features or edges require gradients", "tensors that do not")
        assert self.graph.types is not None
        try:
            return read_typed(model, self._calling(model), self.graph.types, self.node_type)
        except (NotLoweredError, GraphbraidError):
            raise
        except Exception as error:  # reading must never make a model fail that runs as written
            raise failed(model, error) from error

    def as_written(self, model: nn.Module, place: torch.device) -> TypedAsWritten:
        """Return a runner of the model as it is written."""
        values = TypedWholeValues(model, self.graph, place)
        return TypedAsWritten(model, self._calling(model), values, self.node_type, self._data)

    def _calling(self, model: nn.Module) -> Calling:
        given = Given.of(self.graph)
        return calling_of(model, given if self._data is None else of_data(given, self._data))

    def explained(self, model: nn.Module, why: NotLoweredError) -> str:
        """Return the text about a model that runs as it is written, with its layers that run fused."""
        return "\n".join(filter(None, (explained(why), explained_fused(model))))


def source_of(
    model: nn.Module, graph: Graph, data: Any = None, node_type: str | None = None
) -> Source | TypedSource:
    """Return the source of a model's graph.

    Raises:
        ConfigError: ``node_type`` does not go with the graph, or is needed and missing.
    """
    if graph.is_typed:
        return TypedSource(graph, wanted_type(model, graph, node_type), data)
    if node_type is not None:
        raise ConfigError(
            f"node_type={node_type!r} chooses among node types, and the graph has one; leave it out."
        )
    return Source(graph, data)


def wanted_type(model: nn.Module, graph: Graph, node_type: str | None) -> str:
    """Return the type whose outputs are wanted: the one given, the model's, or the only one with labels.

    Raises:
        ConfigError: none of these says, or the graph has no such type.
    """
    of_model = getattr(model, "node_type", None)
    labelled = [one for one in graph.node_types if graph.nodes_of(one).y is not None]
    for given in (node_type, of_model, *(labelled if len(labelled) == 1 else ())):
        if isinstance(given, str):
            try:
                graph.nodes_of(given)
            except DataError as error:
                raise ConfigError(str(error)) from None
            return given
    if len(graph.node_types) == 1:
        return graph.node_types[0]
    raise ConfigError(
        f"the graph has the node types {', '.join(graph.node_types)}; say whose outputs are wanted, with "
        "node_type."
    )


def _held(data: Any) -> Iterator[tuple[Any, str, Any]]:
    for store in () if data is None else data.stores:
        if isinstance(store, Mapping) or hasattr(store, "get"):
            yield from ((store, key, store.get(key)) for key in READ)


def _tensors(graph: Graph) -> Iterator[Tensor]:
    for name in graph.node_types:
        x = graph.nodes_of(name).x
        if isinstance(x, SparseFeatures):
            yield from (x.values, x.indices, x.indptr)
        elif isinstance(x, ScaledFeatures):
            yield from (x.values, x.scale)
        elif x is not None:
            yield x


__all__ = ["TypedSource", "source_of", "wanted_type"]
