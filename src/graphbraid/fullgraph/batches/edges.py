"""The edges of one mini-batch as a program reads them, level by level, each with only the rows it needs.

Nodes of a sampled batch stand in the order of their hops, so what a layer needs is a prefix: of the nodes,
and of the edges sorted by destination. Level ``l`` of a program with ``L`` levels of edges has the nodes
within ``L - l`` hops of the seeds. A prefix is used only where the sources of its edges lie in the prefix of
the level before, which is checked where the sampler does not guarantee it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.lowering.levels import aggregation
from graphbraid.fullgraph.program import AdjacencyMatrix
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.nn.adjacency import MadeOfTensors, check_edge_list, ends_of
from graphbraid.ops import Aggregation

_SORTED = MadeOfTensors()
"""What edge lists were sorted into, for lists that are passed again."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class BatchEdges:
    """The edges of one batch by destination: of all its nodes together, or a block for each layer."""

    csc: Csc | None = None
    """In-edges of all nodes, with their weights. None with ``blocks``."""
    order: Tensor | None = None
    """``(num_edges,)`` int64: edge ``e`` of ``csc`` is edge ``order[e]`` of the user's list; None if it is
    edge ``e``."""
    hops: tuple[int, ...] = ()
    """Number of nodes that the batch holds up to each hop, the seeds first; empty if that is not known."""
    is_directed: bool = False
    """Whether the sampler guarantees that edges into a hop's nodes come from it and the next hop alone."""
    blocks: tuple[Csc, ...] = ()
    """Edges of each layer, outermost first, in a batch of layout ``blocks``."""
    starts: tuple[int, ...] = ()
    """Place of each block's first edge among all edges of the batch, which stand by hop."""

    @classmethod
    def of_list(cls, edge_index: Tensor, num_nodes: int, weight: Tensor | None, **hops: Any) -> BatchEdges:
        """Sort an edge list by destination; the result is kept for as long as the tensors live unchanged.

        Args:
            edge_index: ``(2, num_edges)`` int32 or int64, sources in row 0.
            num_nodes: number of the batch's nodes.
            weight: ``(num_edges,)`` weights, or None.
            **hops: ``hops`` and ``is_directed``.

        Raises:
            DataError: it is no edge list, or an id is out of range.
        """
        check_edge_list(edge_index)

        def make() -> tuple[Csc, Tensor | None]:
            csc, order = coo_to_csc(*ends_of(edge_index, num_nodes), num_nodes, num_nodes)
            values = weight if weight is None or order is None else weight[order]
            return Csc(csc.indptr, csc.indices, num_nodes, values, trusted=True), order

        tensors = [edge_index] if weight is None else [weight, edge_index]
        csc, order = _SORTED.get(tensors, num_nodes, make)
        return cls(csc=csc, order=order, **hops)

    def sizes(self, num_levels: int, last_coupled: int, num_nodes: int) -> list[int]:
        """Return the number of rows that each level needs, from the features' level to the seeds'.

        Args:
            num_levels: levels of the program, including the features'.
            last_coupled: the last level with an operation whose result depends on all rows; -1 if none.
            num_nodes: number of the batch's nodes.

        Raises:
            ConfigError: the batch has another number of blocks than the program has levels of edges.
        """
        if self.blocks:
            if len(self.blocks) != num_levels - 1:
                raise ConfigError(
                    f"the model aggregates {num_levels - 1} times, and a batch of layout 'blocks' has edges "
                    f"for {len(self.blocks)}; sample as many hops, or use layout='subgraph'"
                )
            return [self.blocks[0].num_src, *(block.num_dst for block in self.blocks)]
        hops = self.hops or (num_nodes,)
        needed = [hops[min(left, len(hops) - 1)] for left in reversed(range(num_levels))]
        sizes = [num_nodes if level <= last_coupled else count for level, count in enumerate(needed)]
        return sizes if self.is_directed or self._are_closed(sizes) else [num_nodes] * num_levels

    def _are_closed(self, sizes: Sequence[int]) -> bool:
        """Return whether the in-edges of each level's rows come from rows of the level before."""
        assert self.csc is not None
        for num_src, num_dst in dict.fromkeys(pairwise(sizes)):
            sources = self.csc.indices[: int(self.csc.indptr[num_dst])]
            if num_src < self.csc.num_src and sources.numel() and int(sources.max()) >= num_src:
                return False
        return True


