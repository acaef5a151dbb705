"""StepRequest: the program, graph and options of a step to plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from graphbraid.fullgraph.lowering.levels import Blocks, TypedBlock, num_rows_of
from graphbraid.fullgraph.lowering.streamed import StreamedFeatures
from graphbraid.fullgraph.program import LevelNodes, Program
from graphbraid.fullgraph.step.device_copies import DeviceCopies
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import Relation

if TYPE_CHECKING:
    from graphbraid.distributed.peers.group import Peers
    from graphbraid.distributed.ranks.communicator import Communicator
    from graphbraid.fullgraph.lowering.levels import PartView


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class StepRequest:
    """A program, the graph that it runs over, and where and with whom it runs."""

    program: Program
    """A lowered program."""
    graph: Graph
    """A graph with features, used in place."""
    blocks: Blocks
    """The edges from each level to the next, on the host."""
    training: bool
    """Whether there is a backward pass."""
    copies: DeviceCopies | None = None
    """Copies the step's inputs to a device. Constants are made where the graph is, and copied, too. If None,
    the step runs where the graph is."""
    streamed: StreamedFeatures | None = None
    """Where the features are read block by block. If None, they lie in memory, as the graph has them."""
    comm: Communicator | None = None
    """The ranks that run the program together and all call the same methods. If None, there is one."""
    part: PartView | None = None
    """The place of ``graph`` in the whole one, if it is one rank's part of it."""
    wire: torch.dtype = torch.float32
    """Dtype to which rows and gradients are rounded on their way between ranks."""
    peers: Peers | None = None
    """The ranks as peers, on a device other than the host. If None, they are on the host."""
    begins_early: bool = True
    """Whether several ranks compute gradients while others travel, and announce each one that is whole."""

    def num_rows(self, place: LevelNodes) -> int:
        """Return the number of nodes of a level, and of one type in a graph with types."""
        return num_rows_of(self.blocks, place, self.graph.num_nodes)

    def whole_edges(self, relation: Relation | None) -> Csc:
        """Return all edges of the graph, or of one relation in a graph with types."""
        block = self.blocks[0] if self.blocks else None
        if relation is None or not isinstance(block, TypedBlock):
            return self.graph.csc
        return block.whole[relation.number]
