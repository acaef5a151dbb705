"""The rows that ranks exchange between two levels, and what a rank knows of the whole graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from graphbraid.fullgraph.program import AdjacencyMatrix
from graphbraid.ops.aggregation import Aggregation

# ---- route: the rows that one of several ranks sends and receives between two levels


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Route:
    """The rows that travel from a level of own rows to one of own rows and, after them, the halo's."""

    send: Tensor
    """``(num_sent,)`` int64 own rows to send, by receiver; a row goes to each rank that reads it."""
    send_rows: tuple[int, ...]
    """How many of them go to each rank."""
    receive_rows: tuple[int, ...]
    """How many halo rows come from each rank, in this order."""

    @property
    def num_sent(self) -> int:
        """Number of rows to send."""
        return sum(self.send_rows)

    @property
    def num_received(self) -> int:
        """Number of halo rows."""
        return sum(self.receive_rows)


# ---- PartView: what one of several ranks knows of the whole graph, where it holds its own part alone


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PartView:
    """The place of a rank's nodes in the whole graph; the rank numbers its own first, then its halo."""

    ids: Tensor
    """``(num_own + num_halo,)`` int64 node of each of the rank's nodes."""
    first_edge: Tensor
    """``(num_own,)`` int64 position of the first in-edge of each own node in the whole graph."""
    route: Route
    """The rows that travel before every aggregation."""
    halo_scales: dict[AdjacencyMatrix, Tensor | None] = field(default_factory=dict)
    """``(num_halo,)`` factors of the halo's rows, by adjacency, as their owners have told them."""

    @property
    def num_own(self) -> int:
        """Number of nodes that the rank owns."""
        return self.first_edge.numel()

    def missing(self, adjacencies: Iterable[AdjacencyMatrix]) -> list[AdjacencyMatrix]:
        """Return those whose factors the owners have not told yet, in their order."""
        return [adjacency for adjacency in dict.fromkeys(adjacencies) if adjacency not in self.halo_scales]

    def corrected(self, adjacency: AdjacencyMatrix, own: Aggregation) -> Aggregation:
        """Return a map of the rank's graph with the factors that the halo's rows have in the whole graph.

        Of the rows of its halo the rank holds no in-edges, from which these factors come.
        """
        halo = self.halo_scales[adjacency]
        if own.src_scale is None or halo is None:
            return own
        return replace(own, src_scale=torch.cat((own.src_scale[: self.num_own], halo)))
