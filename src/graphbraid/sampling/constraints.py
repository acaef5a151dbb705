"""Constraints and EdgeTimes: what the draws of a mini-batch keep to, beside the fanouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphbraid.graph.csc import Csc


def sorted_by_time(csc: Csc, time: Tensor) -> tuple[Csc, Tensor]:
    """Sort the in-edges of each node by time, equal ones as they stand.

    Args:
        csc: the adjacency.
        time: ``(num_edges,)`` int64 time of each stored edge.

    Returns:
        The sorted adjacency, and the ``(num_edges,)`` int64 position in ``csc`` of each of its edges.
    """
    order = torch.from_numpy(np.lexsort((time.numpy(), csc.destinations().numpy())))
    weight = None if csc.weight is None else csc.weight[order]
    return Csc(csc.indptr, csc.indices[order], csc.num_src, weight, trusted=True), order


NO_TIME = (1 << 63) - 1
"""What stands for the time of an edge that has none; it is not compared with others."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Constraints:
    """What the draws of one mini-batch keep to."""

    disjoint: bool = False
    """Whether each seed has a tree of its own, which shares no node with another's."""
    times: Tensor | None = None
    """``(num_seeds,)`` int64: the tree of each seed has edges up to this time. Needs ``disjoint`` and the
    edges' :class:`EdgeTimes`."""
    excluded: Tensor | None = None
    """``(num_excluded,)`` int64 positions of edges that are not drawn, rising; None if there are none."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EdgeTimes:
    """When each edge of a graph arose, and which of the edges up to a seed's time are drawn."""

    time: Tensor
    """``(num_edges,)`` int64 by position in the graph; rises within the in-edges of each node, and where
    there are types, of each node and relation."""
    last: bool = False
    """Whether to draw the latest edges instead of any."""
    untimed: frozenset[int] = frozenset()
    """Numbers of the relations whose edges have no times (``NO_TIME``), in a graph with types: any of
    these are drawn."""
