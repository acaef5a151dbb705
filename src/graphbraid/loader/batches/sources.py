"""Batch sources made from a loader's data: a Graph, or a PyG Data with all its attributes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from graphbraid.errors import ConfigError, DataError
from graphbraid.features.rows.memory import MemoryRows
from graphbraid.features.tiers.tiered_features import TieredFeatures
from graphbraid.graph import Graph, ScaledFeatures
from graphbraid.graph.degrees import degrees_and_loops
from graphbraid.graph.interop.convert import as_table, is_plain
from graphbraid.graph.interop.pyg import exact_graph_from_pyg
from graphbraid.graph.interop.pyg_parts import entries_of
from graphbraid.sampling.source import ADJ_VALUES, BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import Data


def source_of(data: Graph | Data, weight_attr: str | None, known: Graph | None = None) -> BatchSource:
    """Return the source of a loader over ``data``, which keeps dtypes and shapes.

    Args:
        data: a Graph or a homogeneous PyG Data.
        weight_attr: name of the weights to draw by. If None, draws are uniform.
        known: a graph made earlier from the same edges and weights, to be reused.

    Raises:
        ConfigError: ``data`` is neither, or has no such weights.
        DataError: an attribute of nodes or edges cannot be split into batches.
    """
    if isinstance(data, Graph):
        if weight_attr is not None and (weight_attr != "edge_weight" or data.csc.weight is None):
            raise ConfigError(
                f"weight_attr={weight_attr!r}: a Graph's weights are called 'edge_weight', and "
                + ("this one has none" if data.csc.weight is None else "no other name is known")
            )
        data.check_one_type("this loader")
        if isinstance(data.x, Tensor) and not is_plain(data.x):
            return BatchSource(graph=data.replace(x=None), node_attrs={"x": data.x})
        return BatchSource(graph=data)
    if not hasattr(data, "edge_index") or hasattr(data, "node_types"):
        raise ConfigError(
            f"data must be a graphbraid.Graph or a homogeneous PyG Data; got {type(data).__name__}"
        )
    weights = weight_attr or _weights_of(data)
    graph = exact_graph_from_pyg(Graph, data, edge_weight=weights, known=known)
    return _DataSorter(data, graph).source()


def completed(source: BatchSource, *, src_degree: bool) -> BatchSource:
    """Return the source with what batches of it need beside the data.

    Rows of int8 come from a source of rows, which widens them ahead of their use; with ``src_degree``, blocks
    carry the graph's in-degrees.
    """
    x = source.graph.x
    if isinstance(x, ScaledFeatures) and source.rows is None:
        rows = TieredFeatures(None, MemoryRows(x), score=None, lookahead=0)
        source = dataclasses.replace(source, rows=rows)
    if not src_degree:
        return source
    degree, loop = degrees_and_loops(source.graph.csc)
    return dataclasses.replace(source, src_degree=degree, src_loop=loop)


class FollowedData:
    """A reader of a loader's data that notices when attributes were set or deleted since."""

    def __init__(self) -> None:
        self._contents: _Snapshot | None = None

    def read(self, data: Graph | Data, weight_attr: str | None, known: Graph | None = None) -> BatchSource:
        """Return the source as :func:`source_of` does, and remember what was read."""
        source = source_of(data, weight_attr, known)
        self._contents = _Snapshot(data, weight_attr)
        return source

    def changed(self, data: Graph | Data, weight_attr: str | None, graph: Graph) -> BatchSource | None:
        """Return the source of the data as it is now, or None if it has not changed since it was last read.

        Raises:
            ConfigError: ``data`` no longer has the same number of nodes as ``graph``.
        """
        now = _Snapshot(data, weight_attr)
        if self._contents is None or now.same(self._contents):
            return None
        if data.num_nodes != graph.num_nodes:
            raise ConfigError(
                f"loader.data has {data.num_nodes} nodes now, and had {graph.num_nodes} when the "
                "loader was made; make another one"
            )
        return self.read(data, weight_attr, graph if now.same_topology(self._contents) else None)


class _Snapshot:
    """The contents of a Data at one time, compared by identity; PyG's loaders read theirs for each batch."""

    def __init__(self, data: Graph | Data, weight_attr: str | None) -> None:
        self._values = {"": data} if isinstance(data, Graph) else dict(data.to_dict())
        self._topology = ("", "edge_index", "adj_t", "edge_weight", weight_attr)

    def same(self, other: _Snapshot) -> bool:
        """Return whether both hold the same objects under the same names."""
        names = self._values.keys()
        return names == other._values.keys() and all(self._is_same(other, name) for name in names)

    def same_topology(self, other: _Snapshot) -> bool:
        """Return whether both hold the same edges and weights."""
        return all(self._is_same(other, name) for name in self._topology if name is not None)

    def _is_same(self, other: _Snapshot, name: str) -> bool:
        one, two = self._values.get(name), other._values.get(name)
        return one is two or (isinstance(one, int) and isinstance(two, int) and one == two)


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
                f"data.{name} is a {type(value).__name__} by {'edge' if of_edges else 'node'}, of which no "
                "batch can take rows; make it a tensor or an array"
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
