"""LinkTimes: when links and the edges that carry messages arose, and what these must keep to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.sampling.batch_seeds import EdgeTimes, sorted_by_time

_MOST_EXACT = 1 << 53
"""Integers up to here are float64 numbers."""
FOREVER = (1 << 63) - 1
"""A time that no edge is later than."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class StoredTimes:
    """The times of a graph's edges, as they are stored."""

    value: Tensor
    """``(num_edges,)`` int64 or float64 times, as the graph has them."""
    rank: Tensor
    """``(num_edges,)`` int64: their ranks among all different times, from 0."""

    def splits(self, learned: Tensor, shares: tuple[float, float]) -> Tensor:
        """Return the number of each learned edge's split: 2 (test) for the latest, 1 (val) before them.

        Edges of one time are in one split, the later one where its share begins among them.

        Args:
            learned: ``(num_edges,)`` bool: which edges are links.
            shares: shares of the links to validate and to test on.
        """
        rank = self.rank[learned]
        rising, begin = rank.sort().values, rank.numel()
        split = torch.zeros_like(rank)
        for share in reversed(shares):
            begin -= round(share * rank.numel())
            if begin < rank.numel():
                split += rank >= rising[begin]
        return split

    def check_order(self, split: Tensor) -> int:
        """Return the rank of the first time that is predicted, after checking that training is over by then.

        Args:
            split: ``(num_edges,)`` int64 number of each edge's split: 0 to train on, more to predict.

        Raises:
            DataError: an edge to train on is as late as one to predict.
        """
        predicted = split > 0
        if not bool(predicted.any()):
            return FOREVER
        first = int(self.rank[predicted].min())
        late = ((split == 0) & (self.rank >= first)).nonzero().flatten()
        if late.numel():
            times = [self.value[at][0].item() for at in (late, predicted & (self.rank == first))]
            raise DataError(
                f"with temporal_strategy, links to validate and to test on must be later than all to train "
                f"on, or a model learns from what comes after; {late.numel()} links of the split 'train' are "
                f"not earlier than the first of the others, such as one of time {times[0]}, which is "
                f"{times[1]}. Split by time, leave edge_splits out, or leave temporal_strategy out."
            )
        return first


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LinkTimes:
    """The times of links and of the edges that carry messages, as ranks among all times of the graph."""

    links: Tensor
    """``(num_links,)`` int64 time of each link."""
    messages: EdgeTimes
    """Times of the edges that carry messages, whose adjacency is sorted by them."""

    def before(self, positions: Tensor) -> Tensor:
        """Return the last times before those of the links at ``positions``: those that messages may have."""
        return self.links[positions] - 1

    def check_after(self, positions: Tensor) -> None:
        """Check that links are later than all messages, which an evaluation reads.

        Raises:
            ConfigError: some are not.
        """
        time = self.messages.time
        early = self.links[positions] <= (int(time.max()) if time.numel() else -1)
        if bool(early.any()):
            raise ConfigError(
                f"with temporal_strategy, links are evaluated by the edges to train on, and "
                f"{int(early.sum())} of these links are not later than all of them: their future would be "
                "seen. Evaluate a split that is later, such as 'val' or 'test'."
            )


def stored_times(graph: Graph, relation: Tensor | None, place: Tensor | None) -> StoredTimes:
    """Return the times of a graph's stored edges.

    Args:
        graph: the graph.
        relation: ``(num_edges,)`` int64 relation of each stored edge.
        place: ``(num_edges,)`` int64 place of each stored edge in the lists of all relations, one after the
            other; -1 for an edge that was in none. None for a graph without types.

    Raises:
        ConfigError: the edges of a relation have no times, or times of two kinds that do not compare.
        DataError: a time is not finite.
    """
    missing = [",".join(one) for one in graph.edge_types if graph.edges_of(one).time is None]
    if missing or relation is None or place is None:
        which = f" (those of {'; '.join(missing)})" if graph.is_typed else ""
        raise ConfigError(
            f"temporal_strategy needs the time of every edge, and edges of this graph have none{which}. Give "
            "them with Graph.from_relations(..., edge_time=...), or as edge_time in an .npz file."
        )
    lists = [time for one in graph.edge_types if (time := graph.edges_of(one).time) is not None]
    if any(time.is_floating_point() for time in lists):
        if any(not t.is_floating_point() and bool((t.abs() > _MOST_EXACT).any()) for t in lists):
            raise ConfigError(
                "times beyond 2**53 of one relation cannot be compared with another relation's floats; give "
                "all in one unit as integers"
            )
        lists = [time.double() for time in lists]
    value = torch.cat(lists)
    wrong = (~value.isfinite()).nonzero().flatten()
    if wrong.numel():
        raise DataError(
            f"times of edges must be finite; {wrong.numel()} are not, the first {value[wrong[0]]}"
        )
    if bool((place < 0).any()):
        raise ConfigError(
            f"{int((place < 0).sum())} edges were in no list of edges and have no times, such as self-loops "
            "that were added: leave these out, or temporal_strategy"
        )
    stored = value[place]
    return StoredTimes(value=stored, rank=torch.unique(stored, return_inverse=True)[1])


def in_time_order(csc: Csc, time: Tensor, *, last: bool) -> tuple[Csc, Tensor, EdgeTimes]:
    """Return an adjacency sorted by time, the order that sorts its edges, and their times in it."""
    ordered, order = sorted_by_time(csc, time)
    return ordered, order, EdgeTimes(time=time[order].contiguous(), last=last)
