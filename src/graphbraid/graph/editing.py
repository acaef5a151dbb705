"""EdgeEdits: a graph with edges added or removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from graphbraid.arguments import as_flag
from graphbraid.graph import edges

if TYPE_CHECKING:
    from graphbraid.graph.graph import Graph


class EdgeEdits:
    """The part of :class:`graphbraid.Graph` about adding and removing edges."""

    __slots__ = ()

    def symmetrized(self, *, weights: str = "max", keep_edge_id: bool = True) -> Graph:
        """Return the graph with each edge in both directions, once; see :func:`.graph.edges.symmetrize`.

        Each edge gets the features of the edge whose id it gets.
        """
        return self._edited(edges.symmetrize, keep_edge_id, weights=weights)

    def without_duplicates(self, *, weights: str = "sum", keep_edge_id: bool = True) -> Graph:
        """Return the graph with each edge u -> v once, which keeps the features of the first one.

        :func:`graphbraid.graph.edges.remove_duplicates` describes the arguments.
        """
        return self._edited(edges.remove_duplicates, keep_edge_id, weights=weights)

    def with_self_loops(self, *, weight: float = 1.0, keep_edge_id: bool = True) -> Graph:
        """Return the graph with a self-loop added to each node without one: id -1, zeros for features."""
        return self._edited(edges.add_self_loops, keep_edge_id, weight=weight)

    def without_self_loops(self, *, keep_edge_id: bool = True) -> Graph:
        """Return the graph without the edges from a node to itself."""
        return self._edited(edges.remove_self_loops, keep_edge_id)

    def _edited(self, edit: Callable[..., edges.Edited], keep_edge_id: bool, **options: Any) -> Graph:
        graph = cast("Graph", self)
        graph.check_one_type("editing edges")
        if graph.edge_attr is None:
            edited = edit(graph.csc, graph.edge_id, keep_edge_id=keep_edge_id, **options)
            return graph.replace(csc=edited.csc, edge_id=edited.edge_id)
        edited = edit(graph.csc, **options)  # without ids of its own, the edit returns positions
        origin = edited.edge_id
        assert origin is not None
        return graph.replace(
            csc=edited.csc,
            edge_id=edges.ids_of(origin, graph.edge_id) if as_flag(keep_edge_id, "keep_edge_id") else None,
            edge_attr=edges.rows_of(origin, graph.edge_attr),
            schema=graph.schema,
        )
