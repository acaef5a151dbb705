"""The features as the tasks of a step read them: of nodes, by type, and of edges.

They are made once, where the graph is, and then copied if the program runs on a device. Weights multiply
features that are dense, sparse or bits.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.costs import density
from graphbraid.fullgraph.lowering.levels import aggregation, nodes_of
from graphbraid.fullgraph.program import INPUT, Hoisted, LevelNodes, Linear
from graphbraid.fullgraph.step.tasks import Constant, Mask
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import Features, is_widened
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.ops import reference
from graphbraid.ops.aggregation import Aggregation, aggregated
from graphbraid.ops.binary import BinaryRows, binary_bytes, bit_gram, bit_product
from graphbraid.ops.kernels import backend, row_contiguous
from graphbraid.ops.library import RowEpilogue
from graphbraid.ops.linear import tall_gram, tall_product, transpose
from graphbraid.ops.sparse_linear import structure

if TYPE_CHECKING:
    from graphbraid.fullgraph.step.device_copies import DeviceCopies
    from graphbraid.fullgraph.step.plan import StepRequest
    from graphbraid.fullgraph.step.streams import Streams


After = RowEpilogue | None
"""The epilogue of a kernel's rows; None if there is none."""


class LinearMap:
    """A linear map of rows and its transpose, each made at its first use and stored."""

    def __init__(self, make: Callable[[], Aggregation]) -> None:
        self._make = make

    @cached_property
    def how(self) -> Aggregation:
        """The map."""
        return self._make()

    @cached_property
    def reverse(self) -> Aggregation:
        """The transposed map."""
        return self.how.transposed(torch.float32)  # in which rows of any storage dtype are summed

    def forward(self, x: Tensor, out: Tensor, addend: Tensor | None = None, after: After = None) -> None:
        """Compute ``out = A x (+ addend)``, then the epilogue; ``addend`` may be a prefix of ``out``."""
        self.run(self.how, x, out, addend=addend, after=after)

    def backward(self, grad: Tensor, out: Tensor, addend: Tensor | None = None) -> None:
        """Compute ``out = Aᵀ grad (+ addend)``."""
        self.run(self.reverse, grad, out, addend=addend, after=None)

    def run(self, how: Aggregation, x: Tensor, out: Tensor, *, addend: Tensor | None, after: After) -> None:
        """Run one of the two maps."""
        aggregated(how, x, addend=addend, out=out, after=after)  # planned buffers need no checks


# ---- the features in the form that the first weights multiply


class Input(ABC):
    """The features in the form that the first weights multiply.

    Beside its result, a product takes the memory of one weight, or of the rows that it handles at a time.
    """

    @abstractmethod
    def multiply(
        self, weight: Tensor, out: Tensor, *, add: bool, turned: Tensor | None = None, after: After = None
    ) -> None:
        """Compute ``out (+)= x weightᵀ``, then the epilogue.

        ``turned`` is the weight by column, ``(in_channels, out_channels)``, which only the sparse form reads.
        If None, it turns the weight itself.
        """

    @abstractmethod
    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute ``gradᵀ x``, ``(out_channels, in_channels)``, into ``out`` if given.

        ``turned``, ``(in_channels, out_channels)``, is memory for the gradient by column, which the
        sparse form alone needs.
        """


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
        self._num_columns, self._values, self._perm = pattern.num_src, rows.values, perm
        self._places: Tensor | None = None
        of_rows = Aggregation(csc=pattern, weight=rows.values)
        of_columns = Aggregation(csc=by_column, weight=rows.values[perm])
        self._by_row = LinearMap(lambda: of_rows)
        self._by_column = LinearMap(lambda: of_columns)

    def drop(self, mask: Mask) -> None:
        """Apply dropout to the stored values as they were given. Later products read the result."""
        by_row, by_column = self._by_row.how, self._by_column.how
        if self._places is None:  # the values by row are the graph's own until now
            self._places = torch.empty_like(self._perm, dtype=torch.int64)
            self._places[self._perm.long()] = torch.arange(len(self._perm))
            by_row = replace(by_row, weight=torch.empty_like(self._values))
            self._by_row = LinearMap(lambda: by_row)
        csc = by_row.csc
        backend(self._values).drop_values(
            csc.indptr,
            csc.indices,
            self._values,
            self._places,
            mask.p,
            int(mask.seed),
            by_row.weight,
            by_column.weight,
            mask.nodes,
        )

    def placed(self, copies: DeviceCopies) -> SparseInput:
        """Return the same values on a device."""
        there = copy.copy(self)
        there._by_row = copies.aggregation(self._by_row.how, backward=False)
        there._by_column = copies.aggregation(self._by_column.how, backward=False)
        return there

    def multiply(
        self, weight: Tensor, out: Tensor, *, add: bool, turned: Tensor | None = None, after: After = None
    ) -> None:
        """Compute the product, of the weight by column."""
        rows = weight.t().contiguous() if turned is None else turned
        self._by_row.forward(rows, out, out if add else None, after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute the product's gradient, by column first."""
        rows = grad.new_empty(self._num_columns, grad.shape[1]) if turned is None else turned
        self._by_column.forward(grad, rows)
        return rows.t() if out is None else transpose(rows, out=out)


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