class LevelEdges:
    """The edges from one level of a program to the next.

    Args:
        whole: the edges of all of the batch's nodes, or the layer's block, with a destination for each
            source; degrees are counted in them.
        csc: the part of them into the next level's rows.
        maps: linear maps over ``whole`` made so far, which levels of one batch share.
        order: see :class:`BatchEdges`.
        start: place of the first edge of ``whole`` among those of the batch.
    """

    def __init__(
        self,
        whole: Csc,
        csc: Csc,
        maps: dict[Hashable, Aggregation],
        *,
        order: Tensor | None = None,
        start: int = 0,
    ) -> None:
        self._whole, self.csc, self._maps, self._order, self._start = whole, csc, maps, order, start

    def rows_of(self, values: Tensor) -> Tensor:
        """Return the rows of ``values``, which has one for each edge of the user's list, for these edges."""
        last = self._start + self.csc.num_edges
        return values[self._start : last] if self._order is None else values[self._order[:last]]

    def aggregation(self, adjacency: AdjacencyMatrix, dtype: torch.dtype) -> Aggregation:
        """Return the linear map that an adjacency stands for, with the coefficients of the whole batch."""
        csc, whole = self.csc, self._whole
        if adjacency.kind in ("sum", "mean") and adjacency.scale == 1:
            return aggregation(adjacency, csc, dtype)
        key = (adjacency, dtype)
        if key not in self._maps:
            self._maps[key] = aggregation(adjacency, whole, dtype)
        how = self._maps[key]
        if csc is whole:
            return how
        return replace(
            how,
            csc=csc,
            weight=None if how.weight is None else how.weight[: csc.num_edges],
            src_scale=None if how.src_scale is None else how.src_scale[: csc.num_src],
            dst_scale=None if how.dst_scale is None else how.dst_scale[: csc.num_dst],
            loop=None if how.loop is None else how.loop[: csc.num_dst],
        )


@dataclass(frozen=True, eq=False, slots=True)
class Levels:
    """The levels of a program on one batch."""

    sizes: Sequence[int]
    """Number of rows of each level, from the features' to the outputs'."""
    edges: Sequence[LevelEdges]
    """The edges from each level to the next."""


def levels_of(edges: BatchEdges, sizes: Sequence[int]) -> Levels:
    """Return levels of ``sizes`` rows, with the edges between them."""
    if edges.blocks:
        pairs = zip(edges.blocks, edges.starts, strict=True)
        of_blocks = [LevelEdges(with_all_rows(block), block, {}, start=start) for block, start in pairs]
        return Levels(sizes, of_blocks)
    whole = edges.csc
    assert whole is not None
    maps: dict[Hashable, Aggregation] = {}
    made: dict[tuple[int, int], Csc] = {(whole.num_src, whole.num_dst): whole}
    found = []
    for between in pairwise(sizes):
        if between not in made:
            made[between] = _first_rows(whole, *between)
        found.append(LevelEdges(whole, made[between], maps, order=edges.order))
    return Levels(sizes, found)


def with_all_rows(csc: Csc) -> Csc:
    """Return the same edges with a destination for each source; the last ones have no in-edges."""
    if csc.num_dst == csc.num_src:
        return csc
    rest = csc.indptr[-1:].expand(csc.num_src - csc.num_dst)
    return Csc(torch.cat((csc.indptr, rest)), csc.indices, csc.num_src, csc.weight, trusted=True)


def _first_rows(whole: Csc, num_src: int, num_dst: int) -> Csc:
    last = int(whole.indptr[num_dst])
    weight = None if whole.weight is None else whole.weight[:last]
    return Csc(whole.indptr[: num_dst + 1], whole.indices[:last], num_src, weight, trusted=True)


__all__ = ["BatchEdges", "LevelEdges", "Levels", "levels_of", "with_all_rows"]
