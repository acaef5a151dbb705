"""LevelsOnParts: a program runs level by level on a graph whose ranks each hold the lists of their own nodes.

Each rank computes rows of its own nodes alone, in chunks. After a level the rows that nodes of other ranks
read travel to these ranks, once each, and are kept there as own rows are. So a level computes without
messages, and its rows are those that one process computes of the whole graph, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.distributed.shards.exchange import NO_IDS, Routed
from graphbraid.errors import ResourceError
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.batches.layer_wise import ChunkEdges, LayerWise
from graphbraid.graph import SparseFeatures
from graphbraid.graph.types import Relation

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import ShardedGraph

_OF_OTHERS = " of other ranks"
"""Ending of the names under which rows of other ranks' nodes are kept."""
_TRAVELLING = 8
"""Rows that travel at a time, to and from all ranks, take an eighth of the budget."""


class LevelsOnParts(LayerWise):
    """A program that runs level by level over the nodes of this rank; all ranks make it and run it together.

    Args:
        program: as for :class:`.LayerWise`.
        graph: this rank's parts of a graph.
        options: as for :class:`.LayerWise`.
    """

    most_nodes = math.inf

    def __init__(self, program: ir.Program, graph: ShardedGraph, *args: Any, **options: Any) -> None:
        super().__init__(program, graph, *args, **options)
        self._parts, self._shards = graph, graph.shards
        self._halos: dict[ir.LevelNodes, Tensor] = {}
        """Nodes of other ranks that nodes of this rank read at a level, by their type, ascending."""
        self._read_at: dict[str, set[int]] = {}
        """Levels at which a value is read along edges."""
        for op in program.ops:
            level = program.level(op.out)
            for value in op.inputs if op.moves and not isinstance(op, ir.DestinationRows) else ():
                if program.level(value) < level:
                    self._read_at.setdefault(self.root(value), set()).add(level)
        for value in self._read_at:
            self._last_read[value + _OF_OTHERS] = max(self._read_at[value])

    def run(self, nodes: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the outputs for ``nodes``, of any rank, as :meth:`.LayerWise.run` does.

        Each rank gives nodes of its own choice, or none. All ranks must take all chunks.

        Raises:
            ResourceError: on all ranks, if a node of one rank does not fit the budget; on one rank, if its
                disk is full.
        """
        shards, program = self._shards, self.program
        output, output_type = program.output, program.node_type(program.output)
        owners = shards.by_type[output_type].owners(nodes)
        given = Routed(shards.ranks, owners).ask(nodes)
        self._halos.clear()
        passes = self.passes(torch.unique(given))
        try:
            cuts, told = [self.cut(one) for one in passes], ""
        except ResourceError as error:
            cuts, told = [], str(error)
        if first := next(filter(None, shards.ranks.gather(told)), ""):
            raise ResourceError(first)
        self._make_scales()
        self._fetch(program.inputs)
        for one, ends in zip(passes, cuts, strict=True):
            self.begin(one)
            for start, end in ends:
                self._check()
                self.keep(one, start, self.rows(one, one.nodes[start:end]))
            self._fetch(one.results)
        yield from self._of_owners(nodes, output_type, program.width(output), self._kept[output].gather)

    # ---- nodes that a level reads

    def _sources_of(self, ids: Tensor | None, relation: Relation | None, place: ir.LevelNodes) -> Tensor:
        """Return the own nodes that nodes of any rank read, and note the others that own nodes read."""
        assert ids is not None, "no level has all nodes of the graph"
        comm, source = self._shards.ranks, place.node_type if relation is None else relation.source
        read = self._all_sources(ids, relation, place.node_type)
        owners = self._shards.by_type[source].owners(read)
        at = ir.LevelNodes(place.level, source)
        others = read[owners != comm.rank]
        self._halos[at] = torch.unique(torch.cat([self._halos.get(at, others[:0]), others]))
        given = Routed(comm, owners).ask(read)
        own: Tensor = torch.unique(given)
        return own

    def _halo(self, node_type: int, levels: set[int]) -> Tensor:
        """Return the nodes of a type that other ranks own and that are read at some levels, ascending."""
        found = (self._halos[ir.LevelNodes(level, node_type)] for level in levels)
        ids: Tensor = torch.unique(torch.cat([NO_IDS, *found]))
        return ids

    # ---- rows of other ranks

    def _of_owners(
        self, ids: Tensor, node_type: int, width: int, own_rows: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the rows of nodes of any rank, sent by their owners, in chunks; all ranks call it together.

        ``ids`` are ``(num_ids,)`` int64, possibly none. ``own_rows`` gives the rows of this rank's nodes.
        """
        of_type, comm = self._shards.by_type[node_type], self._shards.ranks
        room = self._budget // (_TRAVELLING * comm.size)
        most = max(1, room // (self.dtype.itemsize * max(1, width)))
        rounds = comm.all_reduce(torch.tensor([-(-ids.numel() // most)]), "max").wait()
        for start in range(0, int(rounds) * most, most):
            self._check()
            part = ids[start : start + most]
            routed = Routed(comm, of_type.owners(part))
            given = routed.ask(part)
            rows = routed.answers(own_rows(given).contiguous())
            if part.numel():
                yield start, rows

    def _fetch(self, values: Iterable[str]) -> None:
        """Keep the rows of values that nodes of this rank read of other ranks' nodes."""
        for value in (one for one in values if one in self._read_at):
            node_type, width = self.program.node_type(value), self.program.width(value)
            of_type, is_given = self._shards.by_type[node_type], value in self.program.inputs
            own_rows = of_type.own_rows if is_given else self._kept[value].gather
            halo = self._halo(node_type, self._read_at[value])
            room = self._make_room(value + _OF_OTHERS, halo, width)
            for start, rows in self._of_owners(halo, node_type, width, own_rows):
                made = of_type.in_float32(rows, halo[start : start + rows.shape[0]]) if is_given else rows
                room.write(start, made.to(self.dtype))

    def rows_of(self, value: str, nodes: Tensor) -> Tensor | SparseFeatures:
        """Return the rows of a value of own nodes, and of other ranks' nodes that own ones read."""
        value = self.root(value)
        of_type = self._shards.by_type[self.program.node_type(value)]
        is_own = of_type.owners(nodes) == self._shards.ranks.rank
        own = super().rows_of(value, nodes[is_own])
        if own.shape[0] == nodes.numel():
            return own
        assert isinstance(own, Tensor), "parts hold dense features"
        rows = own.new_empty(nodes.numel(), own.shape[1])
        rows[is_own] = own
        rows[~is_own] = self._kept[value + _OF_OTHERS].gather(nodes[~is_own]).to(own.device)
        return rows

    # ---- weights and features of edges

    def _make_scales(self) -> None:
        """Compute the factors of GCN's normalisation for own nodes, and fetch those of the others."""
        found = dict.fromkeys(op.adjacency for op in self.program.ops if isinstance(op, ir.Aggregate))
        for adjacency in (one for one in found if one.kind == "gcn"):
            kind = 0 if adjacency.relation is None else adjacency.relation.destination
            own = self._shards.by_type[kind].owned
            others = self._halo(kind, {one.level for one in self._halos if one.node_type == kind})
            scale = torch.full((self._counts[kind], 1), torch.nan, dtype=self.dtype)
            scale[own, 0] = self._scale_of(own, adjacency, kind)
            for start, rows in self._of_owners(others, kind, 1, scale.__getitem__):
                scale[others[start : start + rows.shape[0]]] = rows
            self._scales[adjacency] = scale.squeeze(1)

    def source_scale(self, adjacency: ir.AdjacencyMatrix, node_type: int) -> Tensor:
        """Return the factors of own nodes and of those they read; NaN for all others."""
        return self._scales[adjacency]

    def edge_attr(self, edges: ChunkEdges) -> Tensor | SparseFeatures:
        """Return the features of a chunk's edges, which lie with their destinations."""
        if self._shards.lists == "whole":
            return super().edge_attr(edges)
        nodes, counts = edges.sources[: edges.csc.num_dst], edges.csc.indptr.diff()
        positions = self._parts.positions(nodes, counts, edges.positions)
        return self._shards.edges.own_rows("edge_attr", positions)
