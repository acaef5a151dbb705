"""RankPart: the part of a graph that one rank holds, by a saved partition; the rest is never read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.distributed.parts.saving import SavedPartition
from graphbraid.distributed.parts.split import Part
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.errors import DataError
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.levels import LAPLACIANS, Block, PartView, Route, aggregation, edges_of
from graphbraid.graph import Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc, index_dtype, indptr_of
from graphbraid.graph.identity import features_mark, topology_mark
from graphbraid.graph.scaled_features import Features
from graphbraid.ops.gather import gather_rows


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RankPart:
    """A rank's own nodes, their in-edges, and the features of these nodes and of the halo."""

    graph: Graph
    """Own nodes, then the halo, which has no in-edges here."""
    view: PartView
    """The place of these nodes in the whole graph."""
    num_nodes: int
    """Number of nodes of the whole graph."""
    num_edges: int
    """Number of edges of the whole graph."""
    marks: tuple[str, str]
    """Marks of the edges and the features of the graph that it was read from."""

    @classmethod
    def read(cls, saved: SavedPartition, rank: int, graph: Graph) -> RankPart:
        """Read a rank's part; of a graph in a store, only the rows that belong to it.

        Raises:
            DataError: a file is missing or damaged, or the partition is of another graph.
        """
        saved.check_sizes(graph)
        part = saved.part(rank)
        ids = torch.cat((part.owned, part.halo))
        first = graph.csc.indptr[part.owned]
        csc = _own_edges(graph.csc, part, ids, saved)
        route = Route(
            send=part.send,
            send_rows=tuple(part.send_indptr.diff().tolist()),
            receive_rows=tuple(part.halo_indptr.diff().tolist()),
        )
        local = Graph(csc=csc, x=_features(graph, ids), name=graph.name)
        view = PartView(ids=ids, first_edge=first, route=route)
        marks = topology_mark(graph.csc), features_mark(graph.x)
        return cls(graph=local, view=view, num_nodes=graph.num_nodes, num_edges=graph.num_edges, marks=marks)

    @property
    def nbytes(self) -> int:
        """Bytes of the part's nodes, edges and features."""
        view = self.view
        return self.graph.nbytes + sum(ids.nbytes for ids in (view.ids, view.first_edge, view.route.send))

    def blocks(self, num_blocks: int) -> list[Block]:
        """Return the rank's blocks of a program, with the exchange before each.

        Args:
            num_blocks: number of aggregations that follow each other.
        """
        csc, num_own = self.graph.csc, self.view.num_own
        held = torch.arange(csc.num_dst)
        share = Csc(csc.indptr[: num_own + 1], csc.indices, csc.num_src, csc.weight, trusted=True)
        edges = None if csc.weight is None else torch.arange(csc.num_edges)
        nothing = Csc(torch.zeros(csc.num_dst + 1, dtype=torch.int64), csc.indices[:0], num_own, trusted=True)
        exchange = Block(nothing, held[:num_own], held, None, self.view.route)
        return [exchange, Block(share, held, held[:num_own], edges)] * num_blocks

    def check_divisible(self, program: ir.Program) -> None:
        """Check that a program needs no more of the whole graph than a part holds.

        Raises:
            NotLoweredError: it does; the message names the operation.
        """
        if program.reads_edges:
            raise ir.NotLoweredError("edge features", "are not kept with a part", "ranks without partition=")
        for adjacency in _adjacencies(program.ops):
            if adjacency.kind in LAPLACIANS:
                what = "counts the edges that leave a node, which its owner does not hold"
                raise ir.NotLoweredError(f"the {adjacency.kind}", what, "ranks without partition=")

    def ask_for_scales(self, comm: Communicator, program: ir.Program) -> None:
        """Let the owners tell the factors of the halo's rows; all ranks call it with the same program."""
        view = self.view
        for adjacency in view.missing(_adjacencies(program.ops)):
            scale = aggregation(adjacency, self.graph.csc).src_scale
            halo = None
            if scale is not None:
                own = scale[view.route.send].contiguous()
                halo = comm.all_to_all(own, view.route.send_rows, view.route.receive_rows).wait()
            view.halo_scales[adjacency] = halo


def _adjacencies(ops: Iterable[ir.Operation]) -> list[ir.AdjacencyMatrix]:
    found = list[ir.AdjacencyMatrix]()
    for op in ops:
        if isinstance(op, ir.Hoisted):
            found += _adjacencies(op.of)
        elif isinstance(op, ir.Aggregate):
            found.append(op.adjacency)
    return found


def _own_edges(csc: Csc, part: Part, ids: Tensor, saved: SavedPartition) -> Csc:
    """Return the in-edges of the owned nodes, in the graph's order, by the numbers of the rank's nodes."""
    row_of = torch.full((csc.num_src,), -1, dtype=index_dtype(max(ids.numel(), 1)))
    row_of[ids] = torch.arange(ids.numel(), dtype=row_of.dtype)
    indptr = torch.zeros(ids.numel() + 1, dtype=torch.int64)
    degrees = csc.indptr[part.owned + 1] - csc.indptr[part.owned]
    torch.cumsum(degrees, 0, out=indptr[1 : part.num_owned + 1])
    indptr[part.num_owned + 1 :] = indptr[part.num_owned]
    indices = torch.empty(int(indptr[-1]), dtype=row_of.dtype)
    weight = None if csc.weight is None else torch.empty(indices.numel())
    for begin, positions in edges_of(csc, part.owned):
        at = slice(begin, begin + positions.numel())
        indices[at] = row_of[csc.indices[positions].long()]
        if csc.weight is not None and weight is not None:
            weight[at] = csc.weight[positions]
    if not _are_those_of(part, indptr, indices, weight):
        raise DataError(
            f"{saved.folder} was made for another graph: of the same size, but the edges of part {part.part} "
            "or their weights differ. Partition this graph"
        )
    return Csc(indptr, indices, ids.numel(), weight, trusted=True)


def _are_those_of(part: Part, indptr: Tensor, indices: Tensor, weight: Tensor | None) -> bool:
    """Return whether a part holds these edges, in their order, from its own and from other nodes."""
    is_local = indices < part.num_owned  # also the sources that the part does not know, which are below 0
    for csc, chosen, first in ((part.local, is_local, 0), (part.remote, ~is_local, part.num_owned)):
        before = indptr_of(chosen)
        own = None if weight is None else weight[chosen]
        if not torch.equal(csc.indptr, before[indptr[: part.num_owned + 1]]):
            return False
        if not torch.equal(csc.indices.long(), indices[chosen].long() - first):
            return False
        if csc.weight is None or own is None:
            if csc.weight is not own:
                return False
        elif not torch.equal(csc.weight, own):
            return False
    return True


def _features(graph: Graph, ids: Tensor) -> Features | None:
    x = graph.x
    if isinstance(x, SparseFeatures):
        return x.rows(ids)
    if isinstance(x, ScaledFeatures):
        values = gather_rows(x.values, ids, trusted=True)
        return ScaledFeatures(values=values, scale=x.scale[ids], trusted=True)
    return None if x is None else gather_rows(x, ids, trusted=True)
