"""The features of each node type as a program over relations reads them."""

from __future__ import annotations

from collections.abc import Sequence

from graphbraid.fullgraph.lowering.levels import Blocks
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.step.calls.device_copies import DeviceCopies
from graphbraid.fullgraph.step.calls.rows import Constant
from graphbraid.fullgraph.step.features.node_features import NodeFeatures
from graphbraid.graph import Graph


class PartFeatures:
    """The forms of each node type's features that the tasks of one program read.

    Args:
        program: a lowered program over relations.
        graph: a graph with types; its features are used in place wherever possible.
        blocks: the edges from each level to the next, on the host.
        copies: copies what is made to a device. If None, it stays where the graph is.
    """

    def __init__(self, program: Program, graph: Graph, blocks: Blocks, copies: DeviceCopies | None) -> None:
        read = {value for op in program.ops for value in op.inputs}
        self._by_value = {
            part.input: NodeFeatures(program, graph, blocks, copies, part=number)
            for number, part in enumerate(program.parts)
            if part.input in read and part.channels
        }

    def of(self, value: str) -> NodeFeatures:
        """Return the features that a value of the program's inputs holds."""
        return self._by_value[value]

    @property
    def factor_bytes(self) -> int:
        """Bytes that the features' forms take in addition to the graph."""
        return sum(features.factor_bytes for features in self._by_value.values())

    def allocate(self, constants: Sequence[Constant]) -> None:
        """Make the factors and the constants, and free what was needed only for that."""
        for features in self._by_value.values():
            features.allocate(constants)


__all__ = ["PartFeatures"]
