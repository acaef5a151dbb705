"""Upper bounds on the size of a mini-batch, known on the host before the device has drawn anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.sampling.config import SamplerConfig


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class GraphBounds:
    """The properties of a graph that the bounds of its batches depend on."""

    num_nodes: int
    num_edges: int
    largest: Tensor | None
    """Entry n is the total in-degree of the n nodes of highest in-degree: ``(num_nodes + 1,)`` int64 on the
    CPU. None unless a hop takes all neighbours."""

    @classmethod
    def of(cls, csc: Csc, config: SamplerConfig) -> GraphBounds:
        """Make the bounds of a graph on the CPU; sorts its degrees if a fanout is -1."""
        largest = None
        if -1 in config.fanouts:
            largest = torch.zeros(csc.num_dst + 1, dtype=torch.int64)
            torch.cumsum(csc.degrees().sort(descending=True).values, 0, out=largest[1:])
        return cls(num_nodes=csc.num_dst, num_edges=csc.num_edges, largest=largest)

    def edges_into(self, num_nodes: int) -> int:
        """Return the largest number of in-edges that ``num_nodes`` distinct nodes can have."""
        assert self.largest is not None
        return int(self.largest[min(num_nodes, self.num_nodes)])


class BatchBounds:
    """Upper bounds on the nodes and edges of one batch, hop by hop.

    A seed may occur in a batch more than once; every node found later occurs once.
    """

    def __init__(self, graph: GraphBounds, config: SamplerConfig, *, num_seeds: int, seed_edges: int) -> None:
        """Begin at the first hop; ``seed_edges`` bounds the seeds' in-edges (used for fanout -1 only)."""
        self._graph, self._config = graph, config
        self._num_seeds, self._seed_edges = num_seeds, seed_edges
        self._found = self._newest = self._edges = 0
        self._hop = 0

    @property
    def nodes(self) -> int:
        """Largest number of nodes in the batch so far."""
        return self._num_seeds + self._found

    @property
    def positions(self) -> int:
        """Largest number of seeds and edges in the batch so far."""
        return self._num_seeds + self._edges

    @property
    def rows(self) -> int:
        """Largest number of nodes that draw at the next hop."""
        seeds, others = self._drawing()
        return seeds + others

    @property
    def edges(self) -> int:
        """Largest number of edges of the next hop."""
        fanout = self._config.fanouts[self._hop]
        seeds, others = self._drawing()
        if self._graph.num_edges == 0 or fanout == 0:
            return 0
        if fanout < 0:
            return (self._seed_edges if seeds else 0) + self._graph.edges_into(others)
        if self._config.replace:
            return (seeds + others) * fanout
        return seeds * fanout + min(others * fanout, self._graph.num_edges)

    def advance(self, edges: int) -> None:
        """Go on to the next hop; the current one has at most ``edges`` edges."""
        self._newest = min(edges, self._graph.num_nodes)
        self._found = min(self._found + edges, self._graph.num_nodes)
        self._edges += edges
        self._hop += 1

    def _drawing(self) -> tuple[int, int]:
        if self._config.layout == "blocks":
            return self._num_seeds, self._found
        return (self._num_seeds, 0) if self._hop == 0 else (0, self._newest)
