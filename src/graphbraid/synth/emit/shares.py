"""Shares: the part of a program that one rank trains and evaluates; with one rank, the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.distributed import Communicator, Partition
from graphbraid.distributed.ranks.transport import Alone, Finished, Pending, Reduction
from graphbraid.fullgraph import Lowered, distribute
from graphbraid.fullgraph.lowering.levels import Blocks
from graphbraid.fullgraph.lowering.lower_program import lower_for_evaluation
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.ranks.distribute import divided


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RankShare:
    """The steps that one rank runs, and the nodes whose outputs it computes."""

    lowered: Lowered
    """The training step, with the rank's own training nodes."""
    program: Program
    """The program in evaluation mode."""
    blocks: Blocks
    """Its edges from each level to the next."""
    row_of: Tensor | None
    """``(num_nodes,)`` int64 row of each node in an evaluation, -1 if another rank has it; None if row v is
    node v."""
    comm: Communicator | None = None
    """The ranks; this process holds one of them. If None, there is one rank."""


def whole(lowered: Lowered, read: Program) -> RankShare:
    """Return the share of a rank that is alone.

    Args:
        lowered: the lowered program.
        read: the program in evaluation mode.
    """
    program, blocks = lower_for_evaluation(lowered, read)
    row_of = lowered.row_of if blocks is lowered.blocks else None
    return RankShare(lowered=lowered, program=program, blocks=blocks, row_of=row_of)


def share_of(lowered: Lowered, read: Program, partition: Partition, rank: int) -> RankShare:
    """Return the share of one of several ranks; see :func:`whole`.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks.
        ConfigError: the partition is of another number of nodes.
    """
    mine = distribute(lowered, partition, rank)
    program, blocks = divided(*lower_for_evaluation(lowered, read), partition, rank)
    nodes = blocks[-1].after()[1]
    assert nodes is not None
    row_of = torch.full((lowered.graph.num_nodes,), -1, dtype=torch.int64)
    row_of[nodes] = torch.arange(nodes.numel())
    return RankShare(
        lowered=mine,
        program=program,
        blocks=blocks,
        row_of=row_of,
        comm=Communicator(Unheard(rank, partition.num_parts)),
    )


class Unheard(Alone):
    """The transport of a rank whose step is recorded alone; it receives made-up values."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size

    def twin(self) -> Unheard:
        """Return another one."""
        return Unheard(self.rank, self.size)

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        """Add 1 for the other ranks, so that the number of all rows exceeds this rank's."""
        tensor.add_(1)
        return Finished()

    def all_to_all(
        self, send: Tensor, send_bytes: Sequence[int], receive: Tensor, receive_bytes: Sequence[int]
    ) -> Pending:
        """Receive zeros."""
        receive.zero_()
        return Finished()
