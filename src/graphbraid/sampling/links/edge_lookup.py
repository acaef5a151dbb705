"""EdgeLookup and LinkLookup: which edges of a graph join two nodes, by binary search in its rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.graph.types import EdgeType, Relation, Types

I64 = npt.NDArray[np.int64]


class EdgeLookup:
    """The edges of an adjacency by their two ends.

    If its rows are not sorted by source, a sorted copy is kept.

    Args:
        csc: the adjacency; row ``v`` holds the sources of ``v``.
    """

    def __init__(self, csc: Csc) -> None:
        by_source, perm = csc.sort_rows()
        self._indptr, self._indices = by_source.indptr.numpy(), by_source.indices.numpy()
        self._perm: I64 | None = None if perm is None else perm.numpy()

    def has(self, src: I64, dst: I64) -> npt.NDArray[np.bool_]:
        """Return for each pair whether there is an edge from ``src`` to ``dst``."""
        place = self._places(src, dst)
        is_inside = place < self._indptr[dst + 1]
        found: npt.NDArray[np.bool_] = is_inside.copy()
        found[is_inside] = self._indices[place[is_inside]] == src[is_inside]
        return found

    def positions(self, src: I64, dst: I64) -> I64:
        """Return the positions of all edges from a ``src`` to its ``dst``, each once, ascending."""
        first, last = self._places(src, dst), self._places(src + 1, dst)
        counts = last - first
        starts = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) + np.repeat(first - starts, counts)
        found: I64 = np.unique(places if self._perm is None else self._perm[places])
        return found

    def between(self, links: Tensor, *, reverse: bool) -> Tensor:
        """Return the positions of the edges of links ``(2, num)``; with ``reverse`` in both directions."""
        src, dst = links.numpy()
        if reverse:
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        return torch.from_numpy(self.positions(src, dst))

    def _places(self, src: I64, dst: I64) -> I64:
        """Return the place of the first source of ``dst`` that is at least ``src``."""
        low, high = self._indptr[dst].copy(), self._indptr[dst + 1].copy()
        while len(active := np.flatnonzero(low < high)):
            middle = (low[active] + high[active]) // 2
            is_below = self._indices[middle] < src[active]
            low[active] = np.where(is_below, middle + 1, low[active])
            high[active] = np.where(is_below, high[active], middle)
        return low


class LinkLookup(EdgeLookup):
    """The edges of a relation, and of the relations in the other direction, by their ends.

    Args:
        types: types and relations of the graph.
        edge_type: the relation of the links.
    """

    def __init__(self, types: Types, edge_type: EdgeType) -> None:
        super().__init__(types.rows)
        self._own = types.relation(edge_type)
        ends = self._own.destination, self._own.source
        self._back = [one for one in types.relations() if (one.source, one.destination) == ends]

    def between(self, links: Tensor, *, reverse: bool) -> Tensor:
        """Return the positions of the edges that join the ends of ``links``, ascending.

        Args:
            links: ``(2, num)`` int64 sources and destinations, ids within their types.
            reverse: whether to return also the edges of every relation from a link's destination to its
                source.
        """
        src, dst = links.numpy()
        asked = [_placed(self._own, src, dst)]
        if reverse:
            asked += [_placed(relation, dst, src) for relation in self._back]
        sources, rows = (np.concatenate(part) for part in zip(*asked, strict=True))
        return torch.from_numpy(self.positions(sources, rows))


def _placed(relation: Relation, src: I64, dst: I64) -> tuple[I64, I64]:
    """Return the sources' ids in the whole graph, and the rows of the destinations."""
    return src + relation.first_source, relation.first_row + dst * relation.stride