# ---- constants: values that depend on no parameter, computed once over the whole graph

_COLUMNS_AT_A_TIME = 32
"""Columns computed at a time, which bounds the temporary memory: where only some rows are kept, where several
operations follow each other, and in the reference, which takes memory per edge and column."""


def computed_once(
    ops: Sequence[ir.Operation],
    map_of: Callable[[ir.AdjacencyMatrix], Aggregation],
    x: Tensor,
    nodes: Tensor | None,
    read_by: Callable[[ir.Operation, list[Tensor]], list[Tensor]] = lambda _, inputs: inputs,
) -> Tensor:
    """Return ``(len(nodes), in_channels)`` rows of the last operation's value; all of them without ``nodes``.

    The operations are of the types :data:`.FOLDED`, in the order they run, starting from all features ``x``.
    ``map_of`` returns the linear map that an adjacency stands for, and ``read_by`` the rows that an operation
    reads, from all rows of its inputs.
    """
    maps = {op.adjacency: map_of(op.adjacency) for op in ops if isinstance(op, ir.Aggregate)}
    num_dst = [one.csc.num_dst for one in maps.values()][-1]

    def result(x: Tensor) -> Tensor:
        values = {ops[0].inputs[0]: x}
        for op in ops:
            values[op.out] = _folded(op, maps, read_by(op, [values[name] for name in op.inputs]))
        return values[ops[-1].out]

    if nodes is None and len(ops) == 1 and backend(x) is not reference:
        return result(x)
    out = x.new_empty(num_dst if nodes is None else nodes.numel(), x.shape[1])
    for start in range(0, x.shape[1], _COLUMNS_AT_A_TIME):
        part = slice(start, start + _COLUMNS_AT_A_TIME)
        rows = result(x[:, part])
        out[:, part] = rows if nodes is None else rows.index_select(0, nodes)
        del rows  # before the next ones take as much
    return out


def _folded(op: ir.Operation, maps: Mapping[ir.AdjacencyMatrix, Aggregation], inputs: list[Tensor]) -> Tensor:
    """Return the rows of an operation of the types :data:`.FOLDED`, between levels that all hold its rows."""
    if isinstance(op, ir.Aggregate):
        how, addend = maps[op.adjacency], inputs[1] if len(inputs) > 1 else None
        # Not in the kernels' pool, which would hold the memory for rows of steps.
        out = inputs[0].new_empty(how.csc.num_dst, inputs[0].shape[1])
        return how.forward(inputs[0], addend=addend, out=out)
    if isinstance(op, ir.DestinationRows):  # every level holds all nodes here
        return inputs[0]
    factors = op.factors if isinstance(op, ir.Combine) else (1.0,) * len(inputs)
    out = torch.mul(inputs[0], factors[0])
    for value, factor in zip(inputs[1:], factors[1:], strict=True):
        out.add_(value, alpha=factor)
    return out


