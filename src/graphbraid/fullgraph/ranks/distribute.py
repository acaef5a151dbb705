"""distribute(): a lowered program becomes that of one rank, with exchanges as operations of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.distributed.partitioning.records import Partition
from graphbraid.errors import ConfigError
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.levels import Block, Blocks, Route, edges_of, renumbered_edges
from graphbraid.fullgraph.lowering.lower_program import Lowered, output_rows
from graphbraid.fullgraph.ranks.halo import (
    NAME,
    must_travel,
    read_along_edges,
    values_that_may_travel,
)
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.signatures import typed

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
    row_of = torch.full((lowered.graph.num_nodes,), -1, dtype=torch.int64)
    row_of[last] = torch.arange(last.numel())
    rows = output_rows(nodes, row_of, blocks)
    return replace(lowered, program=program, nodes=nodes, blocks=tuple(blocks), rows=rows, row_of=None)


def divided(
    program: ir.Program, blocks: Blocks, partition: Partition, rank: int, weigh: Weigh | None = None
) -> tuple[ir.Program, list[Block]]:
    """Return one rank's program and blocks of a lowered program and its blocks.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks; the message names it.
    """
    _check_divisible(program)
    plain = [block.of(None) for block in blocks]
    share = blocks_of_rank(plain, partition, rank, keeps_edges=program.reads_edges)
    program = weighed(program, share[0], weigh)
    of_rank, with_halo = divided_program(program)
    return of_rank, share[with_halo:]


def weighed(program: ir.Program, exchange: Block, weigh: Weigh | None) -> ir.Program:
    """Return a program with the decision whether rows of level 0 travel, if there is one.

    Args:
        program: the program of all ranks.
        exchange: the block with the rows that would travel.
        weigh: see :data:`Weigh`.
    """
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

    Where a decision of the program says that rows of level 0 travel, or they must, it does not.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks; the message names it.
    """
    _check_divisible(program)
    travels = any(decision.taken for decision in program.decisions if decision.name == NAME)
    with_halo = not travels and not must_travel(program)
    return _with_exchanges(program, with_halo), with_halo


def owned_outputs(blocks: Blocks, partition: Partition, rank: int) -> Tensor:
    """Return the nodes of the last level that a rank owns, in the level's order.

    Args:
        blocks: the blocks of all ranks together; none if ranks hold their own parts, in the order of the ids.
        partition: the owner of each node.
        rank: number of the rank.
    """
    nodes = blocks[-1].after()[1] if blocks else None
    if nodes is None:
        return partition.owned(rank)
    return nodes[partition.part_of[nodes] == rank]


def _with_exchanges(program: ir.Program, with_halo: bool) -> ir.Program:
    """Return a program's operations with an exchange before each that reads rows along edges.

    Args:
        program: the program of all ranks.
        with_halo: whether the rows of level 0 are computed where they are read, also those of others' nodes.
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
        level, sources = program.level(op.out), read_along_edges(op)
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


def blocks_of_rank(
    blocks: Sequence[Block], partition: Partition, rank: int, *, keeps_edges: bool
) -> list[Block]:
    """Return a rank's share of a lowered program's blocks, with the exchanges between them.

    A rank computes its own rows of each level, in the level's order. Before each block that leads from one
    level to the next stands one that leads from the rank's own rows to these and its halo: sources of the
    next level's own rows that other ranks own, by owner and then in the level's order. Edges of a row keep
    their order, so that a row's sum has the bits that it has on one rank.

    Args:
        blocks: the blocks of all ranks together.
        partition: the owner of each node.
        rank: number of the rank.
        keeps_edges: whether the program reads edge features.
    """
    made: list[Block] = []
    known: dict[int, tuple[Block, Block]] = {}  # levels that hold the same nodes share their block
    for block in blocks:
        if id(block) not in known:
            known[id(block)] = _divided(block, partition, rank, keeps_edges)
        made += known[id(block)]
    return made


def _divided(block: Block, partition: Partition, rank: int, keeps_edges: bool) -> tuple[Block, Block]:
    """Return the exchange before a rank's share of a block, and that share."""
    owner = partition.part_of if block.sources is None else partition.part_of[block.sources]
    halos = [_halo(block.csc, owner, other) for other in range(partition.num_parts)]
    own, halo = _rows_of(owner, rank), halos[rank]
    held = torch.cat((own, halo))
    row_of = torch.full((owner.numel(),), -1, dtype=index_dtype(owner.numel()))
    row_of[held] = torch.arange(held.numel(), dtype=row_of.dtype)
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
