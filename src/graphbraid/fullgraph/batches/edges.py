"""The edges of one mini-batch as a program reads them, level by level, each with only the rows it needs.

Nodes of a sampled batch stand in the order of their hops, so a layer needs prefixes alone: a prefix of the
nodes of each type, and a prefix of each relation's edges sorted by destination. Level ``l`` of a program with
``L`` levels of edges has the nodes within ``L - l`` hops of the seeds. A prefix is used only where its edges'
sources lie in the prefix of the level before. This is checked where the sampler does not guarantee it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.errors import ConfigError
from graphbraid.fullgraph.lowering.levels import aggregation
from graphbraid.fullgraph.program import AdjacencyMatrix, ComputedEdges, LevelNodes
from graphbraid.graph.csc import Csc, coo_to_csc, index_dtype
from graphbraid.graph.interop.pyg import entries_of, stored_of
from graphbraid.nn.adjacency import MadeOfTensors, check_edge_list, ends_of
from graphbraid.ops import Aggregation
from graphbraid.ops.gather import gather_rows
from graphbraid.sampling.sample import SampledEdges

_SORTED = MadeOfTensors()
"""The sorted form of edge lists, kept for lists that are passed again."""


@dataclass(eq=False, slots=True, kw_only=True)  # made in each step: frozen ones take three times as long
class RelationEdges:
    """The edges of one relation by destination: of all nodes together, or a block for each layer."""

    csc: Csc | None = None
    """In-edges by destination, with their weights. None with ``blocks``, and with ``drawn`` until
    :meth:`Levels.edges` reads it."""
    drawn: SampledEdges | None = None
    """All edges as they were drawn, which a native segment reads without a :class:`.Csc`. The last
    destinations, which have none, may be left out."""
    weight: Tensor | None = None
    """``(num_edges,)`` weights of the edges ``drawn``, if they have any."""
    order: Tensor | None = None
    """``(num_edges,)`` int64: edge ``e`` of ``csc`` is edge ``order[e]`` of the user's list; None if it is
    edge ``e``."""
    source: int = 0
    """Number of the node type of the sources."""
    destination: int = 0
    """Number of the node type of the destinations."""
    blocks: tuple[Csc, ...] = ()
    """Edges of each layer, outermost first, in a batch of layout ``blocks``."""
    starts: tuple[int, ...] = ()
    """Place of each block's first edge among all edges of the relation, which stand by hop."""

    @classmethod
    def of_list(
        cls, edge_index: Tensor, num_src: int, num_dst: int, weight: Tensor | None = None
    ) -> RelationEdges:
        """Sort an edge list by destination; the result is kept for as long as the tensors live unchanged.

        ``edge_index`` is ``(2, num_edges)`` int32 or int64 with sources in row 0; ``weight`` is
        ``(num_edges,)``.

        Raises:
            DataError: it is no edge list, or an id is out of range.
        """
        check_edge_list(edge_index)

        def make() -> tuple[Csc, Tensor | None]:
            ends = ends_of(edge_index, max(num_src, num_dst))
            # A batch's own list is ordered by destination: its sums then add in the order that was sampled.
            csc, order = coo_to_csc(*ends, num_src, num_dst, keeps_rows=True)
            # Detached, these edges keep their weights if `weight.data` is replaced.
            values = None if weight is None else weight.detach() if order is None else weight[order]
            return Csc(csc.indptr, csc.indices, num_src, values, trusted=True), order

        tensors = [edge_index] if weight is None else [weight, edge_index]
        csc, order = _SORTED.get(tensors, (num_src, num_dst), make)
        return cls(csc=csc, order=order)

    @classmethod
    def of_matrix(cls, matrix: Any, num_src: int, num_dst: int, *, weighted: bool) -> RelationEdges:
        """Return the entries of a sparse matrix with a row per destination; kept as those of a list are.

        It is PyTorch's or torch-sparse's, ``(num_dst, num_src)``. If ``weighted``, its values, if it has any,
        are weights.

        Raises:
            DataError: an id is out of range.
        """
        if isinstance(matrix, Tensor):
            parts = stored_of(matrix)
            kept: list[Any] = _SORTED.get([matrix], (num_src, num_dst, weighted), list)
            # A matrix shares the memory of the tensors that it is made of, and counts no writes to these.
            if not kept or not all(map(torch.equal, kept[1], parts)):
                copies = [one.detach().clone() for one in parts]
                dst, src, _ = entries_of(matrix, "adj_t")
                csc, order = coo_to_csc(src.clone(), dst, num_src, num_dst, keeps_rows=True)
                weight = (copies[-1] if order is None else copies[-1][order]) if weighted else None
                kept[:] = Csc(csc.indptr, csc.indices, num_src, weight, trusted=True), copies
            return cls(csc=kept[0])

        def make() -> Csc:
            indptr, indices, values = matrix.csr()
            found = Csc(indptr.long(), indices.to(index_dtype(max(num_src, num_dst))), num_src)
            weight = values.detach() if weighted and values is not None else None
            return Csc(found.indptr, found.indices, num_src, weight, trusted=True)

        keys = [one for one in matrix.coo() if one is not None]
        return cls(csc=_SORTED.get(keys, (num_src, num_dst, weighted), make))


