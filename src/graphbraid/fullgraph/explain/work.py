"""Work: the bytes and operations that a lowered operation cannot avoid, forward and backward.

Every matrix that an operation reads or makes crosses the memory once, and so do the ids of its edges; what
fits in the cache crosses that instead. An aggregation reads a row for each edge: those that a simulated cache
of this machine's size does not answer come from memory. Products count their multiplications and additions.
What a kernel does beside that, passes of its own and scratch rows, is not counted: it can be avoided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from graphbraid.fullgraph.lowering.facts import Facts
from graphbraid.fullgraph.lowering.levels import Block
from graphbraid.fullgraph.lowering.locality import ROWS_A_FETCH, cached_share
from graphbraid.fullgraph.program import (
    INPUT,
    Add,
    Aggregate,
    Attention,
    Following,
    Gine,
    Hoisted,
    Linear,
    Maximum,
    Operation,
    Own,
    Program,
)
from graphbraid.graph.csc import Csc
from graphbraid.machine.rates import Rates


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What must be done: a machine does these four at the same time, each at its own rate."""

    stream_bytes: float = 0.0
    """Read or written in sequence, from or to memory."""
    random_bytes: float = 0.0
    """Rows read at random that the cache does not hold."""
    cached_bytes: float = 0.0
    """Rows read at random in all, and matrices that the cache holds."""
    flops: float = 0.0
    """Multiplications and additions."""
    bit_seconds: float = 0.0
    """Of products with features held as bits, at their own measured rate."""

    def seconds(self, rates: Rates) -> float:
        """The least time: the longest of memory, cache and arithmetic."""
        memory = self.stream_bytes / rates.stream_bytes + self.random_bytes / rates.row_bytes
        cache, arithmetic = self.cached_bytes / rates.cached_row_bytes, self.flops / rates.multiply_flops
        return max(memory, cache, arithmetic, self.bit_seconds)


