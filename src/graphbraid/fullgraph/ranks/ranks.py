"""Ranks: those that run a program together, and the partition that says which rows each computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from graphbraid.distributed.partitioning.choose import partition as divide
from graphbraid.distributed.partitioning.records import Partition
from graphbraid.distributed.parts.saving import SavedPartition
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.ranks.joining import check_alike
from graphbraid.errors import ConfigError
from graphbraid.fullgraph.lowering.levels import Block
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.ranks.distribute import distribute, divided, owned_outputs
from graphbraid.fullgraph.ranks.part import RankPart
from graphbraid.graph import Graph
from graphbraid.signatures import typed


@typed
@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Ranks:
    """The ranks that run a program together; all make the same calls of what is made with them.

    Raises:
        ConfigError: the partition has another number of parts than there are ranks.
    """

    comm: Communicator
    partition: Partition
    """The owner of each node."""
    part: RankPart | None = None
    """This rank's part, if ranks hold their own parts alone; None if each holds the whole graph."""

    def __post_init__(self) -> None:
        if self.partition.num_parts != self.comm.size:
            raise ConfigError(
                f"the partition has {self.partition.num_parts} parts, and there are {self.comm.size} ranks; "
                "divide the graph into as many."
            )

    @classmethod
    def dividing(cls, comm: Communicator, graph: Graph) -> Ranks:
        """Let rank 0 divide a graph among the ranks, which all call this together."""
        part_of = torch.empty(graph.num_nodes, dtype=torch.int32)
        strategy = ""
        if comm.rank == 0:
            found = divide(graph, comm.size)
            part_of.copy_(found.part_of)
            strategy = found.strategy
        comm.broadcast(part_of).wait()
        strategy = comm.share(strategy)
        made = Partition(part_of=part_of, num_parts=comm.size, strategy=strategy, balance="edges")
        return cls(comm=comm, partition=made)

    @classmethod
    def of_saved(cls, comm: Communicator, saved: SavedPartition, graph: Graph) -> Ranks:
        """Let each rank read its own part of a graph; all call this together.

        Args:
            comm: the ranks.
            saved: a partition's folder, the same on all ranks.
            graph: the graph, of which only the own part's rows are read if it is in a store.

        Raises:
            ConfigError: the partition has another number of parts than there are ranks, or ranks were given
                different partitions.
            DataError: a file is missing or damaged, or the partition is of another graph.
        """
        check_alike(comm, {"partition": saved.identity}, "give all ranks the same partition")
        if saved.num_parts != comm.size:
            raise ConfigError(
                f"the partition in {saved.folder} has {saved.num_parts} parts, and there are {comm.size} "
                f"ranks; start {saved.num_parts}, or divide the graph anew: graphbraid partition --parts "
                f"{comm.size}."
            )
        part = RankPart.read(saved, comm.rank, graph)
        return cls(comm=comm, partition=saved.partition(), part=part)

    def share_of(self, lowered: Lowered) -> Lowered:
        """Return this rank's part of a lowered program; all ranks call this together.

        Raises:
            NotLoweredError: an operation cannot be divided among ranks.
            ConfigError: the ranks have not lowered alike, or the partition is of another graph.
        """
        self.check_alike_lowered(lowered.program, lowered.blocks)
        return distribute(lowered, self.partition, self.comm.rank)

    def divided(self, program: Program, blocks: Sequence[Block]) -> tuple[Program, list[Block]]:
        """Return this rank's program and blocks of a program in evaluation mode; see :meth:`share_of`."""
        self.check_alike_lowered(program, blocks)
        return divided(program, blocks, self.partition, self.comm.rank)

    def owned(self, nodes: Tensor) -> Tensor:
        """Return those of ``nodes`` that this rank owns, in their order."""
        return nodes[self.partition.part_of[nodes] == self.comm.rank]

    def gathered(self, rows: Tensor, blocks: Sequence[Block]) -> Tensor:
        """Return on every rank the ``(num_nodes, width)`` outputs of all nodes, in the graph's order.

        Args:
            rows: this rank's outputs, a row for each node that it owns, in the order of the last level.
            blocks: the blocks of all ranks together, whose last level holds all nodes.
        """
        whole = rows.new_empty(self.partition.num_nodes, rows.shape[1])
        for rank in range(self.comm.size):
            nodes = owned_outputs(() if self.part is not None else blocks, self.partition, rank)
            part = (
                rows.contiguous() if rank == self.comm.rank else rows.new_empty(nodes.numel(), rows.shape[1])
            )
            whole[nodes] = self.comm.broadcast(part, rank).wait()
        return whole

    def check_alike_lowered(self, program: Program, blocks: Sequence[Block]) -> None:
        """Check that all ranks have lowered to the same program and blocks.

        Raises:
            ConfigError: they have not.
        """
        order = xxhash.xxh3_64()
        for block in blocks:
            order.update(f"{block.csc.num_src} {block.csc.num_dst} {block.csc.num_edges}".encode())
            if block.destinations is not None:
                order.update(block.destinations.numpy().tobytes())
        mine = {
            "lowered program": xxhash.xxh3_64(str(program).encode()).hexdigest(),
            "lowered order of nodes": order.hexdigest(),
            "partition": xxhash.xxh3_64(self.partition.part_of.numpy().tobytes()).hexdigest(),
        }
        check_alike(self.comm, mine, "give all ranks the same evidence, partition and free memory")


__all__ = ["Ranks"]
