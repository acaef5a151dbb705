"""The blocks of one of several ranks: in-edges of its own rows, and the rows of others that these read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphbraid.distributed.partitioning.records import Partition
from graphbraid.fullgraph.lowering.levels import Block, edges_of
from graphbraid.fullgraph.lowering.route import Route
from graphbraid.graph.csc import Csc, index_dtype


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
    indptr = torch.zeros(rows.numel() + 1, dtype=torch.int64)
    torch.cumsum(csc.degrees()[rows], 0, out=indptr[1:])
    indices = torch.empty(int(indptr[-1]), dtype=row_of.dtype)
    needs_edges = keeps_edges or csc.weight is not None or block.edges is not None
    edges = torch.empty(indices.numel(), dtype=torch.int64) if needs_edges else None
    for begin, positions in edges_of(csc, rows):
        part = slice(begin, begin + positions.numel())
        indices[part] = row_of[csc.indices[positions].long()]
        if edges is not None:
            edges[part] = positions if block.edges is None else block.edges[positions]
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


__all__ = ["blocks_of_rank"]
