"""One rank's part: of a lowered program, with exchanges as operations of it, and of a saved partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.distributed.partitioning.records import Partition
from graphbraid.distributed.parts.saving import SavedPartition
from graphbraid.distributed.parts.split import Part
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.levels import (
    LAPLACIANS,
    Block,
    Blocks,
    PartView,
    Route,
    aggregation,
    edges_of,
    renumbered_edges,
)
from graphbraid.fullgraph.lowering.lower_program import Lowered, output_rows
from graphbraid.fullgraph.ranks.halo import NAME, must_travel, read_along_edges, values_that_may_travel
from graphbraid.graph import Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc, index_dtype, indptr_of
from graphbraid.graph.identity import features_mark, topology_mark
from graphbraid.graph.scaled_features import Features
from graphbraid.ops.gather import gather_rows, places_of
from graphbraid.signatures import typed


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
        """Return the rank's blocks of a program with ``num_blocks``, and an exchange before each."""
        csc, num_own = self.graph.csc, self.view.num_own
        held = torch.arange(csc.num_dst)
        share = Csc(csc.indptr[: num_own + 1], csc.indices, csc.num_src, csc.weight, trusted=True)
        edges = None if csc.weight is None else torch.arange(csc.num_edges)
        nothing = Csc(torch.zeros(csc.num_dst + 1, dtype=torch.int64), csc.indices[:0], num_own, trusted=True)
        exchange = Block(nothing, held[:num_own], held, None, self.view.route)
        return [exchange, Block(share, held, held[:num_own], edges)] * num_blocks

    def check_divisible(self, program: ir.Program) -> None:
        """Raise NotLoweredError, naming the operation, if one needs more of the graph than a part holds."""
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
    row_of = places_of(ids, csc.num_src, index_dtype(max(ids.numel(), 1)))
    indptr, indices, _ = renumbered_edges(csc, part.owned, row_of, keep_edges=False)
    indptr, weight = torch.cat((indptr, indptr[-1:].expand(ids.numel() - part.num_owned))), csc.weight
    if weight is not None:  # by some edges at a time: their positions take more memory than the weights
        weight = torch.cat([weight[:0], *(weight[at] for _, at in edges_of(csc, part.owned))])
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


Weigh = Callable[[ir.Program, int], ir.Decision | None]
"""Decides whether rows of level 0 travel; None if there is nothing to decide.

It is given the program of all ranks, and the rows that this rank would receive or send, if more."""


@typed
def distribute(lowered: Lowered, partition: Partition, rank: int, weigh: Weigh | None = None) -> Lowered:
    """Return the part of a lowered program that one rank runs; nothing is sent.

    The rank computes the rows of the nodes that it owns. Where an aggregation, a maximum or an attention
    reads rows of other ranks' nodes, an :class:`.Exchange` before it brings them: of each level only those
    that the needed outputs depend on. Rows before the first aggregation are computed where they are read,
    from features, which every rank has, unless ``weigh`` says that they travel; if batch normalisation is
    among them, they do anyway.

    Args:
        lowered: the program of all ranks, lowered alike on each of them.
        partition: the owner of each node; one part for each rank, and parts may be empty.
        rank: number of the rank.
        weigh: see :data:`Weigh`. If None, rows before the first aggregation are computed.

    Returns:
        The rank's program, blocks and rows; its ``nodes`` are its own among ``lowered.nodes``, in
        their order.

    Raises:
        ConfigError: there is no such rank, or the partition is of another number of nodes.
        NotLoweredError: an operation cannot be divided among ranks; the message names it.
    """
    as_count(rank, "rank", most=partition.num_parts - 1)
    if partition.num_nodes != lowered.graph.num_nodes:
        raise ConfigError(
            f"the partition is of {partition.num_nodes:,} nodes, and the graph has "
            f"{lowered.graph.num_nodes:,}; divide this graph."
        )
    program, blocks = divided(lowered.program, lowered.blocks, partition, rank, weigh)
    nodes = lowered.nodes[partition.part_of[lowered.nodes] == rank]
    last = blocks[-1].destinations
    assert last is not None
    rows = output_rows(nodes, places_of(last, lowered.graph.num_nodes, torch.int64), blocks)
    return replace(lowered, program=program, nodes=nodes, blocks=tuple(blocks), rows=rows, row_of=None)


def divided(
    program: ir.Program, blocks: Blocks, partition: Partition, rank: int, weigh: Weigh | None = None
) -> tuple[ir.Program, list[Block]]:
    """Return one rank's program and blocks of a lowered program and its blocks, with the exchanges between.

    A rank computes its own rows of each level, in the level's order. Before each block that leads from one
    level to the next stands one that leads from the rank's own rows to these and its halo: sources of the
    next level's own rows that other ranks own, by owner and then in the level's order. Edges of a row keep
    their order, so that a row's sum has the bits that it has on one rank.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks; the message names it.
    """
    _check_divisible(program)
    share: list[Block] = []
    known: dict[int, tuple[Block, Block]] = {}  # levels that hold the same nodes share their block
    for block in (one.of(None) for one in blocks):
        if id(block) not in known:
            known[id(block)] = _divided(block, partition, rank, program.reads_edges)
        share += known[id(block)]
    program = weighed(program, share[0], weigh)
    of_rank, with_halo = divided_program(program)
    return of_rank, share[with_halo:]


def weighed(program: ir.Program, exchange: Block, weigh: Weigh | None) -> ir.Program:
    """Return the program of all ranks with the decision whether the rows of an exchange travel, if any."""
    if weigh is None or must_travel(program) or not values_that_may_travel(program):
        return program
    route = exchange.route
    assert route is not None
    decision = weigh(program, max(sum(route.receive_rows), sum(route.send_rows)))
    return program if decision is None else program.rewritten(program.ops, decision)


