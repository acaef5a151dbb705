"""Sources of mini-batches, made from a loader's data: a Graph, or a PyG ``Data`` or ``HeteroData``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from graphbraid.errors import ConfigError, DataError
from graphbraid.features.rows.memory import MemoryRows
from graphbraid.features.tiers.tiered_features import TieredFeatures
from graphbraid.graph import EdgeType, Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import degrees_and_loops
from graphbraid.graph.interop.convert import as_table, features_from_torch_sparse, is_plain
from graphbraid.graph.interop.pyg import entries_of, exact_graph_from_pyg, is_held, is_hetero
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE
from graphbraid.sampling.source import ADJ_VALUES, BatchSource, TypedBatchSource, source_of_graph

if TYPE_CHECKING:
    from torch_geometric.data import Data

LoaderSource = BatchSource | TypedBatchSource
"""What batches are read from: of a graph of one type, or of one with types."""
_Key = str | EdgeType


def is_typed(data: Any) -> bool:
    """Return whether a loader's data have types."""
    return data.is_typed if isinstance(data, Graph) else is_hetero(data)


def source_of(data: Any, weight_attr: str | None, known: Graph | None = None) -> LoaderSource:
    """Return the source of a loader over ``data``, which keeps dtypes and shapes.

    Args:
        data: a Graph, a PyG Data or a HeteroData.
        weight_attr: name of the weights to draw by. If None, draws are uniform.
        known: a graph made earlier from the same edges and weights, to be reused.

    Raises:
        ConfigError: ``data`` is neither, or has no such weights.
        DataError: ids are out of range, or an attribute of nodes or edges cannot be split into batches.
    """
    if isinstance(data, Graph):
        if weight_attr is not None and (weight_attr != "edge_weight" or data.csc.weight is None):
            raise ConfigError(
                f"weight_attr={weight_attr!r}: a Graph's weights are called 'edge_weight', and "
                + ("this one has none" if data.csc.weight is None else "no other name is known")
            )
        if data.is_typed:
            return source_of_graph(data)
        if isinstance(data.x, Tensor) and not is_plain(data.x):
            return BatchSource(graph=data.replace(x=None), node_attrs={"x": data.x})
        return BatchSource(graph=data)
    if is_hetero(data):
        return _HeteroDataSorter(data, weight_attr).source()
    if not hasattr(data, "edge_index") or hasattr(data, "node_types"):
        raise ConfigError(
            f"data must be a graphbraid.Graph or a PyG Data or HeteroData; got {type(data).__name__}"
        )
    weights = weight_attr or _weights_of(data)
    graph = exact_graph_from_pyg(Graph, data, edge_weight=weights, known=known)
    return _DataSorter(data, graph).source()


def attributes_by_type(
    source: LoaderSource,
) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[EdgeType, Any]]:
    """Return what has a row for each node, by node type, and for each edge, by relation, by name."""
    if isinstance(source, TypedBatchSource):
        return source.node_attrs, source.edge_attrs
    return {ONLY_NODE_TYPE: source.node_attrs}, {ONLY_EDGE_TYPE: source.edge_attrs}


def completed(source: LoaderSource, *, src_degree: bool) -> LoaderSource:
    """Return the source with what batches of it need beside the data.

    Rows of int8 come from a source of rows, which widens them ahead of their use. With ``src_degree``, blocks
    carry the graph's in-degrees.
    """
    if isinstance(source, TypedBatchSource):
        return source
    x = source.graph.x
    if isinstance(x, ScaledFeatures) and source.rows is None:
        rows = TieredFeatures(None, MemoryRows(x), score=None, lookahead=0)
        source = dataclasses.replace(source, rows=rows)
    if not src_degree:
        return source
    degree, loop = degrees_and_loops(source.graph.csc)
    return dataclasses.replace(source, src_degree=degree, src_loop=loop)


class FollowedData:
    """Reader of a loader's data that notices when attributes were set or deleted since.

    PyG's loaders read their data for each batch. Attributes are therefore compared by identity.
    """

    def __init__(self, weight_attr: str | None) -> None:
        self._weight_attr = weight_attr
        self._contents: dict[tuple[Any, str], Any] = {}

    def read(self, data: Any, known: Graph | None = None) -> LoaderSource:
        """Return the source as :func:`source_of` does, and remember what was read."""
        source = source_of(data, self._weight_attr, known)
        self._contents = _contents_of(data)
        return source

    def changed(self, data: Any, graph: Graph) -> LoaderSource | None:
        """Return the source of the data as it is now; None if it has not changed since it was last read.

        Raises:
            ConfigError: ``data`` no longer has the types and the number of nodes of ``graph``.
        """
        now, before = _contents_of(data), self._contents
        if now.keys() == before.keys() and all(_is_same(now[key], before[key]) for key in now):
            return None
        if data.num_nodes != graph.num_nodes:
            raise ConfigError(
                f"loader.data has {data.num_nodes} nodes now, and had {graph.num_nodes} when the "
                "loader was made; make another one"
            )
        edges = [(None, name) for name in ("edge_index", "adj_t", "edge_weight", self._weight_attr or "")]
        has_same_edges = all(_is_same(now.get(key), before.get(key)) for key in edges)
        source = self.read(data, graph if has_same_edges else None)
        if _shape_of(source.graph) != _shape_of(graph):
            raise ConfigError(
                "loader.data has other types or another number of nodes than when the loader was made; make "
                "another one"
            )
        return source


