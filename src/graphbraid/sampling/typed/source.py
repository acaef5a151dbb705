"""TypedBatchSource: the graph and attributes that mini-batches of a graph with types are read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from graphbraid.graph import EdgeType, Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.interop.convert import is_plain
from graphbraid.ops.gather import gather_features, gather_rows
from graphbraid.sampling.rows.by_id import take_rows


@dataclass(frozen=True, kw_only=True, eq=False, slots=True, weakref_slot=True)
class TypedBatchSource:
    """The graph and attributes that every batch of a loader is read from."""

    graph: Graph
    """A graph with types, which says what edges there are."""
    node_attrs: Mapping[str, Mapping[str, Tensor | SparseFeatures | ScaledFeatures]]
    """What has one row per node, such as ``x``, by node type and name."""
    edge_attrs: Mapping[EdgeType, Mapping[str, Tensor]]
    """What has one row per edge, in the order of the relation's list, by relation and name."""
    by_column: frozenset[tuple[str | EdgeType, str]] = field(default_factory=frozenset)
    """Attributes whose last dimension in a batch is the nodes or edges."""
    template: Any = None
    """PyG ``HeteroData`` that batches are copies of, but for these attributes; None to make one."""

    def gathered(self, node_type: str) -> Tensor | None:
        """Return the features of a type if threads can gather their rows: a contiguous matrix on the CPU."""
        x = self.node_attrs[node_type].get("x")
        if not isinstance(x, Tensor) or not is_plain(x) or (node_type, "x") in self.by_column:
            return None
        return x if x.ndim == 2 and x.is_contiguous() and x.device.type == "cpu" else None

    def node_rows(self, node_type: str, name: str, ids: Tensor) -> Tensor:
        """Return the rows of an attribute for nodes: of sparse features dense, of int8 as float32."""
        table = self.node_attrs[node_type][name]
        if isinstance(table, SparseFeatures):
            return table.rows(ids).to_dense()
        if isinstance(table, ScaledFeatures):
            return gather_features(table, ids, trusted=True)
        if name == "x" and table.ndim == 2 and self.gathered(node_type) is not None:
            return gather_rows(table, ids, trusted=True)
        return self._turned(take_rows(table, ids), node_type, name)

    def edge_rows(self, edge_type: EdgeType, name: str, positions: Tensor) -> Tensor:
        """Return the rows of an edge attribute for edges of a relation at ``positions`` in the graph."""
        attrs = self.edge_attrs[edge_type]
        if name not in attrs and name == self.graph.edges_of(edge_type).weight_name:
            assert self.graph.csc.weight is not None
            return take_rows(self.graph.csc.weight, positions)
        return self._turned(take_rows(attrs[name], self.edge_ids(positions)), edge_type, name)

    def edge_names(self, edge_type: EdgeType) -> list[str]:
        """Return the names of a relation's attributes."""
        names = list(self.edge_attrs[edge_type])
        edges = self.graph.edges_of(edge_type)
        if self.template is None and edges.weighted and edges.weight_name not in names:
            names.append(edges.weight_name)
        return names

    def edge_ids(self, positions: Tensor) -> Tensor:
        """Return where edges at ``positions`` in the graph stand in the lists of their relations."""
        return positions if self.graph.edge_id is None else take_rows(self.graph.edge_id, positions)

    def _turned(self, rows: Tensor, key: str | EdgeType, name: str) -> Tensor:
        return rows.movedim(0, -1) if (key, name) in self.by_column else rows


def source_of_graph(graph: Graph) -> TypedBatchSource:
    """Return the source of a graph's own features, labels, times and weights."""
    nodes, edges = {}, {}
    for node_type in graph.node_types:
        one = graph.nodes_of(node_type)
        held = {"x": one.x, "y": one.y, "time": one.time}
        nodes[node_type] = {name: value for name, value in held.items() if value is not None}
    for edge_type in graph.edge_types:
        of_edges = graph.edges_of(edge_type)
        named = {"edge_attr": of_edges.edge_attr, "time": of_edges.time}
        edges[edge_type] = {name: value for name, value in named.items() if value is not None}
    return TypedBatchSource(graph=graph, node_attrs=nodes, edge_attrs=edges)