@dataclass(eq=False, slots=True, kw_only=True)
class BatchEdges:
    """The edges of one batch, and the nodes that they join."""

    relations: Sequence[RelationEdges]
    """The edges of each relation, by its number; of a batch of one relation, all edges."""
    num_nodes: Sequence[int]
    """Number of the batch's nodes of each type."""
    hops: Sequence[Sequence[int]] = ()
    """Number of nodes of each type that the batch holds up to each hop, the seeds first; empty if that is not
    known."""
    is_directed: bool = False
    """Whether the sampler guarantees that edges into a hop's nodes come from it and the next hop alone."""

    def sizes(self, num_levels: int, last_coupled: int) -> list[tuple[int, ...]]:
        """Return the rows of each node type that each level needs, from the features' level to the seeds'.

        ``num_levels`` counts the features' level, too. ``last_coupled`` is the last level with an operation
        whose result depends on all rows; -1 if none.

        Raises:
            ConfigError: the batch has another number of blocks than the program has levels of edges.
        """
        num_blocks = len(self.relations[0].blocks) if self.relations else 0
        if num_blocks not in (0, num_levels - 1):
            raise ConfigError(
                f"the model aggregates {num_levels - 1} times, and a batch of layout 'blocks' has edges "
                f"for {num_blocks}; sample as many hops, or use layout='subgraph'"
            )
        every = [tuple(self.num_nodes)]
        if not self.hops:
            return every * num_levels
        by_hop = [*zip(*self.hops, strict=True)]
        sizes = by_hop[-1:] * (num_levels - len(by_hop)) + by_hop[:num_levels][::-1]
        if num_blocks:
            return sizes
        sizes[: last_coupled + 1] = every * (last_coupled + 1)
        return sizes if self.is_directed or self._are_closed(sizes) else every * num_levels

    def _are_closed(self, sizes: Sequence[tuple[int, ...]]) -> bool:
        """Return whether the in-edges of each level's rows come from rows of the level before."""
        for one in self.relations:
            csc, ends = one.csc, ((src[one.source], dst[one.destination]) for src, dst in pairwise(sizes))
            assert csc is not None
            for num_src, num_dst in dict.fromkeys(ends):
                sources = csc.indices[: int(csc.indptr[num_dst])]
                if num_src < csc.num_src and sources.numel() and int(sources.max()) >= num_src:
                    return False
        return True


