"""distribute(): a lowered program becomes that of one rank, with exchanges as operations of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.distributed.partitioning.records import Partition
from graphbraid.errors import ConfigError
from graphbraid.fullgraph.lowering.levels import Block, Blocks
from graphbraid.fullgraph.lowering.lower_program import output_rows
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.program import (
    Aggregate,
    Attention,
    Exchange,
    Gine,
    Hoisted,
    Maximum,
    Module,
    Normalise,
    Operation,
    Own,
    Program,
)
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.fullgraph.ranks.blocks import blocks_of_rank
from graphbraid.signatures import typed


@typed
def distribute(lowered: Lowered, partition: Partition, rank: int) -> Lowered:
    """Return the part of a lowered program that one rank runs; nothing is sent.

    The rank computes the rows of the nodes that it owns. Where an aggregation, a maximum or an attention
    reads rows of other ranks' nodes, an :class:`.Exchange` before it brings them: of each level only those
    that the needed outputs depend on. Rows before the first aggregation are computed where they are read,
    from features, which every rank has; if batch normalisation is among them, they travel as well.

    Args:
        lowered: the program of all ranks, lowered alike on each of them.
        partition: the owner of each node; as many parts as there are ranks, of which some may be empty.
        rank: number of the rank.

    Returns:
        The rank's program, blocks and rows; its ``nodes`` are those of ``lowered`` that it owns, in their
        order.

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
    program, blocks = divided(lowered.program, lowered.blocks, partition, rank)
    nodes = lowered.nodes[partition.part_of[lowered.nodes] == rank]
    last = blocks[-1].destinations
    assert last is not None
    row_of = torch.full((lowered.graph.num_nodes,), -1, dtype=torch.int64)
    row_of[last] = torch.arange(last.numel())
    rows = output_rows(nodes, row_of, blocks)
    return replace(lowered, program=program, nodes=nodes, blocks=tuple(blocks), rows=rows, row_of=None)


def divided(program: Program, blocks: Blocks, partition: Partition, rank: int) -> tuple[Program, list[Block]]:
    """Return one rank's program and blocks of a lowered program and its blocks.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks; the message names it.
    """
    of_rank, with_halo = divided_program(program)
    plain = [block.of(None) for block in blocks]
    share = blocks_of_rank(plain, partition, rank, keeps_edges=program.reads_edges, with_halo=with_halo)
    return of_rank, share


def divided_program(program: Program) -> tuple[Program, bool]:
    """Return the program of each rank, and whether its level 0 holds the halo's nodes too.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks; the message names it.
    """
    _check_divisible(program)
    with_halo = not any(program.level(op.out) == 0 and _couples_rows(op) for op in program.ops)
    return _Rewriting(program, with_halo).result(), with_halo


def owned_outputs(blocks: Blocks, partition: Partition, rank: int) -> Tensor:
    """Return the nodes of the last level that a rank owns, in the level's order.

    Args:
        blocks: the blocks of all ranks together; none if ranks hold their own parts, in the order of the ids.
        partition: the owner of each node.
        rank: number of the rank.
    """
    nodes = blocks[-1].destination_nodes() if blocks else None
    if nodes is None:
        return partition.owned(rank)
    return nodes[partition.part_of[nodes] == rank]


class _Rewriting:
    """A program's operations with an exchange before each that reads rows along edges.

    Args:
        program: the program of all ranks.
        with_halo: whether the rows of level 0 are computed where they are read, also those of others' nodes.
    """

    def __init__(self, program: Program, with_halo: bool) -> None:
        self._program, self._with_halo = program, with_halo
        self._ops: list[Operation] = []
        self._received: dict[str, str] = {}

    def result(self) -> Program:
        """Return the rank's program."""
        for op in self._program.ops:
            self._ops.append(self._rewritten(op))
        return self._program.rewritten(tuple(self._ops))

    def _rewritten(self, op: Operation) -> Operation:
        level = self._program.level(op.out)
        if isinstance(op, Own):
            return replace(op, blocks=self._level(level) - self._level(level - 1))
        if isinstance(op, Hoisted):
            return replace(op, blocks=self._level(level))
        if not isinstance(op, Aggregate | Attention | Gine | Maximum):
            return op
        scores = isinstance(op, Attention) and op.kind == "gat" and not op.own_rows
        sources = set(op.inputs) if scores else {op.inputs[0]}
        return replace(op, inputs=tuple(self._rows_of(i) if i in sources else i for i in op.inputs))

    def _level(self, level: int) -> int:
        """Return the number of a level's own rows: before each but perhaps the first stands an exchange."""
        return max(0, 2 * level - self._with_halo)

    def _rows_of(self, value: str) -> str:
        """Return the name of a value's own and halo rows, received at their first use."""
        if self._with_halo and self._program.level(value) == 0:
            return value
        if value not in self._received:
            self._received[value] = f"{value} and halo"
            self._ops.append(Exchange(out=self._received[value], inputs=(value,)))
        return self._received[value]


def _couples_rows(op: Operation) -> bool:
    return isinstance(op, Normalise | Module) and op.couples_rows


def _check_divisible(program: Program) -> None:
    if program.parts:
        raise NotLoweredError("the model", "reads relations, which ranks do not divide so far", "one rank")
    if program.num_levels == 1:
        raise NotLoweredError("the model", "reads no edges, so that ranks have nothing to divide", "one rank")
    for op in program.ops:
        if isinstance(op, Module):
            reason = "runs in PyTorch, which knows only this rank's rows"
            raise NotLoweredError(f"{op.out}, {op.details()}", reason, "batch or layer normalisation")


__all__ = ["distribute", "divided", "divided_program", "owned_outputs"]
