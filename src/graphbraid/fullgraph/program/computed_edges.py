"""Edges that a model computes of the graph's: with self-loops, with coefficients such as those of a GCN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.fullgraph.program.graph_break import FromCall, FromGraph, WrittenCall
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.nn.adjacency import MadeOfTensors

EDGE_LIST, EDGE_WEIGHT, NUM_NODES, DTYPE, DEVICE = "edges", "weights", "number of nodes", "dtype", "device"
"""What the calls get of the graph, by the name of a :class:`.FromGraph`."""
_MADE = MadeOfTensors()
"""What was computed of a graph or batch. Layers, and steps on the same graph, share it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputedEdges:
    """Calls of a model that read the graph's edges alone, and so give the same in each step on a graph.

    PyTorch makes them once for each graph or batch, as they are written, on a list of its edges in the order
    of their destinations.
    """

    calls: tuple[WrittenCall, ...]
    edges: FromCall | FromGraph
    """The edges that messages run along: the graph's own, or a ``(2, num_edges)`` result."""
    values: tuple[FromCall | FromGraph, ...]
    """Results with a row for each of these edges: numbers or vectors."""

    @property
    def are_graphs(self) -> bool:
        """Whether the edges are the graph's own, in their order."""
        return isinstance(self.edges, FromGraph)

    def of(self, csc: Csc, dtype: torch.dtype) -> tuple[Csc, tuple[Tensor, ...]]:
        """Return the edges computed of a graph, and the values in their order.

        Args:
            csc: the graph's edges, between as many sources as destinations.
            dtype: dtype of the node rows, and of the values.
        """
        tensors = [csc.indices, csc.indptr] + ([] if csc.weight is None else [csc.weight])
        key = self.edges, self.values, tuple(str(call) for call in self.calls), dtype
        return _MADE.get(tensors, key, lambda: self._made(csc, dtype))

    def _made(self, csc: Csc, dtype: torch.dtype) -> tuple[Csc, tuple[Tensor, ...]]:
        edges = torch.stack((csc.indices.long(), csc.destinations().long()))
        weight = None if csc.weight is None else csc.weight.detach().to(dtype, copy=True)
        edges, values = self.run(edges, weight, csc.num_src, dtype)
        if self.are_graphs:
            return csc, values
        found, order = coo_to_csc(edges[0], edges[1], csc.num_src, csc.num_dst)
        return found, tuple(value if order is None else value[order] for value in values)

    def run(
        self, edges: Tensor, weight: Tensor | None, num_nodes: int, dtype: torch.dtype
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Make the calls; return the list of edges and the values, in the order of the model's own.

        Args:
            edges: ``(2, num_edges)``, int64: the graph's edges in any order.
            weight: a number for each of them, of ``dtype``; None without weights.
            num_nodes: the number of nodes.
            dtype: dtype of the node rows, and of the values.

        Raises:
            ValueError: they write over the graph's own edges or weights.
        """
        before = [None if one is None else one._version for one in (edges, weight)]
        of_graph: Mapping[str, Any] = {
            EDGE_LIST: edges,
            EDGE_WEIGHT: weight,
            NUM_NODES: num_nodes,
            DTYPE: dtype,
            DEVICE: edges.device,
        }
        made: list[Any] = []

        def find(value: Any) -> Any:
            if isinstance(value, FromCall):
                return made[value.number]
            return of_graph[value.name] if isinstance(value, FromGraph) else value

        with torch.no_grad():
            for call in self.calls:
                made.append(call.run(find))  # noqa: PERF401 - find reads what was made before
        if before != [None if one is None else one._version for one in (edges, weight)]:
            raise ValueError("the graph's own edges are written over")
        return find(self.edges), tuple(find(value).to(dtype) for value in self.values)


__all__ = ["DEVICE", "DTYPE", "EDGE_LIST", "EDGE_WEIGHT", "NUM_NODES", "ComputedEdges"]