def _contents_of(data: Any) -> dict[tuple[Any, str], Any]:
    """Return what data hold, by type (None where there is one) and name."""
    if isinstance(data, Graph):
        return {(None, ""): data}
    return {(store._key, name): value for store in data.stores for name, value in store.items()}


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, int) and isinstance(other, int) and one == other)


def _shape_of(graph: Graph) -> tuple[Any, ...]:
    return {name: graph.nodes_of(name).num_nodes for name in graph.node_types}, graph.edge_types


def _weights_of(data: Data) -> str | None:
    """Return the name of the weights that blocks carry, whether or not neighbours are drawn by them."""
    weight = data.get("edge_weight")
    if not isinstance(weight, Tensor) or weight.numel() != weight.shape[0]:
        return None
    return "edge_weight"


class _DataSorter:
    """A sorter of a Data's attributes into those of nodes, of edges and of the whole graph."""

    def __init__(self, data: Data, graph: Graph) -> None:
        self._data, self._graph = data, graph
        self._node_attrs: dict[str, Tensor] = {}
        self._edge_attrs: dict[str, Tensor] = {}
        self._constants: dict[str, Any] = {}
        self._by_column: set[str] = set()
        self._names: list[str] = []
        self._adj_t: Any = None

    def source(self) -> BatchSource:
        for name, value in self._data.to_dict().items():
            if name.startswith("_"):
                continue
            if name == "adj_t":
                self._read_adj_t(value)
            elif not (name in ("edge_index", "num_nodes") or self._is_held(name)):
                self._read(name, value)
            self._names.append(name)
        edges = [] if "edge_index" in self._names or self._adj_t is not None else ["edge_index"]
        return BatchSource(
            graph=self._graph,
            node_attrs=self._node_attrs,
            edge_attrs=self._edge_attrs,
            constants=self._constants,
            by_column=frozenset(self._by_column),
            names=(*edges, *self._names),
            adj_t=self._adj_t,
            template=self._data,
        )

    def _is_held(self, name: str) -> bool:
        return (name == "x" and self._graph.x is not None) or (name == "y" and self._graph.y is not None)

    def _read(self, name: str, value: Any) -> None:
        of_edges = self._data.is_edge_attr(name)
        if not of_edges and not self._data.is_node_attr(name):
            self._constants[name] = value
            return
        if not isinstance(value, Tensor | np.ndarray):
            raise DataError(
                f"data.{name} is a {type(value).__name__} by {'edge' if of_edges else 'node'}, and batches "
                "take rows of tensors only; make it a tensor or an array"
            )
        table = as_table(value, f"data.{name}")
        if self._data.__cat_dim__(name, value) != 0:
            self._by_column.add(name)
            table = table.movedim(-1, 0)
        (self._edge_attrs if of_edges else self._node_attrs)[name] = table

    def _read_adj_t(self, adj_t: Any) -> None:
        self._adj_t = adj_t
        values = entries_of(adj_t, "adj_t")[2] if isinstance(adj_t, Tensor) else adj_t.coo()[2]
        if values is not None:
            self._edge_attrs[ADJ_VALUES] = values


class _HeteroDataSorter:
    """A sorter of a HeteroData's attributes into those of nodes, of edges and of the whole."""

    def __init__(self, data: Any, weight_attr: str | None) -> None:
        self._data, self._weight_attr = data, weight_attr
        self._by_column: set[tuple[_Key, str]] = set()

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

    def _attrs(self, store: Any, key: _Key) -> dict[str, Tensor | SparseFeatures]:
        is_own = store.is_node_attr if isinstance(key, str) else store.is_edge_attr
        own = {}
        for name, value in store.items():
            if name in ("num_nodes", "edge_index") or not is_own(name):
                continue
            if not isinstance(value, Tensor | np.ndarray):
                raise DataError(
                    f"data[{key!r}].{name} is a {type(value).__name__} with an entry per row, and "
                    "batches take rows of tensors only; make it a tensor or an array"
                )
            own[name] = self._table(store, key, name, value)
        return own

    def _table(self, store: Any, key: _Key, name: str, value: Any) -> Tensor | SparseFeatures:
        is_sparse = isinstance(value, Tensor) and value.layout != torch.strided
        if is_sparse and name == "x" and isinstance(key, str) and is_held(value, value.shape[0]):
            return features_from_torch_sparse(value)
        table = as_table(value, f"data[{key!r}].{name}")
        if store._parent().__cat_dim__(name, value, store) != 0:
            self._by_column.add((key, name))
            table = table.movedim(-1, 0)
        return table
