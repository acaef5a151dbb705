"""Source: the graph that a model runs on, or the user's own data that it was made of, as both are now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from graphbraid.arguments import shown
from graphbraid.errors import DataError, GraphbraidError
from graphbraid.fullgraph.model.as_written import AsWritten
from graphbraid.fullgraph.model.watch import GraphWatch
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.program.calling import Given, X, calling_of
from graphbraid.fullgraph.program.read import read_model
from graphbraid.fullgraph.program.refusal import NotLoweredError, failed
from graphbraid.graph import Graph
from graphbraid.graph.interop.edge_list import as_edge_attr
from graphbraid.graph.interop.pyg import edge_features_of, graph_from_pyg

_READ = ("x", "edge_index", "adj_t", "edge_weight", "edge_attr")
"""What a graph is made of, of PyG's data."""


def graph_of_data(data: Any) -> Graph:
    """The graph of PyG's data without edge features, which take a copy: those a :class:`Source` brings."""
    return graph_from_pyg(data, edge_features=False)


@runtime_checkable
class AttributeData(Protocol):
    """PyG's data, of which only its attributes by name are asked."""

    def get(self, key: str, default: Any = None) -> Any:
        """An attribute; ``default`` where there is none."""
        ...

    def keys(self) -> Iterable[str]:
        """The names of the attributes."""
        ...


class Source:
    """A graph and, where it was made of PyG's data, that.

    Args:
        graph: what programs run on.
        data: the user's own; None: there is only the graph.
        why: what keeps programs from running on the data as it is.

    Raises:
        DataError: ``data`` is no PyG data.
    """

    def __init__(
        self, graph: Graph, data: AttributeData | None = None, why: NotLoweredError | None = None
    ) -> None:
        if data is not None and not isinstance(data, AttributeData):
            raise DataError(f"data must be PyG's Data that the graph was made of; got {shown(data)}")
        self.graph, self._data, self._why = graph, data, why
        """Its graph has edge features from the first program on that reads them."""
        self._held = {} if data is None else {key: data.get(key) for key in _READ}
        self._watch = GraphWatch(graph, self._held.values())

    def has_changed(self) -> bool:
        """Whether a tensor was written to or, in the user's data, replaced."""
        if self._watch.has_changed():
            return True
        data = self._data
        return data is not None and any(data.get(key) is not held for key, held in self._held.items())

    def anew(self) -> Source:
        """The source as it is now."""
        if self._data is None:
            return Source(self.graph)
        try:
            return Source(graph_of_data(self._data), self._data)
        except GraphbraidError as error:  # the model may not take what is wrong
            return Source(self.graph, self._data, NotLoweredError("data", str(error), "data that agrees"))

    def given(self) -> Given:
        """What there is to call a model with."""
        names = frozenset() if self._data is None else frozenset(map(str, self._data.keys()))
        are_attr = "edge_attr" in names and "edge_weight" not in names
        return Given(
            weighted=self.graph.csc.weight is not None,
            weights_are_attr=are_attr or self._data is None or "edge_attr" not in names,
            edge_channels=self._edge_channels(),
            attributes=names,
            graph=self.graph,
            data_class=None if self._data is None else type(self._data),
        )

    def read(self, model: nn.Module) -> Program:
        """The program of a model in the mode it is in.

        Raises:
            NotLoweredError: names what cannot be read.
            DataError: the model takes features and there are none.
        """
        given = self.given()
        calling = calling_of(model, given)
        x = self.graph.x
        if x is None:
            if calling.takes(X):
                raise DataError(
                    "the model needs node features, but graph.x is None; give some with replace(x=...)"
                )
            raise NotLoweredError("forward", "it takes no features", "a forward(x, edge_index)")
        if self._why is not None:
            raise self._why
        if self._watch.wants_gradients():
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
        except Exception as error:  # a model that runs must not fail for being read
            raise failed(model, error) from error

    def _edge_channels(self) -> int | None:
        """Columns of the edges' features; None where they are no matrix of floats with a row per edge."""
        attr = self.graph.edge_attr if self._data is None else edge_features_of(self._data)
        return None if attr is None or attr.shape[0] != self.graph.num_edges else int(attr.shape[1])

    def _bring_edge_features(self) -> None:
        """Have the user's edge features in the graph's order: shared where that is theirs, else a copy."""
        if self.graph.edge_attr is not None:
            return
        attr, ids = as_edge_attr(edge_features_of(self._data), self.graph.num_edges), self.graph.edge_id
        assert attr is not None
        ordered = attr if ids is None else attr.index_select(0, ids)
        self.graph = self.graph.replace(edge_attr=ordered)

    def as_written(self, model: nn.Module, place: torch.device) -> AsWritten:
        """Runs the model as it is written."""
        return AsWritten(model, self.graph, calling_of(model, self.given()), place, self._data)


__all__ = ["Source", "graph_of_data"]
