"""The node features as a program reads them: constants of a level, and the factor of the first weights.

They are made once, where the graph is, and then copied if the program runs on a device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphbraid.fullgraph.lowering.hoisting import computed_once
from graphbraid.fullgraph.lowering.levels import Blocks, TypedBlock, nodes_of, num_rows_of
from graphbraid.fullgraph.program import INPUT, AdjacencyMatrix, Hoisted, LevelPart, Linear, Program
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.device_copies import DeviceCopies, input_bytes
from graphbraid.fullgraph.step.calls.rows import Constant
from graphbraid.fullgraph.step.features.edge_features import EdgeFeatures
from graphbraid.fullgraph.step.features.streams import Streams
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import Features, is_widened
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.ops.kernels import row_contiguous


class NodeFeatures:
    """The forms of the node features that the tasks of one program read.

    Args:
        program: a lowered program; its ``input_path`` says how its weights multiply the features.
        graph: the graph; its features are used in place wherever possible.
        blocks: the edges from each level to the next, on the host.
        copies: copies what is made to a device. If None, it stays where the graph is.
        streams: reads the features block by block. If None, they lie in memory.
        part: number of the node type whose features these are, in a program over relations.
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        blocks: Blocks,
        copies: DeviceCopies | None,
        *,
        part: int = 0,
        streams: Streams | None = None,
    ) -> None:
        self._program, self._graph, self._blocks, self._copies = program, graph, blocks, copies
        self._part, self._streams = part, streams
        self._name = program.parts[part].input if program.parts else INPUT
        self._is_factor = any(op.inputs[0] == self._name and isinstance(op, Linear) for op in program.ops)
        self.path = program.path_of(self._name)
        """How the first weights multiply the features, as :attr:`Program.input_path`."""
        self.edges = EdgeFeatures(program, graph, blocks, copies)
        """The edge features."""
        self._dense: Tensor | None = None
        self._factor: kernels.Input | None = None

    def of(self, value: str) -> NodeFeatures:
        """Return itself: a program over all edges has one input."""
        assert value == self._name
        return self

    @property
    def _x(self) -> Features | None:
        """The features as the graph has them now."""
        types = self._graph.types if self._program.parts else None
        return self._graph.x if types is None else list(types.nodes.values())[self._part].x

    @property
    def factor(self) -> kernels.Input:
        """The features in the form that the first weights multiply; available after :meth:`allocate`."""
        assert self._factor is not None
        return self._factor

    @property
    def factor_bytes(self) -> int:
        """Bytes that :attr:`factor` and the edge features take in addition to the graph.

        On the host, dense float32 features are used in place; others are widened as a whole, to a copy.
        """
        if self._streams is not None:
            return self._streams.nbytes + self.edges.nbytes
        x = self._x
        assert x is not None
        in_place = self.path == "dense" and self._copies is None
        if in_place or not self._is_factor:
            return self._widened_bytes + self.edges.nbytes
        return self._widened_bytes + input_bytes(x, self._nodes(0), self.path) + self.edges.nbytes

    @property
    def _widened_bytes(self) -> int:
        """Bytes of all rows as float32 on the host, where the graph keeps another dtype.

        They are there while the factor and constants are made, and stay where these read them as they are.
        """
        x = self._x
        if x is None or self._copies is not None or not is_widened(x):
            return 0
        return 4 * x.shape[0] * x.shape[1]

    def allocate(self, constants: Sequence[Constant]) -> None:
        """Make the factor and the constants, and free what was needed only for that."""
        if self._streams is not None:
            self._streams.open()
        elif self._is_factor:
            self._factor = self._make_factor()
        for constant in constants:
            _ = constant.tensor
        self.edges.allocate()
        is_read = isinstance(self._factor, kernels.DenseInput) and self._copies is None
        if not is_read:
            self._dense = None

    def gather(self) -> None:
        """Copy the rows that a dense factor reads, in the level's order, so that it reads no others."""
        factor, nodes = self._factor, self._nodes(0)
        if isinstance(factor, kernels.DenseInput) and nodes is not None:
            self._factor = kernels.DenseInput(factor.x.index_select(0, nodes), None)

    def rows_of(self, level: int) -> Constant:
        """Return the ``(num_rows, in_channels)`` features of a level's nodes."""
        nodes = self._nodes(level)

        def make() -> Tensor:
            x = self.all_rows()
            return self._there(x.contiguous() if nodes is None else x.index_select(0, nodes))

        x = self._x
        as_it_is = isinstance(x, Tensor) and x.dtype == torch.float32 and x.is_contiguous()
        is_whole = as_it_is or is_widened(x)  # the latter is counted already
        is_copy = nodes is not None or not is_whole or self._copies is not None
        return Constant(self._shape(level), make, is_copy)

    def hoisted(self, op: Hoisted) -> Constant:
        """Return the ``(num_rows, in_channels)`` value that an operation computes once from the features."""
        place = self._program.place(op.out)

        def make() -> Tensor:
            nodes = nodes_of(self._blocks, place)
            return self._there(computed_once(op.of, self._edges, self.all_rows(), nodes))

        shape = num_rows_of(self._blocks, place, self._graph.num_nodes), self._channels
        return Constant(shape, make, is_copy=True)

    def _edges(self, adjacency: AdjacencyMatrix) -> Csc:
        """Return all edges of the graph that an adjacency stands for."""
        block = self._blocks[0]
        if adjacency.relation is None or not isinstance(block, TypedBlock):
            return self._graph.csc
        return block.whole[adjacency.relation.number]

    def _make_factor(self) -> kernels.Input:
        x, nodes = self._x, self._nodes(0)
        assert x is not None
        made: kernels.Input
        if self.path == "sparse":
            sparse = (
                x
                if isinstance(x, SparseFeatures)
                else SparseFeatures.from_dense(x if isinstance(x, Tensor) else x.to_dense())
            )
            made = kernels.SparseInput(sparse.to(torch.float32), nodes)
        elif self.path == "binary":
            made = kernels.BinaryInput.of(x, nodes)
        else:
            made = kernels.DenseInput(self.all_rows(), nodes)
        return made if self._copies is None else made.placed(self._copies)

    def all_rows(self) -> Tensor:
        """Return all nodes' features in float32; the graph's own tensor if it already is."""
        if self._dense is None:
            x = self._x
            assert x is not None
            dense = x if isinstance(x, Tensor) else x.to_dense()
            self._dense = row_contiguous(dense.to(torch.float32))  # else kernels would copy it in every step
        return self._dense

    def _there(self, constant: Tensor) -> Tensor:
        return constant if self._copies is None else self._copies.matrix(constant)

    def _nodes(self, level: int) -> Tensor | None:
        return nodes_of(self._blocks, LevelPart(level, self._part))

    def _shape(self, level: int) -> tuple[int, int]:
        place = LevelPart(level, self._part)
        return num_rows_of(self._blocks, place, self._graph.num_nodes), self._channels

    @property
    def _channels(self) -> int:
        return self._program.inputs[self._name]
