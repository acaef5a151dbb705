"""The rows that ranks exchange between two levels: how many travel where, and in how many parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.fullgraph.program import AdjacencyMatrix
from graphbraid.ops.aggregation import Aggregation
from graphbraid.signatures import typed

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


# ---- partView: what one of several ranks knows of the whole graph, where it holds its own part alone


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


# ---- pipeline: in how many parts the rows of an exchange travel, and which rows each part holds

MOST_CHUNKS = 64
"""Most parts of an exchange."""


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """How exchanges and the sums that read them are drawn into each other; no bit of a result depends on it.

    Raises:
        ConfigError: a number is out of bounds.
    """

    chunks: int = 1
    """Parts in which rows travel to the halos; each is summed as it has come. As many in every exchange."""
    back_chunks: int = 1
    """Parts in which the gradients of halo rows are computed and travel to their owners."""
    threads: int | None = None
    """Threads of the sums that run while rows travel; None: all that kernels have."""

    def __post_init__(self) -> None:
        as_count(self.chunks, "chunks", least=1, most=MOST_CHUNKS)
        as_count(self.back_chunks, "back_chunks", least=1, most=MOST_CHUNKS)
        if self.threads is not None:
            as_count(self.threads, "threads", least=1)


class Chunks:
    """The rows of a route in parts.

    Part k of K takes, of the n rows from one rank to another, those with ``k <= position * K / n < k + 1``.
    Both ranks know n, so that nothing about the parts needs to be told. In buffers that are laid out by part,
    rows stand by part and then as in the route.

    Args:
        route: the rows.
        count: number of parts, the same on all ranks.
    """

    def __init__(self, route: Route, count: int) -> None:
        self.count = count
        sent, received = _cut(route.send_rows, count), _cut(route.receive_rows, count)
        self.sent_order = _order(route.send_rows, sent)
        """``(num_sent,)`` int64 row of the route at each place of a buffer by part."""
        self.received_order = _order(route.receive_rows, received)
        """``(num_received,)`` int64, the same of what is received."""
        self.sent, self.received = _slices(sent), _slices(received)
        """The places of each part's rows in buffers by part."""
        self.routes = tuple(
            Route(send=route.send[self.sent_order[places]], send_rows=given, receive_rows=taken)
            for places, given, taken in zip(self.sent, sent, received, strict=True)
        )
        """The rows of each part."""

    def part_of_received(self) -> Tensor:
        """Return the ``(num_received,)`` int64 part with which each halo row comes, in the route's order."""
        sizes = torch.tensor([places.stop - places.start for places in self.received])
        part = torch.empty_like(self.received_order)
        part[self.received_order] = torch.repeat_interleave(torch.arange(self.count), sizes)
        return part


def places_of(order: Tensor) -> Tensor:
    """Return the place of each row in a buffer whose place i holds row ``order[i]``."""
    places = torch.empty_like(order)
    places[order] = torch.arange(order.numel())
    return places


def arrivals(receive_rows: Sequence[int]) -> Tensor:
    """Return the ``(num_received,)`` int64 position of each halo row in the order in which rows arrive.

    It is that of position / n among the n rows of its owner, then of the owner: whatever the number of parts,
    rows of a part stand in it before those of the next.
    """
    share = [torch.arange(count, dtype=torch.float64) / max(count, 1) for count in receive_rows]
    return places_of(torch.cat(share).argsort(stable=True))


def _cut(rows: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return the number of rows from or to each rank in each part."""
    ends = [[-(-n * k // count) for k in range(count + 1)] for n in rows]
    return [tuple(end[k + 1] - end[k] for end in ends) for k in range(count)]


def _order(rows: Sequence[int], parts: Sequence[Sequence[int]]) -> Tensor:
    """Return the row at each place of a buffer in which rows stand by part, then by rank."""
    begins = [0, *itertools.accumulate(rows)][:-1]
    found = [torch.empty(0, dtype=torch.int64)]
    for part in parts:
        for rank, count in enumerate(part):
            found.append(torch.arange(begins[rank], begins[rank] + count))
            begins[rank] += count
    return torch.cat(found)


def _slices(parts: Sequence[Sequence[int]]) -> tuple[slice, ...]:
    ends = itertools.accumulate((sum(part) for part in parts), initial=0)
    return tuple(itertools.starmap(slice, itertools.pairwise(ends)))
