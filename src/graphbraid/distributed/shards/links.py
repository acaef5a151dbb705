"""PartLinks: the edges of a graph as links, where each rank holds the in-edges of its own nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.shards.exchange import Routed
from graphbraid.graph.csc import indptr_of

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import Shards


class PartLinks:
    """The edges of a graph as links, numbered as in the whole graph; all ranks call its methods together.

    Args:
        shards: the parts of a graph without types, whose lists are with their nodes.
        own: ``(2, num_own)`` int64 ends of the edges into this rank's nodes, in the order of storage.
    """

    def __init__(self, shards: Shards, own: Tensor) -> None:
        self._shards, self._own, self._num_nodes = shards, own, shards.only.num_nodes
        counts = torch.bincount(own[1], minlength=self._num_nodes)
        self._own_indptr = indptr_of(counts)
        self._indptr = indptr_of(shards.ranks.all_reduce(counts).wait())
        self.num_links = int(self._indptr[-1])
        """Number of edges of the whole graph."""

    def at(self, positions: Tensor, comm: Communicator | None = None) -> Tensor:
        """Return the ends of links, ``(2, num)`` int64; the owners of their destinations know the sources.

        Args:
            positions: ``(num,)`` int64 positions of this rank's choice, possibly none.
            comm: the ranks, as the caller's thread uses them. If None, that of the main thread.
        """
        destinations = self._destinations(positions)
        routed = Routed(comm or self._shards.ranks, self._shards.owners(destinations))
        given = routed.ask(positions)
        node = self._destinations(given)
        sources = self._own[0][self._own_indptr[node] + given - self._indptr[node]]
        return torch.stack([routed.answers(sources), destinations])

    def splits(self, split: Tensor) -> list[Tensor]:
        """Return the positions of the links of each split, the same on all ranks, ascending.

        Args:
            split: ``(num_own,)`` int64 number of the split of each own edge: 0, 1 or 2.
        """
        node = self._own[1]
        of_all = torch.zeros(self.num_links, dtype=torch.int32)
        of_all[self._indptr[node] + torch.arange(node.numel()) - self._own_indptr[node]] = split.int()
        self._shards.ranks.all_reduce(of_all).wait()
        return [(of_all == number).nonzero().squeeze(1) for number in range(3)]

    def numbered(self, pairs: Tensor) -> tuple[Tensor, int]:
        """Return the place of each own edge's pair among the different pairs of all ranks, and their number.

        Args:
            pairs: ``(num_own,)`` int64, the lower end times the number of nodes, plus the higher end.
        """
        routed = Routed(self._shards.ranks, self._shards.owners(pairs // self._num_nodes))
        given = routed.ask(pairs)
        distinct, place = torch.unique(given, return_inverse=True)
        node = distinct // self._num_nodes  # whose owner has all its pairs
        counts = torch.bincount(node, minlength=self._num_nodes)
        own_begins = indptr_of(counts)
        begins = indptr_of(self._shards.ranks.all_reduce(counts).wait())
        number = begins[node] + torch.arange(distinct.numel()) - own_begins[node]
        return routed.answers(number[place]), int(begins[-1])

    def beside(self, links: Tensor) -> Tensor:
        """Return the links of all ranks that share an end with some of ``links``, ``(2, num)``."""
        src, dst = self._of_all(links.t()).t()
        is_beside = torch.isin(self._own[0], src) | torch.isin(self._own[1], dst)
        return self._of_all(self._own[:, is_beside].t()).t()

    def summed(self, values: Tensor) -> Tensor:
        """Return the sums over all ranks of float64 numbers."""
        return self._shards.ranks.all_reduce(values).wait()

    def _destinations(self, positions: Tensor) -> Tensor:
        return torch.searchsorted(self._indptr[1:], positions, right=True)

    def _of_all(self, rows: Tensor) -> Tensor:
        comm, counts = self._shards.ranks, [len(rows)] * self._shards.ranks.size
        return comm.all_to_all(rows.repeat(comm.size, 1), counts, comm.counts(counts)).wait()
