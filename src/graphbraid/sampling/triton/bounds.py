"""What a mini-batch holds at most, known on the host before the device has drawn anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.sampling.config import SamplerConfig


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class GraphBounds:
    """What bounds of batches need to know of a graph."""

    num_nodes: int
    num_edges: int
    largest: Tensor | None
    """``(num_nodes + 1,)`` int64 on the CPU: in-edges of the n nodes that have most. None unless a hop takes
    all neighbours."""

    @classmethod
    def of(cls, csc: Csc, config: SamplerConfig) -> GraphBounds:
        """Those of a graph on the CPU; sorts its degrees where a fanout is -1."""
        largest = None
        if -1 in config.fanouts:
            largest = torch.zeros(csc.num_dst + 1, dtype=torch.int64)
            torch.cumsum(csc.degrees().sort(descending=True).values, 0, out=largest[1:])
        return cls(num_nodes=csc.num_dst, num_edges=csc.num_edges, largest=largest)

    def edges_into(self, num_nodes: int) -> int:
        """In-edges of so many distinct nodes, at most."""
        assert self.largest is not None
        return int(self.largest[min(num_nodes, self.num_nodes)])


class BatchBounds:
    """Nodes and edges of one batch, hop by hop.

    A seed may stand in a batch more than once; every node found later is in it once.
    """

    def __init__(self, graph: GraphBounds, config: SamplerConfig, *, num_seeds: int, seed_edges: int) -> None:
        """``seed_edges``: in-edges of the seeds at most; counts only where a fanout is -1."""
        self._graph, self._config = graph, config
        self._num_seeds, self._seed_edges = num_seeds, seed_edges
        self._found = self._newest = self._edges = 0
        self._hop = 0

    @property
    def nodes(self) -> int:
        """Nodes of the batch so far, at most."""
        return self._num_seeds + self._found

    @property
    def positions(self) -> int:
        """Seeds and edges of the batch so far, at most."""
        return self._num_seeds + self._edges

    @property
    def rows(self) -> int:
        """Nodes that draw at the next hop, at most."""
        seeds, others = self._drawing()
        return seeds + others

    @property
    def edges(self) -> int:
        """Edges of the next hop, at most."""
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
        """Go to the next hop; this one has at most so many edges."""
        self._newest = min(edges, self._graph.num_nodes)
        self._found = min(self._found + edges, self._graph.num_nodes)
        self._edges += edges
        self._hop += 1

    def _drawing(self) -> tuple[int, int]:
        if self._config.layout == "blocks":
            return self._num_seeds, self._found
        return (self._num_seeds, 0) if self._hop == 0 else (0, self._newest)