# ---- features of nodes and edges


def features_by_value(request: StepRequest, streams: Streams | None) -> dict[str, NodeFeatures]:
    """Return the features that a program reads, by the name of the value that holds them."""
    program = request.program
    if not program.by_relation:
        return {INPUT: NodeFeatures(request, streams=streams)}
    read = {value for op in program.ops for value in op.inputs}
    return {
        part.input: NodeFeatures(request, part=number)
        for number, part in enumerate(program.node_types)
        if part.input in read and part.channels
    }


class NodeFeatures:
    """The forms in which the tasks of one program read the node features, in place wherever possible.

    ``part`` is the number of their node type, in a program over relations. ``streams`` reads the features
    block by block; if it is None, they lie in memory.
    """

    def __init__(self, request: StepRequest, *, part: int = 0, streams: Streams | None = None) -> None:
        self._request, self._graph, self._copies = request, request.graph, request.copies
        self._program = program = request.program
        self._part, self._streams = part, streams
        self._name = program.node_types[part].input
        readers = program.consumers(self._name)
        self._is_dropped = any(program.is_compact(op.out) for op in readers)
        self._is_factor = self._is_dropped or any(isinstance(op, Linear) for op in readers)
        self._path, self._width = program.path_of(self._name), program.inputs[self._name]
        self._dense: Tensor | None = None
        self._factor: Input | None = None

    @property
    def _x(self) -> Features | None:
        """The features as the graph has them now."""
        types = self._graph.types if self._program.by_relation else None
        return self._graph.x if types is None else list(types.nodes.values())[self._part].x

    @property
    def factor(self) -> Input:
        """The features in the form that the first weights multiply; available after :meth:`allocate`."""
        assert self._factor is not None
        return self._factor

    @property
    def factor_bytes(self) -> int:
        """Bytes that :attr:`factor` takes in addition to the graph.

        On the host, dense float32 features are used in place; others are widened as a whole, to a copy.
        """
        if self._streams is not None:
            return self._streams.nbytes
        x = self._x
        assert x is not None
        in_place = self._path == "dense" and self._copies is None
        if in_place or not self._is_factor:
            return self._widened_bytes
        nbytes = input_bytes(x, self._nodes(0), self._path)
        return self._widened_bytes + nbytes + nbytes * self._is_dropped  # values as given, their places

    @property
    def _widened_bytes(self) -> int:
        """Bytes of all rows as float32 on the host, where the graph keeps another dtype.

        They exist while the factor and constants are made, and stay if these use them unchanged.
        """
        x = self._x
        if x is None or self._copies is not None or not is_widened(x):
            return 0
        return 4 * x.shape[0] * x.shape[1]

    def allocate(self) -> None:
        """Make the factor."""
        if self._streams is not None:
            self._streams.open()
        elif self._is_factor:
            x, nodes = self._x, self._nodes(0)
            assert x is not None
            is_dense = self._path == "dense"
            made = DenseInput(self.all_rows(), nodes) if is_dense else compact_input(x, nodes, self._path)
            self._factor = made if self._copies is None else made.placed(self._copies)

    def release(self) -> None:
        """Free the arrays that only made the factor and the constants."""
        is_read = isinstance(self._factor, DenseInput) and self._copies is None
        if not is_read:
            self._dense = None

    def gather(self) -> None:
        """Copy the rows that a dense factor reads, in the level's order, so that it reads no others."""
        factor, nodes = self._factor, self._nodes(0)
        if isinstance(factor, DenseInput) and nodes is not None:
            self._factor = DenseInput(factor.x.index_select(0, nodes), None)

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
        rows = self._request.num_rows(LevelNodes(level, self._part))
        return Constant((rows, self._width), make, is_copy)

    def hoisted(self, op: Hoisted) -> Constant:
        """Return the ``(num_rows, in_channels)`` value that an operation computes once from the features."""
        place = self._program.place(op.out)

        def make() -> Tensor:
            nodes, edges = nodes_of(self._request.blocks, place), self._request.whole_edges

            def map_of(adjacency: ir.AdjacencyMatrix) -> Aggregation:
                return aggregation(adjacency, edges(adjacency.relation))

            return self._there(computed_once(op.of, map_of, self.all_rows(), nodes))

        return Constant((self._request.num_rows(place), self._width), make, is_copy=True)

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
        return nodes_of(self._request.blocks, LevelNodes(level, self._part))


