"""TypedViews: what a graph says of its node types and relations; a graph of one type has one of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, cast

from torch import Tensor

from graphbraid.errors import DataError, did_you_mean
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE, EdgeSet, EdgeType, NodeSet, Types, csc_of

if TYPE_CHECKING:
    from graphbraid.graph.graph import Graph


class TypedViews:
    """The part of :class:`graphbraid.Graph` about types."""

    __slots__ = ()

    @property
    def node_types(self) -> tuple[str, ...]:
        """Names of the node types; a graph of one type has ``("node",)``."""
        types = cast("Graph", self).types
        return (ONLY_NODE_TYPE,) if types is None else tuple(types.nodes)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """The relations: type of the sources, name, type of the destinations."""
        types = cast("Graph", self).types
        return (ONLY_EDGE_TYPE,) if types is None else tuple(types.edges)

    @property
    def is_typed(self) -> bool:
        """Whether the graph was made with types, of which it may have several."""
        return cast("Graph", self).types is not None

    @property
    def all_types(self) -> Types:
        """The types and relations; a graph without any is one type and one relation over the same arrays."""
        graph = cast("Graph", self)
        if graph.types is not None:
            return graph.types
        return Types(
            nodes={ONLY_NODE_TYPE: self.nodes_of(ONLY_NODE_TYPE)},
            edges={ONLY_EDGE_TYPE: self.edges_of(ONLY_EDGE_TYPE)},
            rows=graph.csc,
        )

    def first_id_of(self, node_type: str) -> int:
        """Return the id in the whole graph of the first node of a type."""
        return self.all_types.first_ids[self.node_types.index(node_type)]

    def nodes_of(self, node_type: str) -> NodeSet:
        """Return the nodes of a type: their number, features, labels, splits and times.

        Raises:
            DataError: there is no such type.
        """
        graph = cast("Graph", self)
        if node_type not in self.node_types:
            raise DataError(
                f"the graph has no node type {node_type!r}; it has {', '.join(self.node_types)}."
                + did_you_mean(node_type, self.node_types)
            )
        if graph.types is not None:
            return graph.types.nodes[node_type]
        return NodeSet(num_nodes=graph.num_nodes, x=graph.x, y=graph.y, splits=graph.splits)

    def edges_of(self, edge_type: EdgeType) -> EdgeSet:
        """Return the edges of a relation without their ends: number, features, times, splits.

        Raises:
            DataError: there is no such relation.
        """
        graph = cast("Graph", self)
        if graph.types is not None:
            return graph.types.edges_of(edge_type)
        self._check_only(edge_type)
        attr = None if graph.edge_attr is None else graph.in_original_order(graph.edge_attr)
        return EdgeSet(
            num_edges=graph.num_edges,
            edge_attr=attr,
            weighted=graph.csc.weight is not None,
            weight_name=graph.weight_name,
        )

    def relation(self, edge_type: EdgeType) -> Csc:
        """Return the adjacency of a relation between the ids of its two types.

        It is a copy where there are types, and :attr:`csc` itself where there are none.

        Raises:
            DataError: there is no such relation.
        """
        graph = cast("Graph", self)
        if graph.types is not None:
            return csc_of(graph.types, graph.types.relation(edge_type))
        self._check_only(edge_type)
        return graph.csc

    def to_edge_indices(self) -> dict[EdgeType, Tensor]:
        """Return ``(2, num_edges)`` int64 sources and destinations by relation, in the order of its list."""
        from graphbraid.graph.interop.relations import edge_lists_of

        return edge_lists_of(cast("Graph", self))

    def with_reverse_relations(self) -> Graph:
        """Return the graph with a relation ``rev_NAME`` beside each, whose edges run the other way.

        Edges of a relation between nodes of one type are reversed too. Weights, features and times are those
        of the edges they reverse; splits stay with the edges that have them. A graph that has the reverse of
        a relation already, by this name, keeps it.
        """
        from graphbraid.graph.interop.relations import with_reverse_relations

        return with_reverse_relations(cast("Graph", self))

    def check_one_type(self, what: str) -> None:
        """Refuse a graph of several types where ``what`` takes graphs of one.

        Raises:
            DataError: the graph has types.
        """
        if self.is_typed:
            raise DataError(
                f"{what} takes graphs of one node type and one relation so far; this one has the node types "
                f"{', '.join(self.node_types)} and {len(self.edge_types)} relations. An .npz file is read "
                "without them, and without the times and splits of edges, by with_types=False (convert "
                "--without-types)"
            )

    @classmethod
    def from_relations(
        cls,
        edges: Mapping[EdgeType, Any],
        num_nodes: Mapping[str, int] | None = None,
        *,
        x: Mapping[str, Any] | None = None,
        y: Mapping[str, Any] | None = None,
        splits: Mapping[str, Mapping[str, Any]] | None = None,
        node_time: Mapping[str, Any] | None = None,
        edge_weight: Mapping[EdgeType, Any] | None = None,
        edge_attr: Mapping[EdgeType, Any] | None = None,
        edge_time: Mapping[EdgeType, Any] | None = None,
        edge_splits: Mapping[EdgeType, Mapping[str, Any]] | None = None,
        name: str = "",
    ) -> Self:
        """Make a graph of several node types or relations from an edge list for each relation.

        Args:
            edges: By relation, ``(2, num_edges)`` integers: sources and destinations, numbered from 0 within
                their types.
            num_nodes: Number of nodes of each type, in the order that the types get. If None, the types are
                those that any argument names, with as many nodes as ``x`` or ``y`` has rows, else as the
                largest id says.
            x: Features by node type, as those of :meth:`from_edge_index`.
            y: Labels by node type, likewise.
            splits: Node ids or masks by node type and name.
            node_time: ``(num_nodes,)`` times by node type.
            edge_weight: ``(num_edges,)`` weights by relation; those of relations without are 1.
            edge_attr: ``(num_edges, num_edge_features)`` features by relation.
            edge_time: ``(num_edges,)`` times by relation.
            edge_splits: Positions in the relation's list, or masks of it, by relation and name.
            name: Name of the graph in reports.

        Raises:
            DataError: a type or a relation is unknown, or an array does not fit; names it and the first
                position that is wrong.
        """
        from graphbraid.graph.interop.relations import graph_from_relations

        made = graph_from_relations(
            cast("type[Graph]", cls),
            edges,
            num_nodes,
            x=x,
            y=y,
            splits=splits,
            node_time=node_time,
            edge_weight=edge_weight,
            edge_attr=edge_attr,
            edge_time=edge_time,
            edge_splits=edge_splits,
            name=name,
        )
        return cast("Self", made)

    def _check_only(self, edge_type: EdgeType) -> None:
        if edge_type != ONLY_EDGE_TYPE:
            raise DataError(f"the graph has no relation {edge_type}; its only one is {ONLY_EDGE_TYPE}")
