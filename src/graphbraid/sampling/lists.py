"""NeighborLists: a source of adjacency lists; ListReads: counts of a sampling device's reads of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from graphbraid.graph.csc import Csc


class ListReads(NamedTuple):
    """Numbers of drawn edges and of their adjacency lists, by the memory they were read from."""

    device_lists: int
    device_edges: int
    host_lists: int
    host_edges: int

    @classmethod
    def of(cls, counted: Tensor) -> ListReads:
        """Return the sums of a device, ``(4,)`` int64 in this order; waits for it."""
        return cls(*counted.tolist())

    @property
    def device_share(self) -> float:
        """Share of the lists that were read from the device; 0 before the first read."""
        return self.device_lists / max(self.device_lists + self.host_lists, 1)


class NeighborLists(Protocol):
    """The adjacency lists of a graph's nodes, in memory or in a file."""

    @property
    def csc(self) -> Csc:
        """The graph's topology, whose ``indptr`` is in memory.

        Its ``indices`` serve reads in order. Samplers read them only if :attr:`native` is None.
        """
        ...

    @property
    def native(self) -> Any | None:
        """Reader of the ids of drawn edges in this process; None: all are in ``csc.indices``.

        The compiled ``NeighborLists``, or its twin in :mod:`graphbraid.features.tiers.topology`.
        """
        ...
