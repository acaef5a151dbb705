"""TypedLinkLookup: which edges of a graph with types are links of one relation, or lead back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.graph.types import EdgeType, Relation, Types
from graphbraid.sampling.links.edge_lookup import EdgeLookup

I64 = npt.NDArray[np.int64]


class TypedLinkLookup:
    """The edges of a relation, and of the relations that lead back, by their ends.

    Args:
        types: types and relations of the graph.
        edge_type: the relation of the links.
    """

    def __init__(self, types: Types, edge_type: EdgeType) -> None:
        self._edges = EdgeLookup(types.rows)
        self._own = types.relation(edge_type)
        ends = self._own.destination, self._own.source
        self._back = [one for one in types.relations() if (one.source, one.destination) == ends]

    def between(self, links: Tensor, *, reverse: bool) -> Tensor:
        """Return the positions of the edges that ``links`` are, rising.

        Args:
            links: ``(2, num)`` int64 sources and destinations, ids within their types.
            reverse: whether to return also those of every relation that lead from a link's destination to its
                source.
        """
        src, dst = links.numpy()
        asked = [_placed(self._own, src, dst)]
        if reverse:
            asked += [_placed(relation, dst, src) for relation in self._back]
        sources, rows = (np.concatenate(part) for part in zip(*asked, strict=True))
        return torch.from_numpy(self._edges.positions(sources, rows))


def _placed(relation: Relation, src: I64, dst: I64) -> tuple[I64, I64]:
    """Return the sources' ids in the whole graph, and the rows of the destinations."""
    return src + relation.first_source, relation.first_row + dst * relation.stride