class _Reordered(torch.autograd.Function):
    """Rows by a permutation. Backward gathers by its inverse: PyTorch's adds row by row, in one thread."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return gather_rows(rows, order, trusted=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        return _Reordered.apply(grad, inverse), None  # type: ignore[no-untyped-call]


class LevelEdges:
    """The edges from one level of a program to the next.

    Args:
        whole: the edges of all of the batch's nodes, or the layer's block; degrees are counted in them. The
            last destinations, which have no edges, may be left out.
        csc: the part of them into the next level's rows; or the numbers of its sources and destinations, of
            which it is made when first read.
        maps: linear maps over ``whole`` made so far, which levels of one batch share.
        num_dst: number of destinations of ``whole``, with those left out; None if none are.
        order: see :class:`RelationEdges`.
        start: place of the first edge of ``whole`` among those of the relation.
        parts: parts of ``whole`` made so far, by these numbers, which levels of one batch share.
    """

    def __init__(
        self,
        whole: Csc,
        csc: Csc | tuple[int, int],
        maps: dict[Hashable, Aggregation],
        *,
        num_dst: int | None = None,
        order: Tensor | None = None,
        start: int = 0,
        parts: dict[tuple[int, int], Csc] | None = None,
    ) -> None:
        self._drawn, self._maps, self._order, self._start = whole, maps, order, start
        self._whole_sizes = whole.num_src, whole.num_dst if num_dst is None else num_dst
        self.sizes = (csc.num_src, csc.num_dst) if isinstance(csc, Csc) else csc
        """Number of sources and of destinations."""
        self._parts = {} if parts is None else parts
        if isinstance(csc, Csc):
            self._parts = {self.sizes: csc}

    @property
    def csc(self) -> Csc:
        """The edges into the next level's rows."""
        return self._part(self.sizes)

    @property
    def _whole(self) -> Csc:
        """All edges, with a row for each destination."""
        return self._part(self._whole_sizes)

    def _part(self, sizes: tuple[int, int]) -> Csc:
        if (part := self._parts.get(sizes)) is None:
            part = self._parts[sizes] = _first_rows(self._drawn, *sizes)
        return part

    @property
    def group(self) -> int:
        """A number that levels share if all destinations that they have in common have the same edges."""
        return id(self._parts)

    @property
    def is_whole(self) -> bool:
        """Whether they are all edges of the batch, whose transpose levels and calls share."""
        return self.sizes == self._whole_sizes

    def rows_of(self, values: Tensor) -> Tensor:
        """Return the rows of ``values``, which has one for each edge of the user's list, for these edges."""
        last = self._start + self.csc.num_edges
        if self._order is None:
            return values[self._start : last]
        if last == len(values) and values.ndim == 2 and values.requires_grad:
            made: Tensor = _Reordered.apply(values, self._order)  # type: ignore[no-untyped-call]
            return made
        return values[self._order[:last]]

    def aggregation(self, adjacency: AdjacencyMatrix, dtype: torch.dtype) -> Aggregation:
        """Return the linear map that an adjacency stands for, with the coefficients of the whole batch."""
        csc, how = self.csc, self._map(adjacency, dtype)
        if plain_map(adjacency) is not None:
            return how.with_parts(csc=csc, weight=csc.weight if adjacency.weighted else None)
        if csc is how.csc:
            return how
        return how.with_parts(
            csc=csc,
            weight=None if how.weight is None else how.weight[: csc.num_edges],
            src_scale=None if how.src_scale is None else how.src_scale[: csc.num_src],
            dst_scale=None if how.dst_scale is None else how.dst_scale[: csc.num_dst],
            loop=None if how.loop is None else how.loop[: csc.num_dst],
        )

    def _map(self, adjacency: AdjacencyMatrix, dtype: torch.dtype) -> Aggregation:
        """Return an adjacency's map over the whole batch; of a plain sum, one over no edges.

        Plain sums have no coefficients to compute, and one is like another but for the edges.
        """
        if (plain := plain_map(adjacency)) is not None:
            return plain
        key = (adjacency, dtype)
        if key not in self._maps:
            self._maps[key] = aggregation(adjacency, self._whole, dtype)
        return self._maps[key]

    def map_fields(self, adjacency: AdjacencyMatrix) -> tuple[Any, ...]:
        """Return a float32 map as a native segment takes it; the arrays may go on behind these edges."""
        how = self._map(adjacency, torch.float32)
        edges = self._drawn if self.sizes[1] <= self._drawn.num_dst else self._whole
        weight = edges.weight if adjacency.weighted and plain_map(adjacency) else how.weight
        return map_fields(how, edges, *self.sizes, weight)

    def computed(self, edges: ComputedEdges, dtype: torch.dtype) -> tuple[Csc, tuple[Tensor, ...]]:
        """Return the edges that a model computes of the whole batch's, between these rows, and their values.

        Raises:
            ConfigError: one leads from a node that has no row.
        """
        found, values = edges.of(self._whole, dtype)
        part = _first_rows(found, self.csc.num_src, self.csc.num_dst)
        if part.num_edges and int(part.indices.max()) >= part.num_src:
            raise ConfigError("edges that the model computes lead from nodes outside of the layer's rows")
        return part, tuple(value[: part.num_edges] for value in values)


def map_fields(
    how: Aggregation, csc: Csc | SampledEdges, num_src: int, num_dst: int, weight: Tensor | None
) -> tuple[tuple[Any, ...], int, int]:
    """Return a map over edges as a native segment takes it: its fields, and the numbers of rows."""
    factors = weight, how.src_scale, how.dst_scale, how.loop
    fields = csc.indptr, csc.indices, how.mean, how.skip_loops, how.loop_scale, *factors
    return fields, num_src, num_dst


@cache
def plain_map(adjacency: AdjacencyMatrix) -> Aggregation | None:
    """Return the sum or mean over no edges that an adjacency without coefficients stands for, else None."""
    if adjacency.kind not in ("sum", "mean") or adjacency.scale != 1:
        return None
    nothing = Csc(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 0, trusted=True)
    return aggregation(replace(adjacency, weighted=False), nothing, torch.float32)


