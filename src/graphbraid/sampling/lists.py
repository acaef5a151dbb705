"""NeighborLists: where adjacency lists are; ListReads: what a device that samples read of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from graphbraid.graph.csc import Csc


class ListReads(NamedTuple):
    """Numbers of drawn edges and of the adjacency lists that hold them, by the memory they were read from."""

    device_lists: int
    device_edges: int
    host_lists: int
    host_edges: int

    @classmethod
    def of(cls, counted: Tensor) -> ListReads:
        """Return what a device has added up in ``(4,)`` int64, in this order; waits for it."""
        return cls(*counted.tolist())

    @property
    def device_share(self) -> float:
        """The device's share of the reads of lists; 0 before the first."""
        return self.device_lists / max(self.device_lists + self.host_lists, 1)


class NeighborLists(Protocol):
    """The adjacency lists of a graph's nodes, wherever they lie."""

    @property
    def csc(self) -> Csc:
        """The graph's topology; of its arrays ``indptr`` is in memory.

        Its ``indices`` are there for who reads them in order. Samplers read them only where :attr:`native` is
        None.
        """
        ...

    @property
    def native(self) -> Any | None:
        """What gives the ids of drawn edges, in this process; None: all are in ``csc.indices``.

        The compiled ``NeighborLists``, or its twin in :mod:`graphbraid.features.tiers.lists_reference`.
        """
        ...