class EdgeFeatures:
    """The edge features of all blocks in one matrix; each block's edges are a prefix of its rows.

    The graph's edge features are used in place if all edges are walked and they are float32.
    """

    def __init__(self, request: StepRequest) -> None:
        self._graph, self._blocks, self._copies = request.graph, request.blocks, request.copies
        program = request.program
        levels = [program.level(op.inputs[0]) for op in program.ops if op.reads_edges]
        self._first = min(levels, default=None)
        self._rows: Tensor | None = None
        self._loops: dict[tuple[int, str], Tensor | None] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that the matrix takes in addition to the graph."""
        attr = self._graph.edge_attr
        if self._first is None or attr is None:
            return 0
        loops = sum(self._blocks[level].after()[0] for level, _ in self._loops)
        of_loops = 4 * loops * attr.shape[1]
        in_place = attr.dtype == torch.float32 and attr.is_contiguous() and self._copies is None
        block = self._blocks[self._first].of(None)
        if in_place and block.edges is None:
            return of_loops
        return of_loops + 4 * block.csc.num_edges * attr.shape[1]

    def allocate(self) -> None:
        """Make the matrix, and the features of self-loops."""
        if self._first is None:
            return
        attr, edges = self._graph.edge_attr, self._blocks[self._first].of(None).edges
        assert attr is not None
        rows = attr.detach() if edges is None else attr.detach().index_select(0, edges)
        rows = row_contiguous(rows.to(torch.float32))
        self._rows = rows if self._copies is None else self._copies.matrix(rows)
        for level, fill in self._loops:
            nodes = self._blocks[level].after()[1]
            joined = joined_by_node(self._graph.csc, attr.detach(), fill)
            self._loops[level, fill] = joined if nodes is None else joined.index_select(0, nodes)

    def rows(self, level: int) -> Tensor:
        """Return the ``(num_edges, num_edge_features)`` features of a level's edges to the next level."""
        assert self._rows is not None
        return self._rows[: self._blocks[level].of(None).csc.num_edges]

    def plan_loops(self, level: int, fill: str) -> Callable[[], Tensor]:
        """Plan the ``(num_dst, num_edge_features)`` of self-loops; return a getter, valid once allocated."""
        self._loops[level, fill] = None

        def loops() -> Tensor:
            rows = self._loops[level, fill]
            assert rows is not None
            return rows

        return loops


def joined_by_node(csc: Csc, attr: Tensor, fill: str) -> Tensor:
    """Reduce the features of each node's in-edges, without self-loops, to ``(num_dst, num_edge_features)``.

    The result is float32, or float64 as ``attr`` is. Like PyG's ``scatter``, it is 0 for nodes without such
    edges, or 1 for a product.
    """
    dst = csc.destinations().long()
    kept = csc.indices.long() != dst
    dst, rows = dst[kept], attr[kept]
    rows = rows if rows.dtype == torch.float64 else rows.to(torch.float32)
    how = {"mean": "sum", "add": "sum", "sum": "sum", "min": "amin", "max": "amax", "mul": "prod"}[fill]
    out = rows.new_full((csc.num_dst, attr.shape[1]), float(fill == "mul"))
    out.scatter_reduce_(0, dst[:, None].expand_as(rows), rows, how, include_self=fill == "mul")
    if fill == "mean":
        # Not in place: autograd reads the sums, where the features are learned.
        out = out / torch.bincount(dst, minlength=csc.num_dst).clamp(min=1)[:, None]
    return out