def as_decided(by: ir.Program) -> Weigh:
    """Return a function that repeats the decision of ``by`` for other programs."""
    found = next((decision for decision in by.decisions if decision.name == NAME), None)
    return lambda _program, _num_rows: found


def divided_program(program: ir.Program) -> tuple[ir.Program, bool]:
    """Return the program of each rank, and whether its level 0 holds the halo's nodes too.

    Where a decision of the program says that rows of level 0 travel, or they must, it does not. It is a
    NotLoweredError, which names it, if an operation cannot be divided among ranks.
    """
    _check_divisible(program)
    travels = any(decision.taken for decision in program.decisions if decision.name == NAME)
    with_halo = not travels and not must_travel(program)
    return _with_exchanges(program, with_halo), with_halo


def _with_exchanges(program: ir.Program, with_halo: bool) -> ir.Program:
    """Return the program of all ranks with an exchange before each operation that reads rows along edges.

    If ``with_halo``, rows of level 0 are computed where they are read, also those of others' nodes.
    """
    ops, received = list[ir.Operation](), dict[str, str]()

    def own(level: int) -> int:
        """Return the number of a level's own rows: before each but perhaps the first stands an exchange."""
        return max(0, 2 * level - with_halo)

    def rows_of(value: str) -> str:
        """Return the name of a value's own and halo rows, received at their first use."""
        if with_halo and program.level(value) == 0:
            return value
        if value not in received:
            received[value] = f"{value} and halo"
            ops.append(ir.Exchange(out=received[value], inputs=(value,)))
        return received[value]

    for op in program.ops:
        level, sources = program.level(op.out), read_along_edges(program, op)
        if isinstance(op, ir.DestinationRows):
            ops.append(replace(op, blocks=own(level) - own(level - 1)))
        elif isinstance(op, ir.Hoisted):
            ops.append(replace(op, blocks=own(level)))
        else:
            inputs = tuple(rows_of(value) if value in sources else value for value in op.inputs)
            ops.append(replace(op, inputs=inputs))
    return program.rewritten(tuple(ops))


def _check_divisible(program: ir.Program) -> None:
    if program.by_relation:
        raise ir.NotLoweredError("the model", "reads relations, which ranks do not divide so far", "one rank")
    if program.num_levels == 1:
        raise ir.NotLoweredError(
            "the model", "reads no edges, so that ranks have nothing to divide", "one rank"
        )
    for op in program.ops:
        # Messages must be steps of rows and weights of the graph's own edges.
        has_no_kernel = isinstance(op, ir.Messages) and (
            not op.steps or op.edges is not None or op.reads_edges
        )
        if isinstance(op, ir.Break) or has_no_kernel:
            reason = "runs in PyTorch, which knows only this rank's rows"
            raise ir.NotLoweredError(f"{op.out}, {op.details()}", reason, "batch or layer normalisation")


def _divided(block: Block, partition: Partition, rank: int, keeps_edges: bool) -> tuple[Block, Block]:
    """Return the exchange before a rank's share of a block, and that share."""
    owner = partition.part_of if block.sources is None else partition.part_of[block.sources]
    halos = [_halo(block.csc, owner, other) for other in range(partition.num_parts)]
    own, halo = _rows_of(owner, rank), halos[rank]
    held = torch.cat((own, halo))
    row_of = places_of(held, owner.numel(), index_dtype(owner.numel()))
    sends = [row_of[rows[owner[rows] == rank]].long() for rows in halos]
    received = torch.bincount(owner[halo], minlength=partition.num_parts)
    route = Route(
        send=torch.cat(sends),
        send_rows=tuple(rows.numel() for rows in sends),
        receive_rows=tuple(received.tolist()),
    )
    nothing = Csc(torch.zeros(held.numel() + 1, dtype=torch.int64), row_of[:0], own.numel(), trusted=True)
    exchange = Block(nothing, _nodes(block, own), _nodes(block, held), None, route)
    return exchange, _share(block, own[own < block.csc.num_dst], held, row_of, keeps_edges)


def _share(block: Block, rows: Tensor, held: Tensor, row_of: Tensor, keeps_edges: bool) -> Block:
    """Return the in-edges of ``rows`` of a block; its sources are the ``held`` rows, in this order."""
    csc = block.csc
    keeps_edges = keeps_edges or csc.weight is not None or block.edges is not None
    indptr, indices, edges = renumbered_edges(csc, rows, row_of, keep_edges=keeps_edges)
    if edges is not None and block.edges is not None:
        edges = block.edges[edges]
    share = Csc(indptr, indices, held.numel(), trusted=True)
    return Block(share, _nodes(block, held), _nodes(block, rows), edges)


def _halo(csc: Csc, owner: Tensor, rank: int) -> Tensor:
    """Return the source rows of a rank's in-edges that others own, by owner and then ascending."""
    is_read = torch.zeros(csc.num_src, dtype=torch.bool)
    for _, positions in edges_of(csc, _rows_of(owner[: csc.num_dst], rank)):
        is_read[csc.indices[positions].long()] = True
    halo = (is_read & (owner != rank)).nonzero().squeeze(1)
    return halo[owner[halo].argsort(stable=True)]


def _rows_of(owner: Tensor, rank: int) -> Tensor:
    return (owner == rank).nonzero().squeeze(1)


def _nodes(block: Block, rows: Tensor) -> Tensor:
    """Return the nodes of a block's source rows."""
    return rows if block.sources is None else block.sources[rows]