class Levels:
    """The levels of a program on one batch, with the edges between them, which are made when first read.

    Args:
        edges: the edges of the batch.
        sizes: number of rows of each node type at each level, from the features' to the outputs'.
        made: edges that are made already, by level and relation.
    """

    def __init__(
        self,
        edges: BatchEdges,
        sizes: Sequence[tuple[int, ...]],
        made: Mapping[tuple[int, int], LevelEdges] | None = None,
    ) -> None:
        self._edges, self.sizes = edges, sizes
        self._made = dict(made or {})
        self._parts: dict[int, dict[tuple[int, int], Csc]] = {}
        self._maps: dict[int, dict[Hashable, Aggregation]] = {}
        self._fields: dict[tuple[int, object], tuple[Any, ...]] = {}

    @property
    def are_drawn(self) -> bool:
        """Whether a sampler drew the edges, so that no later batch has them."""
        return self._edges.is_directed

    @property
    def sources(self) -> list[Tensor]:
        """The sources of edges that no sampler drew; they may lie in the user's list, which counts writes."""
        cscs = () if self.are_drawn else (one.csc for one in self._edges.relations)
        found = [one.indices for one in cscs if one is not None]
        return [one for one in found if not one.is_inference()]

    def num_rows(self, place: LevelNodes) -> int:
        """Return the number of rows that a value has."""
        return self.sizes[place.level][place.node_type]

    def edges(self, level: int, number: int) -> LevelEdges:
        """Return the edges of the relation of a number from a level to the next."""
        if (found := self._made.get((level, number))) is None:
            found = self._made[level, number] = self._between(level, number)
        return found

    def map_fields(
        self, level: int, number: int, adjacency: AdjacencyMatrix, plain: Aggregation | None
    ) -> tuple[Any, ...]:
        """Return :meth:`LevelEdges.map_fields`; without making these edges, if the drawn ones say it all.

        ``plain`` is :func:`plain_map` of the adjacency.
        """
        if (made := self._made.get((level, number))) is not None:
            return made.map_fields(adjacency)
        of, key = self._edges.relations[number], (number, plain or adjacency)
        num_dst = self.sizes[level + 1][of.destination]
        if (fields := self._fields.get(key)) is None:  # levels differ in the sizes alone
            fields = self._fields[key] = self._fields_of(of, adjacency, plain)
        if not fields or num_dst >= fields[0].numel():
            return self.edges(level, number).map_fields(adjacency)
        return fields, self.sizes[level][of.source], num_dst

    def _fields_of(
        self, of: RelationEdges, adjacency: AdjacencyMatrix, plain: Aggregation | None
    ) -> tuple[Any, ...]:
        """Return the fields of a map over all edges of a relation; () if levels have edges of their own."""
        if of.blocks or (plain is None and adjacency.kind != "gcn"):
            return ()
        if (drawn := of.drawn) is not None and of.weight is None and plain is not None:
            return map_fields(plain, drawn, 0, 0, None)[0]
        if drawn is not None and of.weight is None and adjacency.scale == 1:
            # gcn_norm's factors, without its checks and without what it keeps for another call. Drawn edges
            # end before nodes without in-edges, whose degrees are known.
            kernels: Any = native.kernels()
            scale = torch.empty(self._edges.num_nodes[of.source], dtype=torch.float32)
            loops = adjacency.loop_scale
            skips = kernels.gcn_scale(drawn.indptr, drawn.indices, loops, scale)
            return drawn.indptr, drawn.indices, False, skips, loops, None, scale, scale, None
        csc = self._whole(of)
        how = plain or aggregation(adjacency, csc, torch.float32)
        weight = csc.weight if plain is not None and adjacency.weighted else how.weight
        return map_fields(how, csc, 0, 0, weight)[0]

    def _whole(self, of: RelationEdges) -> Csc:
        """Return all edges of a relation that has no blocks."""
        if of.csc is None:
            assert of.drawn is not None
            num_src = self._edges.num_nodes[of.source]
            of.csc = Csc(of.drawn.indptr, of.drawn.indices, num_src, of.weight, trusted=True)
        return of.csc

    def _between(self, level: int, number: int) -> LevelEdges:
        of = self._edges.relations[number]
        if of.blocks:
            block, num_dst = of.blocks[level], self.sizes[level][of.destination]
            return LevelEdges(block, block, {}, num_dst=num_dst, start=of.starts[level])
        whole, num_dst = self._whole(of), self._edges.num_nodes[of.destination]
        sizes = self.sizes[level][of.source], self.sizes[level + 1][of.destination]
        maps, parts = self._maps.setdefault(number, {}), self._parts.setdefault(number, {})
        return LevelEdges(whole, sizes, maps, num_dst=num_dst, order=of.order, parts=parts)


def _first_rows(whole: Csc, num_src: int, num_dst: int) -> Csc:
    """Return the edges into the first destinations. Those behind the last one have no in-edges."""
    if (num_src, num_dst) == (whole.num_src, whole.num_dst):
        return whole
    if num_dst > whole.num_dst:
        rest = whole.indptr[-1:].expand(num_dst - whole.num_dst)
        return Csc(torch.cat((whole.indptr, rest)), whole.indices, num_src, whole.weight, trusted=True)
    last = int(whole.indptr[num_dst])
    weight = None if whole.weight is None else whole.weight[:last]
    return Csc(whole.indptr[: num_dst + 1], whole.indices[:last], num_src, weight, trusted=True)
