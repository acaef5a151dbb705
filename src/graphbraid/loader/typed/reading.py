"""Sources made from a loader's data with types: a Graph, or a PyG HeteroData with all its attributes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.interop.convert import as_table, features_from_torch_sparse
from graphbraid.graph.interop.pyg import is_held
from graphbraid.graph.interop.pyg_parts import is_hetero
from graphbraid.graph.types import EdgeType
from graphbraid.sampling.typed.source import TypedBatchSource, source_of_graph

StoreKey = str | EdgeType


def is_typed(data: Any) -> bool:
    """Return whether a loader's data have types."""
    return data.is_typed if isinstance(data, Graph) else is_hetero(data)


def typed_source(data: Any, weight_attr: str | None) -> TypedBatchSource:
    """Return the source of a loader over ``data``, which keeps dtypes and shapes.

    Args:
        data: a Graph with types or a PyG HeteroData.
        weight_attr: name of the weights to draw by. If None, draws are uniform.

    Raises:
        ConfigError: ``data`` have no such weights.
        DataError: ids are out of range, or an attribute of nodes or edges cannot be split into batches.
    """
    if not isinstance(data, Graph):
        return _HeteroDataSorter(data, weight_attr).source()
    if weight_attr is not None and (weight_attr != "edge_weight" or data.csc.weight is None):
        raise ConfigError(
            f"weight_attr={weight_attr!r}: a Graph's weights are called 'edge_weight', and "
            + ("this one has none" if data.csc.weight is None else "no other name is known")
        )
    return source_of_graph(data)


def contents_of(data: Any) -> dict[tuple[Any, str], Any]:
    """Return what data hold, by type and name, to see by identity whether something was set since."""
    if isinstance(data, Graph):
        return {("", ""): data}
    return {(store._key, name): value for store in data.stores for name, value in store.items()}


def is_same(now: dict[tuple[Any, str], Any], before: dict[tuple[Any, str], Any]) -> bool:
    """Return whether two :func:`contents_of` are of the same objects; numbers are compared by value."""
    if now.keys() != before.keys():
        return False
    return all(
        one is before[key] or (isinstance(one, int) and one == before[key]) for key, one in now.items()
    )


class _HeteroDataSorter:
    """A sorter of a HeteroData's attributes into those of nodes, of edges and of the whole."""

    def __init__(self, data: Any, weight_attr: str | None) -> None:
        self._data, self._weight_attr = data, weight_attr
        self._by_column: set[tuple[StoreKey, str]] = set()

    def source(self) -> TypedBatchSource:
        data = self._data
        nodes = {node_type: self._attrs(data[node_type], node_type) for node_type in data.node_types}
        edges = {edge_type: self._attrs(data[edge_type], edge_type) for edge_type in data.edge_types}
        return TypedBatchSource(
            graph=self._graph(),
            node_attrs=nodes,
            edge_attrs=cast("dict[EdgeType, dict[str, Tensor]]", edges),  # sparse features are of nodes
            by_column=frozenset(self._by_column),
            template=data,
        )

    def _graph(self) -> Graph:
        data, ends, weights = self._data, {}, {}
        for edge_type in data.edge_types:
            store = data[edge_type]
            if store.get("edge_index") is None:
                raise DataError(
                    f"data[{edge_type!r}] has no edge_index; a relation stored as adj_t needs one: "
                    "T.ToSparseTensor() is for after the loader"
                )
            ends[edge_type] = store["edge_index"]
            if self._weight_attr is not None and self._weight_attr in store:
                weights[edge_type] = store[self._weight_attr]
        if self._weight_attr is not None and not weights:
            raise ConfigError(f"weight_attr={self._weight_attr!r}: no relation of the data has it")
        counts = {node_type: data[node_type].num_nodes for node_type in data.node_types}
        for node_type, count in counts.items():
            if count is None:
                raise DataError(f"the number of nodes of type {node_type!r} is not known; set its num_nodes")
        return Graph.from_relations(ends, counts, edge_weight=weights)

    def _attrs(self, store: Any, key: StoreKey) -> dict[str, Tensor | SparseFeatures]:
        is_own = store.is_node_attr if isinstance(key, str) else store.is_edge_attr
        own = {}
        for name, value in store.items():
            if name in ("num_nodes", "edge_index") or not is_own(name):
                continue
            if not isinstance(value, Tensor | np.ndarray):
                raise DataError(
                    f"data[{key!r}].{name} is a {type(value).__name__} with an entry per row, of which "
                    "no batch can take rows; make it a tensor or an array"
                )
            own[name] = self._table(store, key, name, value)
        return own

    def _table(self, store: Any, key: StoreKey, name: str, value: Any) -> Tensor | SparseFeatures:
        is_sparse = isinstance(value, Tensor) and value.layout != torch.strided
        if is_sparse and name == "x" and isinstance(key, str) and is_held(value, value.shape[0]):
            return features_from_torch_sparse(value)
        table = as_table(value, f"data[{key!r}].{name}")
        if store._parent().__cat_dim__(name, value, store) != 0:
            self._by_column.add((key, name))
            table = table.movedim(-1, 0)
        return table
