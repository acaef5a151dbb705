"""NeighborLists: where the in-neighbours of a graph's nodes are, for samplers that do not know it."""

from __future__ import annotations

from typing import Any, Protocol

from graphbraid.graph.csc import Csc


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
