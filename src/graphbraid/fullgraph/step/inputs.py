"""StepRequest: the program, graph and options of a step to plan; and the features that weights multiply.

The features are dense, sparse or bits.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.fullgraph.lowering.costs import density
from graphbraid.fullgraph.lowering.levels import Blocks, TypedBlock, num_rows_of
from graphbraid.fullgraph.lowering.options import StreamedFeatures
from graphbraid.fullgraph.program import LevelNodes, Program
from graphbraid.fullgraph.step.device_copies import DeviceCopies, HostMap, Map
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import Features
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.graph.types import Relation
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.binary import BinaryRows, binary_bytes, bit_gram, bit_product
from graphbraid.ops.dropout import RowEpilogue
from graphbraid.ops.linear import structure, tall_gram, tall_product

if TYPE_CHECKING:
    from graphbraid.distributed.peers import Peers
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


After = RowEpilogue | None
"""The epilogue of a product's rows; None if there is none."""


class Input(ABC):
    """The features in the form that the first weights multiply.

    Beside its result, a product takes the memory of one weight, or of the rows that it handles at a time.
    """

    @abstractmethod
    def multiply(
        self, weight: Tensor, out: Tensor, *, add: bool, turned: Tensor | None = None, after: After = None
    ) -> None:
        """Compute ``out (+)= x weightᵀ``, then the epilogue.

        ``turned``, ``(in_channels, out_channels)``, is scratch memory that only the sparse form needs.
        """

    @abstractmethod
    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute ``gradᵀ x``, ``(out_channels, in_channels)``, into ``out`` if given."""


class DenseInput(Input):
    """The features as a dense matrix, in place: all rows, or some by id."""

    def __init__(self, x: Tensor, nodes: Tensor | None) -> None:
        self.x, self.nodes = x, nodes

    def placed(self, copies: DeviceCopies) -> DenseInput:
        """Return the same rows on a device, gathered once."""
        return DenseInput(copies.matrix(self.x if self.nodes is None else self.x[self.nodes]), None)

    def multiply(
        self, weight: Tensor, out: Tensor, *, add: bool, turned: Tensor | None = None, after: After = None
    ) -> None:
        """Compute the product."""
        tall_product(self.x, weight.t(), out=out, add=add, ids=self.nodes, after=after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute the product's gradient."""
        return tall_gram(grad, self.x, out=out, ids=self.nodes)


class SparseInput(Input):
    """The features in CSR, stored by row for forward and by column for backward."""

    def __init__(self, x: SparseFeatures, nodes: Tensor | None) -> None:
        rows = x if nodes is None else x.rows(nodes)
        pattern = structure(rows)
        by_column, perm = pattern.transpose()
        self._num_columns = pattern.num_src
        self._by_row: Map = HostMap(Aggregation(csc=pattern, weight=rows.values))
        self._by_column: Map = HostMap(Aggregation(csc=by_column, weight=rows.values[perm]))

    def placed(self, copies: DeviceCopies) -> SparseInput:
        """Return the same values on a device."""
        there = copy.copy(self)
        assert isinstance(self._by_row, HostMap)
        assert isinstance(self._by_column, HostMap)
        there._by_row = copies.aggregation(self._by_row.how, backward=False)
        there._by_column = copies.aggregation(self._by_column.how, backward=False)
        return there

    def multiply(
        self, weight: Tensor, out: Tensor, *, add: bool, turned: Tensor | None = None, after: After = None
    ) -> None:
        """Compute the product, of the weight by column."""
        rows = weight.t().contiguous() if turned is None else turned.copy_(weight.t())
        self._by_row.forward(rows, out, out if add else None, after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute the product's gradient, by column first."""
        rows = grad.new_empty(self._num_columns, grad.shape[1]) if turned is None else turned
        self._by_column.forward(grad, rows)
        return rows.t() if out is None else out.copy_(rows.t())


class BinaryInput(Input):
    """Features with one non-zero number per node, as bits by row for forward and by column for backward."""

    def __init__(self, rows: BinaryRows) -> None:
        self._rows = rows

    @classmethod
    def of(cls, x: Features, nodes: Tensor | None) -> BinaryInput:
        """Pack the features of ``nodes``, of all nodes if None."""
        return cls(BinaryRows.of(x, nodes))

    def placed(self, copies: DeviceCopies) -> BinaryInput:
        """Return the same bits on a device."""
        return BinaryInput(self._rows.apply(copies.matrix))

    def multiply(
        self, weight: Tensor, out: Tensor, *, add: bool, turned: Tensor | None = None, after: After = None
    ) -> None:
        """Compute the product."""
        rows = self._rows
        bit_product(rows.by_row, weight.t(), out=out, factors=rows.factors, add=add, after=after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute the product's gradient."""
        rows = self._rows
        if out is None:
            out = grad.new_empty(grad.shape[1], rows.by_column.shape[1])
        return bit_gram(grad, rows.by_column, out=out, factors=rows.factors)


def compact_input(x: Features, nodes: Tensor | None, path: str) -> SparseInput | BinaryInput:
    """Return the features of ``nodes``, of all nodes if None, in the form of a compact input path."""
    if path == "binary":
        return BinaryInput.of(x, nodes)
    dense = x if isinstance(x, Tensor | SparseFeatures) else x.to_dense()
    sparse = dense if isinstance(dense, SparseFeatures) else SparseFeatures.from_dense(dense)
    return SparseInput(sparse.to(torch.float32), nodes)


def input_bytes(x: Features, nodes: Tensor | None, path: str) -> int:
    """Return the bytes of the features of ``nodes`` in the form of an input path."""
    rows, columns = x.shape[0] if nodes is None else nodes.numel(), int(x.shape[1])
    if path == "dense":
        return 4 * rows * columns
    if path == "binary":
        return binary_bytes(rows, columns)
    values = int(density(x) * rows * columns)
    if nodes is not None and isinstance(x, SparseFeatures):
        values = int((x.indptr[nodes + 1] - x.indptr[nodes]).sum())
    return 2 * 8 * (values + rows + columns + 2)  # by row and by column, each with the kernels' partition
