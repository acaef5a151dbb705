"""Source: the current state of the graph that a model runs on, and of the user's data behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from graphbraid.arguments import shown
from graphbraid.errors import DataError, GraphbraidError
from graphbraid.fullgraph.model.as_written import AsWritten, WholeValues
from graphbraid.fullgraph.model.relational import (
    graph_by_relation,
    has_relational_layer,
    relations_with_edges,
)
from graphbraid.fullgraph.model.watch import GraphWatch
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.program.calling import Given, X, calling_of, of_data
from graphbraid.fullgraph.program.read import read_model
from graphbraid.fullgraph.program.refusal import NotLoweredError, explained, failed
from graphbraid.graph import Graph
from graphbraid.graph.interop.edge_list import as_edge_attr
from graphbraid.graph.interop.pyg import graph_from_pyg
from graphbraid.graph.interop.pyg_parts import edge_features_of
from graphbraid.graph.types import Relation

READ = ("x", "edge_index", "adj_t", "edge_weight", "edge_attr", "edge_type")
"""Attributes of PyG's data from which a graph is made."""


def graph_of_data(data: Any) -> Graph:
    """Make a graph of PyG's data without edge features; a :class:`Source` adds them once they are read."""
    return graph_from_pyg(Graph, data, edge_features=False)


@runtime_checkable
class AttributeData(Protocol):
    """The part of the interface of PyG's data that is used: attributes by name."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return an attribute, or ``default`` if there is none."""
        ...

    def keys(self) -> Iterable[str]:
        """Return the names of the attributes."""
        ...


class Source:
    """A graph and, if it was made of PyG's data, that data.

    Args:
        graph: the graph that programs run on.
        data: the user's data. If None, there is only the graph.
        why: why programs cannot run on the data in its current state. If None, they can.

    Raises:
        DataError: ``data`` is not PyG data.
    """

    def __init__(
        self, graph: Graph, data: AttributeData | None = None, why: NotLoweredError | None = None
    ) -> None:
        if data is not None and not isinstance(data, AttributeData):
            raise DataError(f"data must be the PyG Data that the graph was made of; got {shown(data)}")
        self.graph, self._data, self._why = graph, data, why
        """The graph gets its edge features when the first program that reads them is read."""
        self._held = {} if data is None else {key: data.get(key) for key in READ}
        self.watch = GraphWatch(graph, self._held.values())
        self._by_relation: Graph | None = None

    @property
    def nodes(self) -> Graph:
        """The nodes that outputs are for, with their splits: those of the graph."""
        return self.graph

    @property
    def store(self) -> Any:
        """The user's data of these nodes; None if there is only a graph."""
        return self._data

    def has_changed(self) -> bool:
        """Return whether a tensor was written to or, in the user's data, replaced."""
        if self.watch.has_changed():
            return True
        data = self._data
        return data is not None and any(data.get(key) is not held for key, held in self._held.items())

    def anew(self) -> Source:
        """Return a source of the current state of the graph and the user's data."""
        if self._data is None:
            return Source(self.graph)
        try:
            return Source(graph_of_data(self._data), self._data)
        except GraphbraidError as error:  # the model may not use the faulty attribute
            return Source(self.graph, self._data, NotLoweredError("data", str(error), "data that agrees"))

    def given(self) -> Given:
        """Describe the arguments that are available to call a model with."""
        given = Given.of(self.graph)
        if self._data is None:
            return given
        return replace(
            of_data(given, self._data),
            edge_channels=self._edge_channels(),
            classes={key: type(held) for key, held in self._held.items() if held is not None},
        )

    def read(self, model: nn.Module) -> Program:
        """Read a model in its current mode into a program.

        Raises:
            NotLoweredError: part of the model cannot be read; the message names it.
            DataError: the model takes features and the graph has none.
        """
        given = self.given()
        calling = calling_of(model, given)
        if self._data is not None and has_relational_layer(model):
            given = replace(given, relations=self._relations())
        x = self.graph.x
        if x is None:
            if calling.takes(X):
                raise DataError(
                    "the model needs node features, but graph.x is None; give some with replace(x=...)"
                )
            raise NotLoweredError("forward", "it takes no features", "a forward(x, edge_index)")
        if self._why is not None:
            raise self._why
        if self.watch.wants_gradients():
            raise NotLoweredError(
                "graph",
                "its features, edge features or edge weights require gradients",
                "tensors that do not",
            )
        try:
            program = read_model(model, int(x.shape[1]), given, calling)
            if program.reads_edges:
                self._bring_edge_features()
            return program
        except (NotLoweredError, GraphbraidError):
            raise
        except Exception as error:  # reading must never make a model fail that runs as written
            raise failed(model, error) from error

    def graph_for(self, program: Program) -> Graph:
        """Return the graph that a program runs on, with its relations apart if the program reads them."""
        if not program.parts:
            return self.graph
        assert self._by_relation is not None
        return self._by_relation

    def _relations(self) -> tuple[Relation, ...]:
        """Return the relations that the user's ``edge_type`` divides the edges among; empty if none."""
        if self._by_relation is None:
            self._by_relation = graph_by_relation(self._data, self.graph)
        return () if self._by_relation is None else relations_with_edges(self._by_relation)

    def _edge_channels(self) -> int | None:
        """Return the number of edge features; None unless they are a float matrix with one row per edge."""
        attr = edge_features_of(self._data)
        return None if attr is None or attr.shape[0] != self.graph.num_edges else int(attr.shape[1])

    def _bring_edge_features(self) -> None:
        """Give the graph the user's edge features in its order; copied only if that differs from theirs."""
        if self.graph.edge_attr is not None:
            return
        attr, ids = as_edge_attr(edge_features_of(self._data), self.graph.num_edges), self.graph.edge_id
        assert attr is not None
        ordered = attr if ids is None else attr.index_select(0, ids)
        self.graph = self.graph.replace(edge_attr=ordered)

    def as_written(self, model: nn.Module, place: torch.device) -> AsWritten:
        """Return a runner of the model as it is written."""
        values = WholeValues(model, self.graph, place)
        return AsWritten(model, calling_of(model, self.given()), values, self._data)

    def explained(self, _: nn.Module, why: NotLoweredError) -> str:
        """Return the text about a model that runs as it is written."""
        return explained(why)


__all__ = ["READ", "Source", "graph_of_data"]
