"""PartLinks: the edges of a graph as links, where each rank holds the in-edges of its own nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.distributed.parts.rows import DEGREES
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.shards.exchange import Routed
from graphbraid.graph.csc import Csc, degrees_and_loops, indptr_of

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import Shards


class PartLinks:
    """The edges of a graph as links, numbered as in the whole graph; all ranks call its methods together.

    Lists are with their nodes; ``own`` are the ends of the edges into this rank's, in the order of storage.
    """

    def __init__(self, shards: Shards, own: Tensor) -> None:
        self._shards, self._own, self._num_nodes = shards, own, shards.only.num_nodes
        self.positions, self._indptr = self._numbers(own[1])
        """Positions of own edges in the whole graph, ``(num_own,)`` int64; and where each node's begin."""
        self.num_links = int(self._indptr[-1])
        """Number of edges of the whole graph."""

    def at(self, positions: Tensor, comm: Communicator | None = None) -> Tensor:
        """Return the ends of links, ``(2, num)`` int64; the owners of their destinations know the sources.

        Each rank chooses positions, possibly none; a caller of another thread than the main one gives
        ``comm``.
        """
        destinations = torch.searchsorted(self._indptr[1:], positions, right=True)
        routed = Routed(comm or self._shards.ranks, self._shards.owners(destinations))
        given = torch.searchsorted(self.positions, routed.ask(positions))
        return torch.stack([routed.answers(self._own[0][given]), destinations])

    def splits(self, split: Tensor) -> list[Tensor]:
        """Return each split's positions, ascending, alike on all ranks, from those of own edges (0 to 2)."""
        of_all = torch.zeros(self.num_links, dtype=torch.int32)
        of_all[self.positions] = split.int()
        self._shards.ranks.all_reduce(of_all).wait()
        return [(of_all == number).nonzero().squeeze(1) for number in range(3)]

    def degrees(self, messages: Csc) -> dict[str, Tensor]:
        """Return :func:`.degrees_and_loops` by some edges of all ranks, whose own ones ``messages`` has."""
        found, owned = torch.zeros(2, self._num_nodes), self._shards.owned
        degree, loop = degrees_and_loops(messages)
        found[0, owned] = degree[owned]
        found[1, owned] = torch.nan if loop is None else loop[owned]
        self._shards.ranks.all_reduce(found).wait()  # a node's owner is the only one to add other than zero
        count = 1 if bool(found[1].isnan().all()) else 2
        return dict(zip(DEGREES[:count], found, strict=False))

    def numbered(self, pairs: Tensor) -> tuple[Tensor, int]:
        """Return the place of each own edge's pair, ``lower * num_nodes + higher``, and their number."""
        routed = Routed(self._shards.ranks, self._shards.owners(pairs // self._num_nodes))
        distinct, place = torch.unique(routed.ask(pairs), return_inverse=True)
        number, begins = self._numbers(distinct // self._num_nodes)  # whose owner has all its pairs
        return routed.answers(number[place]), int(begins[-1])

    def beside(self, links: Tensor) -> Tensor:
        """Return the links of all ranks that share an end with some of ``links``, ``(2, num)``."""
        src, dst = self._of_all(links.t()).t()
        is_beside = torch.isin(self._own[0], src) | torch.isin(self._own[1], dst)
        return self._of_all(self._own[:, is_beside].t()).t()

    def summed(self, values: Tensor) -> Tensor:
        """Return the sums over all ranks of float64 numbers."""
        return self._shards.ranks.all_reduce(values).wait()

    def _numbers(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of entries of ascending nodes, each of one rank, and where nodes begin."""
        counts = torch.bincount(nodes, minlength=self._num_nodes)
        own, of_all = indptr_of(counts), indptr_of(self._shards.ranks.all_reduce(counts).wait())
        return (of_all - own)[nodes] + torch.arange(nodes.numel()), of_all

    def _of_all(self, rows: Tensor) -> Tensor:
        comm, counts = self._shards.ranks, [len(rows)] * self._shards.ranks.size
        return comm.all_to_all(rows.repeat(comm.size, 1), counts, comm.counts(counts)).wait()
