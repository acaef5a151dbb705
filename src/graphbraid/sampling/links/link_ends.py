"""LinkEnds: the nodes that links go from and lead to, which in a graph with types may be of two types."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.types import first_ids


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkEnds:
    """The node types that links join, and where their nodes stand in the whole graph.

    Users count a node within its type, samplers and edges in the whole graph, and the rows of an evaluation
    are those of the two types alone (:attr:`nodes`).
    """

    types: tuple[str, str]
    """Type of the sources, and of the destinations."""
    first: tuple[int, int]
    """Id in the whole graph of the first node of each."""
    counts: tuple[int, int]
    """Number of nodes of each."""

    @classmethod
    def of(cls, graph: Graph, edge_type: EdgeType) -> LinkEnds:
        """Return the ends of a relation's links."""
        sizes = [graph.nodes_of(name).num_nodes for name in graph.node_types]
        first = dict(zip(graph.node_types, first_ids(sizes), strict=False))
        source, _, destination = edge_type
        return cls(
            types=(source, destination),
            first=(first[source], first[destination]),
            counts=(graph.nodes_of(source).num_nodes, graph.nodes_of(destination).num_nodes),
        )

    @property
    def are_alike(self) -> bool:
        """Whether both ends are nodes of one type."""
        return self.types[0] == self.types[1]

    @property
    def nodes(self) -> Tensor:
        """Ids in the whole graph of the nodes of both types, int64, each once, rising."""
        ranges = sorted(
            {(first, first + count) for first, count in zip(self.first, self.counts, strict=True)}
        )
        return torch.cat([torch.arange(*one) for one in ranges])

    @property
    def rows(self) -> tuple[slice, slice]:
        """Where the sources, and the destinations, stand among :attr:`nodes`."""
        begins = [0, 0]
        if not self.are_alike:
            later = int(self.first[1] > self.first[0])
            begins[later] = self.counts[1 - later]
        found = (slice(begin, begin + count) for begin, count in zip(begins, self.counts, strict=True))
        source, destination = found
        return source, destination

    def whole(self, pairs: Tensor) -> Tensor:
        """Return ``(2, num)`` ids in the whole graph for ids within the types."""
        return pairs + torch.tensor(self.first).unsqueeze(1)

    def within(self, pairs: Tensor) -> Tensor:
        """Return ``(2, num)`` ids within the types for ids in the whole graph."""
        return pairs - torch.tensor(self.first).unsqueeze(1)

    def places(self, pairs: Tensor) -> Tensor:
        """Return ``(2, num)`` places among :attr:`nodes` for ids in the whole graph."""
        begins = torch.tensor([part.start for part in self.rows]).unsqueeze(1)
        return self.within(pairs) + begins
