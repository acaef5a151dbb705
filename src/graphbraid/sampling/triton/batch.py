"""A batch before and after the device has drawn it: bounds of its size, running counts, its two layouts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.sample import SampledEdges


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


class Counts:
    """Running numbers of nodes and edges after each hop, which kernels read and write.

    Attributes:
        nodes: ``(hops + 2,)`` int64: 0, the number of seeds, then the batch's nodes after each hop.
        edges: ``(hops + 1,)`` int64: 0, then the batch's edges after each hop.
    """

    def __init__(self, num_hops: int, device: torch.device) -> None:
        split = (num_hops + 3) // 2 * 2  # aligns edges to 16 bytes, which kernels are compiled for
        self._counts = torch.zeros(split + num_hops + 1, dtype=torch.int64, device=device)
        self.nodes, self.edges = self._counts[: num_hops + 2], self._counts[split:]
        self._split, self._num_hops = split, num_hops
        self._host = self._counts
        self._copied: torch.cuda.Event | None = None

    def send(self) -> None:
        """Start the copy to the host; the batch must be complete in stream order."""
        if self._counts.is_cuda:
            self._host = torch.empty(self._counts.shape, dtype=torch.int64, pin_memory=True)
            self._host.copy_(self._counts, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> tuple[list[int], list[int]]:
        """Return ``nodes`` and ``edges`` as lists; waits for the copy that :meth:`send` started."""
        if self._copied is not None:
            self._copied.synchronize()
        numbers = self._host.tolist()
        return numbers[: self._num_hops + 2], numbers[self._split :]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class DrawnHop:
    """The edges that one hop drew, in buffers as large as the hop's upper bounds."""

    offsets: Tensor
    """Offsets of the rows' edges, starting at 0: ``(rows + 1,)`` int64."""
    local: Tensor
    """Local ids of the sources, ``(edges,)`` int32."""
    positions: Tensor | None
    """Positions of the edges in the graph, ``(edges,)`` int64; None unless the batch keeps them."""


def no_edges(num_rows: int, n_id: Tensor, *, keep_positions: bool) -> DrawnHop:
    """Return a hop of ``num_rows`` rows that draws nothing, on the device of ``n_id``."""
    none = n_id.new_empty(0)
    offsets = n_id.new_zeros(num_rows + 1)
    return DrawnHop(offsets=offsets, local=none.int(), positions=none if keep_positions else None)


def steps_of(bounds: list[int]) -> list[int]:
    """Return the differences of consecutive numbers."""
    return [after - before for before, after in pairwise(bounds)]


def cut_blocks(hops: list[DrawnHop], nodes: list[int], edges: list[int]) -> list[SampledEdges]:
    """Return the edges of each hop, whose rows are all nodes found before it."""
    return [
        SampledEdges(
            indptr=hop.offsets[: num_rows + 1],
            indices=hop.local[:count],
            positions=None if hop.positions is None else hop.positions[:count],
        )
        for hop, num_rows, count in zip(hops, nodes[1:-1], steps_of(edges), strict=True)
    ]


def cut_subgraph(hops: list[DrawnHop], nodes: list[int], edges: list[int]) -> list[SampledEdges]:
    """Return the edges of all hops, concatenated."""
    indptr = hops[0].offsets.new_zeros(nodes[-2] + 1)
    for h, hop in enumerate(hops):
        rows = hop.offsets[1 : nodes[h + 1] - nodes[h] + 1]
        torch.add(rows, edges[h], out=indptr[nodes[h] + 1 : nodes[h + 1] + 1])
    cut = list(zip(hops, steps_of(edges), strict=True))
    positions = [hop.positions[:count] for hop, count in cut if hop.positions is not None]
    return [
        SampledEdges(
            indptr=indptr,
            indices=torch.cat([hop.local[:count] for hop, count in cut]),
            positions=torch.cat(positions) if positions else None,
        )
    ]