class Ledger:
    """Counts the work of a program's operations.

    Args:
        program: lowered.
        blocks: the way from each level to the next, where the graph is.
        rows: nodes of each level.
        facts: the features' share of non-zeros, and the rates of their product as bits.
        cache_bytes: of the cache, for rows and matrices; None: as if it held each row once read, where
            caches are not modelled.
    """

    def __init__(
        self,
        program: Program,
        blocks: Sequence[Block],
        rows: Callable[[int], int],
        facts: Facts,
        cache_bytes: int | None,
    ) -> None:
        self._program, self._blocks, self._rows = program, blocks, rows
        self._facts, self._cache_bytes = facts, cache_bytes
        self._shares: dict[tuple[int, int], float] = {}

    def forward(self, op: Operation) -> Work:
        """Of the pass that makes ``op``'s value."""
        return _FORWARD.get(type(op), Ledger._rowwise)(self, op)

    def backward(self, op: Operation) -> Work:
        """Of the pass from the gradient of ``op``'s value to those of its inputs and parameters."""
        if not self._program.learns(op.out):
            return Work()
        return _BACKWARD.get(type(op), Ledger._rowwise_backward)(self, op)

    def outputs(self, num_nodes: int) -> Work:
        """Of handing out the training nodes' outputs."""
        width = 4 * self._program.width(self._program.output)
        return self._work(2 * num_nodes * width)

    def outputs_backward(self, num_nodes: int) -> Work:
        """Of taking their gradient in: the rows of other nodes are zeros that must be written."""
        return self._work(
            num_nodes * 4 * self._program.width(self._program.output) + self._size(self._program.output)
        )

    # ---- matrices

    def _size(self, value: str) -> float:
        """Bytes of a value, or of its gradient; of the features in the form that products read."""
        if value != INPUT or self._program.input_path == "dense":
            return 4.0 * self._rows(self._program.level(value)) * self._program.width(value)
        cells = self._rows(0) * self._program.in_channels
        if self._program.input_path == "binary":
            return cells / 8
        return 8.0 * cells * self._facts.density

    def _learning(self, op: Operation) -> float:
        """Bytes of the gradients of ``op``'s inputs."""
        return sum(self._size(value) for value in set(op.inputs) if self._program.learns(value))

    def _rowwise(self, op: Operation) -> Work:
        return self._work(sum(self._size(value) for value in set(op.inputs)) + self._size(op.out))

    def _rowwise_backward(self, op: Operation) -> Work:
        """The gradient and what it is a function of are read, the inputs' gradients are written."""
        read = self._size(op.out) + sum(self._size(value) for value in set(op.inputs))
        return self._work(read + self._learning(op))

    def _nothing(self, _: Operation) -> Work:
        """Rows that are others' first rows, gradients that are passed on, what is computed once."""
        return Work()

    def _through(self, op: Following) -> float:
        """Bytes read for the way back through what follows an operation: its result says where it was 0."""
        return self._size(op.out) if op.after is not None and (op.after.act != "none") else 0.0

    # ---- linear maps

    def _linear(self, op: Linear) -> Work:
        streams = sum(self._size(value) for value in op.inputs) + self._size(op.out) + 4.0 * prod(op.shape)
        return self._product(op, streams, 1)

    def _linear_backward(self, op: Linear) -> Work:
        source = op.inputs[0]
        learns = self._program.learns(source)
        streams = self._size(op.out) + self._through(op) + 4.0 * prod(op.shape) * (learns + 1)
        if op.weight.requires_grad:
            streams += self._size(source)
        if learns:
            streams += self._size(source)
        return self._product(op, streams, op.weight.requires_grad + learns)

    def _product(self, op: Linear, streams: float, times: int) -> Work:
        """``times`` products of the rows with a weight's size, beside so many bytes of matrices."""
        width, depth = op.shape
        rows, facts = self._rows(self._program.level(op.inputs[0])), self._facts
        path = self._program.input_path if op.inputs[0] == INPUT else "dense"
        if path == "binary":
            return self._work(streams, bit_seconds=times * facts.binary_seconds(rows, width))
        cells = rows * depth * (facts.density if path == "sparse" else 1.0)
        rows_read = times * 4.0 * cells * width if path == "sparse" else 0.0  # of the weight: the cache's
        return self._work(streams, flops=2.0 * times * cells * width, cached=rows_read)

    # ---- edges

    def _aggregate(self, op: Aggregate) -> Work:
        return self._edges(op, self._size(op.out) + self._added(op), times=1)

    def _aggregate_backward(self, op: Aggregate) -> Work:
        if not self._program.learns(op.inputs[0]):
            return self._work(self._through(op) + self._size(op.out) if self._through(op) else 0.0)
        return self._edges(op, self._size(op.inputs[0]) + self._through(op), times=1)

    def _added(self, op: Operation) -> float:
        return sum(self._size(value) for value in op.inputs[1:])

    def _attention(self, op: Attention) -> Work:
        return self._attended(op, self._added(op), times=1)

    def _attention_backward(self, op: Attention) -> Work:
        return self._attended(op, self._learning(op), times=2)

    def _attended(self, op: Attention, streams: float, times: int) -> Work:
        """:meth:`_edges`, and the edges' features: read once, by GATv2 multiplied once with their map."""
        streams += self._size(op.out)
        if op.edge_weight is None:
            return self._edges(op, streams, times)
        num_edges = self._blocks[self._program.level(op.inputs[0])].csc.num_edges
        work = self._edges(op, streams + 4.0 * num_edges * op.edge_weight.shape[1], times)
        mapped = 2.0 * num_edges * op.edge_weight.numel() if op.kind == "gatv2" else 0.0
        return replace(work, flops=work.flops + mapped)

    def _maximum(self, op: Maximum) -> Work:
        winners = self._size(op.out) if self._program.learns(op.inputs[0]) else 0.0
        return self._edges(op, self._size(op.out) + winners, times=1)

    def _maximum_backward(self, op: Maximum) -> Work:
        if op.ties == "first":
            return self._work(2 * self._size(op.out) + self._learning(op))
        return self._edges(op, 3 * self._size(op.out) + self._learning(op), times=1)

    def _gine(self, op: Gine) -> Work:
        return self._with_edge_rows(op, self._size(op.out) + self._added(op), times=1, products=1)

    def _gine_backward(self, op: Gine) -> Work:
        """By source, to the rows, and in the edges' order, to their map: each reads what the sums were of."""
        times = 2 * self._program.learns(op.inputs[0]) + (op.weight is not None)
        return self._with_edge_rows(op, self._size(op.out) + self._learning(op), times=times, products=1)

    def _with_edge_rows(self, op: Gine, streams: float, *, times: int, products: int) -> Work:
        """:meth:`_edges` that also read the edges' features once, and multiply them where they are mapped."""
        num_edges, width = (
            self._blocks[self._program.level(op.inputs[0])].csc.num_edges,
            self._program.width(op.out),
        )
        work = self._edges(op, streams + 4.0 * num_edges * op.edge_channels, times)
        flops = 0.0 if op.weight is None else 2.0 * products * num_edges * op.edge_channels * width
        return replace(work, flops=work.flops + flops)

    def _edges(self, op: Operation, streams: float, times: int) -> Work:
        """Every edge reads a row ``times`` times; ids, weights and matrices cross once."""
        source = op.inputs[0]
        level = self._program.level(source)
        csc, width = self._blocks[level].csc, self._program.width(source)
        row_bytes = width * (op.rows.itemsize if isinstance(op, Aggregate) else 4)
        ids = csc.indices.nbytes + csc.indptr.nbytes
        if csc.weight is not None and isinstance(op, Aggregate) and op.adjacency.weighted:
            ids += csc.weight.nbytes
        reads = float(times * csc.num_edges * row_bytes)
        share = self._share(level, row_bytes)
        once = times * float(csc.num_src * row_bytes)
        return self._work(
            streams + ids + (once if share == 1 else 0.0),
            random=(1 - share) * reads,
            cached=reads,
            flops=2.0 * times * csc.num_edges * width,
        )

    def _share(self, level: int, row_bytes: int) -> float:
        """Share of a block's row reads that the cache answers; 1: each row crosses the memory once."""
        csc = self._blocks[level].csc
        if self._cache_bytes is None or csc.num_src * row_bytes <= self._cache_bytes or not csc.num_edges:
            return 1.0
        if (level, row_bytes) not in self._shares:
            fetches = Csc(csc.indptr, csc.indices // ROWS_A_FETCH, csc.num_src, trusted=True)
            capacity = max(1, self._cache_bytes // (row_bytes * ROWS_A_FETCH))
            self._shares[level, row_bytes] = cached_share(fetches, None, capacity)
        return self._shares[level, row_bytes]

    def _work(self, streams: float, *, random: float = 0.0, cached: float = 0.0, **other: float) -> Work:
        """Matrices that fit in the cache all together are read from there."""
        if self._cache_bytes is not None and not random and streams <= self._cache_bytes:
            return Work(cached_bytes=max(cached, streams), **other)
        return Work(stream_bytes=streams, random_bytes=random, cached_bytes=cached, **other)


_Count = Callable[[Ledger, Any], Work]
_FORWARD: dict[type[Operation], _Count] = {
    Own: Ledger._nothing,
    Hoisted: Ledger._nothing,
    Linear: Ledger._linear,
    Aggregate: Ledger._aggregate,
    Attention: Ledger._attention,
    Maximum: Ledger._maximum,
    Gine: Ledger._gine,
}
_BACKWARD: dict[type[Operation], _Count] = {
    Own: Ledger._nothing,
    Hoisted: Ledger._nothing,
    Add: Ledger._nothing,
    Linear: Ledger._linear_backward,
    Aggregate: Ledger._aggregate_backward,
    Attention: Ledger._attention_backward,
    Maximum: Ledger._maximum_backward,
    Gine: Ledger._gine_backward,
}
"""Of operations that work edge by edge or multiply; all others read and write their rows once."""
