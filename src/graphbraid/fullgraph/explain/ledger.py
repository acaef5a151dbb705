"""Ledger: counts the work of each operation of a lowered program, forward and backward, and its least time.

Every matrix that an operation reads or writes moves between memory and processor once, and so do the ids of
its edges; if all of them fit in a cache, they move between that and the processor instead. An aggregation
reads one row per edge, and with self-loops its own; rows that miss in a simulated cache of a core's size
come from the cache behind it, and rows that miss in one of that size from memory, at the rate that was
measured in a region of their size. Rows that are read at random move as whole cache lines. Products count
their multiplications and additions, attention also its exponentials. A kernel's extra passes and scratch rows
are not counted, since they can be avoided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.costs import CostModel
from graphbraid.fullgraph.lowering.levels import Block, Blocks
from graphbraid.fullgraph.lowering.locality import ROWS_A_FETCH, cached_share
from graphbraid.graph.csc import Csc
from graphbraid.machine.hardware import Rates


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Bytes and operations of one pass; memory, cache and arithmetic work at the same time."""

    stream_bytes: float = 0.0
    """Bytes read from or written to memory in sequence."""
    random_bytes: float = 0.0
    """Bytes of rows read at random that miss every cache."""
    random_rate: float = 0.0
    """Bytes of them per second, as measured in a region of their size. If 0, :attr:`.Rates.row_bytes`."""
    outer_stream_bytes: float = 0.0
    """Bytes read or written in sequence where all fits in the cache behind the cores'."""
    outer_bytes: float = 0.0
    """Bytes of rows read at random that miss the cores' caches and are found in the cache behind them."""
    cached_bytes: float = 0.0
    """Bytes of all rows read at random, hits and misses, and of matrices that fit in the cores' caches."""
    flops: float = 0.0
    """Number of multiplications and additions."""
    exponentials: float = 0.0
    """Number of exponentials, which take their turn with the multiplications."""
    bit_seconds: float = 0.0
    """Seconds of products with features stored as bits, by their own measured rate."""

    def seconds(self, rates: Rates) -> float:
        """Return the longest time: of arithmetic, of bytes read, or of bytes brought to the cores."""
        fetched = self.stream_bytes / rates.stream_bytes
        fetched += self.random_bytes / (self.random_rate or rates.row_bytes)
        fetched += (
            self.outer_stream_bytes / rates.outer_stream_bytes + self.outer_bytes / rates.outer_row_bytes
        )
        cached = self.cached_bytes / rates.cached_row_bytes
        arithmetic = self.flops / rates.multiply_flops + self.exponentials / rates.exponentials
        return max(fetched, cached, arithmetic, self.bit_seconds)


_LINE = 64
"""Bytes of a cache line."""


class Ledger:
    """Counts the work of a program's operations.

    Args:
        program: a lowered program.
        blocks: the edges from each level to the next, on the host.
        rows: returns the number of nodes of a level, and of one type where there are types.
        costs: gives the features' density and the time of products with features stored as bits.
        caches: bytes of a core's own cache, and of all cache, for rows and matrices. If None, caches are not
            modelled: every row is read from memory once.
        row_rate: returns the measured bytes per second of rows that miss every cache, from the bytes of their
            region and of a row. If None, one rate counts for all of them.
    """

    def __init__(
        self,
        program: ir.Program,
        blocks: Blocks,
        rows: Callable[[int, int], int],
        costs: CostModel,
        caches: tuple[int, int] | None,
        *,
        row_rate: Callable[[int, int], float] | None = None,
    ) -> None:
        self._program, self._blocks, self._rows = program, blocks, rows
        self._facts, self._caches, self._row_rate = costs, caches, row_rate
        self._shares: dict[tuple[int, int, int], float] = {}
        self._summed: dict[str, tuple[Work, Work]] = {}
        """Work both ways of GAT that sums before the product in front of it; of the product, none."""
        for op in program.ops:
            if isinstance(op, ir.Attention):
                self._note_order(op)

    def forward(self, op: ir.Operation) -> Work:
        """Return the work of the pass that computes ``op``'s value."""
        if op.out in self._summed:
            return self._summed[op.out][0]
        return _COUNTS.get(type(op), _BY_ROWS)[0](self, op)

    def backward(self, op: ir.Operation) -> Work:
        """Return the work of computing the gradients of ``op``'s inputs and parameters from its value's."""
        if not self._program.learns(op.out):
            return Work()
        if op.out in self._summed:
            return self._summed[op.out][1]
        return _COUNTS.get(type(op), _BY_ROWS)[1](self, op)

    def outputs(self, num_nodes: int) -> Work:
        """Return the work of copying out the training nodes' outputs."""
        width = 4 * self._program.width(self._program.output)
        return self._work(2 * num_nodes * width)

    def outputs_backward(self, num_nodes: int) -> Work:
        """Return the work of taking in the outputs' gradient; other nodes' rows are written as zeros."""
        return self._work(
            num_nodes * 4 * self._program.width(self._program.output) + self._size(self._program.output)
        )

    # ---- matrices

    def _size(self, value: str) -> float:
        """Return the bytes of a value or its gradient; for the features, in the form that products read."""
        place, path = self._program.place(value), self._program.path_of(value)
        cells = self._rows(*place) * self._program.width(value)
        if path in {"dense", "streamed"}:
            return 4.0 * cells
        if path == "binary":
            return cells / 8
        return 8.0 * cells * self._facts.density_of(place.node_type)

    def _learning(self, op: ir.Operation) -> float:
        """Return the bytes of the gradients of ``op``'s inputs."""
        return sum(self._size(value) for value in set(op.inputs) if self._program.learns(value))

    def _rowwise(self, op: ir.Operation) -> Work:
        return self._work(sum(self._size(value) for value in set(op.inputs)) + self._size(op.out))

    def _rowwise_backward(self, op: ir.Operation) -> Work:
        """Count the gradient and the inputs as read, and the inputs' gradients as written."""
        read = self._size(op.out) + sum(self._size(value) for value in set(op.inputs))
        return self._work(read + self._learning(op))

    def _nothing(self, _: ir.Operation) -> Work:
        """Count nothing: for prefixes of other values' rows, gradients passed on unchanged, and constants."""
        return Work()

    def _through(self, op: ir.Following) -> float:
        """Return the bytes read to go back through a fused activation: its result, zero where it was."""
        return self._size(op.out) if op.after is not None and (op.after.act != "none") else 0.0

    # ---- linear maps

    def _linear(self, op: ir.Linear) -> Work:
        streams = sum(self._size(value) for value in op.inputs) + self._size(op.out) + 4.0 * prod(op.shape)
        return self._product(op, streams, 1, table_rows=op.shape[1])

    def _linear_backward(self, op: ir.Linear) -> Work:
        source = op.inputs[0]
        learns = self._program.learns(source)
        streams = self._size(op.out) + self._through(op) + 4.0 * prod(op.shape) * (learns + 1)
        if op.weight.requires_grad:
            streams += self._size(source)
        if learns:
            streams += self._size(source)
        table_rows = self._rows(*self._program.place(source))
        return self._product(op, streams, op.weight.requires_grad + learns, table_rows=table_rows)

    def _product(self, op: ir.Linear, streams: float, times: int, *, table_rows: int) -> Work:
        """Count ``times`` products of the rows and the weight, which stream ``streams`` bytes of matrices.

        Each stored value of sparse features reads one row, of the ``table_rows`` of the weight or gradient.
        """
        width, depth = op.shape
        place, costs = self._program.place(op.inputs[0]), self._facts
        rows, path = self._rows(*place), self._program.path_of(op.inputs[0])
        if path == "binary":
            return self._work(streams, bit_seconds=times * costs.product_seconds(path, rows, width))
        if path != "sparse":
            return self._work(streams, flops=2.0 * times * rows * depth * width)
        reads, table = times * rows * depth * costs.density_of(place.node_type), 4 * table_rows * width
        shares = [min(1.0, size / max(table, 1)) for size in self._caches or ()]
        return self._work(
            streams, flops=2.0 * reads * width, reads=reads, row_bytes=4 * width, table=table, shares=shares
        )

    # ---- edges

    def _aggregate(self, op: ir.Aggregate | ir.Messages) -> Work:
        """Count one row per edge. If a message reads both ends, the other end's rows come in order."""
        return self._edges(op, self._size(op.out) + self._added(op), times=1)

    def _aggregate_backward(self, op: ir.Aggregate) -> Work:
        if not self._program.learns(op.inputs[0]):
            return self._work(self._through(op) + self._size(op.out) if self._through(op) else 0.0)
        return self._edges(op, self._size(op.inputs[0]) + self._through(op), times=1)

    def _added(self, op: ir.Operation) -> float:
        return sum(self._size(value) for value in op.inputs[1:])

    def _attention(self, op: ir.Attention) -> Work:
        """Count one exponential per edge and head; backward might keep them."""
        width, exponentials = op.heads * op.channels, self._block(op).csc.num_edges * float(op.heads)
        return self._attended(op, self._added(op), times=1, width=width, exponentials=exponentials)

    def _attention_backward(self, op: ir.Attention) -> Work:
        """Count rows of the sources and gradients for GATv2, of gradients alone for GAT; a mean has one.

        GAT's own rows stay in a core's cache. For each edge and head they are multiplied by a row of
        gradients, for the logit's gradient, and that row by a coefficient.
        """
        if op.kind == "gatv2":
            return self._attended(op, self._learning(op), times=2, width=op.heads * op.channels)
        width = op.channels if op.averages else op.heads * op.channels
        products = (1 + self._program.learns(op.inputs[0])) * op.heads * op.channels - width
        return self._attended(op, self._learning(op), times=1, width=width, products=products)

    def _note_order(self, op: ir.Attention) -> None:
        """Enter GAT that takes less time if it sums rows before the product in front of it.

        Destinations then have the product, and backward the gradients of weight and sums. Sources have the
        logits, and the gradients through them. Edges have sums by head; backward inner products by head, and
        the rows' gradients.
        """
        product = self._program.producer(op.inputs[0])
        if op.kind != "gat" or len(op.inputs) > 1 or type(product) is not ir.Linear:
            return
        source, is_alone = product.inputs[0], len(self._program.consumers(product.out)) == 1
        is_plain = len(product.inputs) == 1 and product.after is None and is_alone
        if not is_plain or self._program.path_of(source) not in {"dense", "streamed"}:
            return
        (width, depth), learns = product.shape, self._program.learns(source)
        num_src, num_dst = (self._rows(*self._program.place(one)) for one in (source, op.out))
        num_edges, heads = self._block(op).csc.num_edges, op.heads
        works = []
        for times, more in ((1, 1), (2, 1 + learns)):
            exponentials = float(num_edges * heads) if times == 1 else 0.0
            streams = more * self._size(source) + times * 4.0 * width * depth
            work = self._attended(op, streams, times=1, width=depth, exponentials=exponentials)
            products = times * num_dst * width + more * heads * (num_src + num_edges)
            works.append(replace(work, flops=2.0 * depth * products))
        both, rates = (product, op), self._facts.rates
        before = sum(one.seconds(rates) for one in (*map(self.forward, both), *map(self.backward, both)))
        if sum(one.seconds(rates) for one in works[: 1 + self._program.learns(op.out)]) < before:
            self._summed |= {product.out: (Work(), Work()), op.out: (works[0], works[1])}

    def _attended(
        self,
        op: ir.Attention,
        streams: float,
        *,
        times: int,
        width: int,
        products: int = 0,
        exponentials: float = 0.0,
    ) -> Work:
        """Count the edges and their features, which GATv2 maps, and more ``products`` for each edge."""
        columns = 0 if op.edge_weight is None else op.edge_weight.shape[1]
        if op.edge_weight is not None and op.kind != "gat":
            products += op.edge_weight.numel()
        streams += self._size(op.out)
        return self._edges(
            op, streams, times, width, columns=columns, mapped=products, exponentials=exponentials
        )

    def _maximum(self, op: ir.Maximum) -> Work:
        winners = self._size(op.out) if self._program.learns(op.inputs[0]) else 0.0
        return self._edges(op, self._size(op.out) + winners, times=1)

    def _maximum_backward(self, op: ir.Maximum) -> Work:
        if op.ties == "first":
            return self._work(2 * self._size(op.out) + self._learning(op))
        return self._edges(op, 3 * self._size(op.out) + self._learning(op), times=1)

    def _messages_backward(self, op: ir.Messages) -> Work:
        """Count the rows that the messages read again, and the rows that receive their gradients."""
        return self._edges(op, self._size(op.out) + self._learning(op), times=2)

    def _gine(self, op: ir.Gine) -> Work:
        return self._with_edge_rows(op, self._size(op.out) + self._added(op), times=1)

    def _gine_backward(self, op: ir.Gine) -> Work:
        """Count one pass by source, for the rows' gradient, and one by edge, for the map's."""
        times = 2 * self._program.learns(op.inputs[0]) + (op.weight is not None)
        return self._with_edge_rows(op, self._size(op.out) + self._learning(op), times=times)

    def _with_edge_rows(self, op: ir.Gine, streams: float, *, times: int) -> Work:
        """Count the edges and their features, which are mapped where the layer has a map."""
        mapped = 0 if op.weight is None else op.edge_channels * self._program.width(op.out)
        return self._edges(op, streams, times, columns=op.edge_channels, mapped=mapped)

    def _edges(
        self,
        op: ir.Operation,
        streams: float,
        times: int,
        width: int | None = None,
        *,
        columns: int = 0,
        mapped: int = 0,
        exponentials: float = 0.0,
    ) -> Work:
        """Count a row of ``width`` columns read ``times`` times per edge; ids and matrices move once.

        If ``width`` is None, the input's width counts. Edge features, ``columns`` for each edge, are read
        once. Each edge takes ``mapped`` multiplications beside those of its rows.
        """
        csc = self._block(op).csc
        width = self._program.width(op.inputs[0]) if width is None else width
        row_bytes = width * (op.rows.itemsize if isinstance(op, ir.Aggregate) else 4)
        streams += csc.indices.nbytes + csc.indptr.nbytes + 4.0 * csc.num_edges * columns
        if csc.weight is not None and isinstance(op, ir.Aggregate) and op.adjacency.weighted:
            streams += csc.weight.nbytes
        table, reads = csc.num_src * row_bytes, float(times * csc.num_edges)
        shares = [self._share(csc, row_bytes, size) for size in self._caches or ()]
        once = times * float(table) if not shares or shares[1] == 1 else 0.0
        return self._work(
            streams,
            reads=reads,
            row_bytes=row_bytes,
            table=table,
            shares=shares,
            once=once,
            own=times * float(self._loops(op, csc)),
            flops=2.0 * (reads * width + csc.num_edges * mapped),
            exponentials=exponentials,
        )

    @staticmethod
    def _loops(op: ir.Operation, csc: Csc) -> int:
        """Return the number of rows that an aggregation or attention adds to their own sums, in order."""
        loops = isinstance(op, ir.Aggregate) and op.adjacency.loop_scale != 0
        loops |= isinstance(op, ir.Attention) and op.self_loops
        return min(csc.num_src, csc.num_dst) if loops else 0

    def _block(self, op: ir.Operation) -> Block:
        """Return the edges that an operation walks."""
        return self._blocks[self._program.level(op.inputs[0])].of(op.walks)

    def _share(self, csc: Csc, row_bytes: int, cache_bytes: int) -> float:
        """Return the share of a block's row reads that hit a cache."""
        if csc.num_src * row_bytes <= cache_bytes or not csc.num_edges:
            return 1.0
        key = (id(csc), row_bytes, cache_bytes)
        if key not in self._shares:
            fetches = Csc(csc.indptr, csc.indices // ROWS_A_FETCH, csc.num_src, trusted=True)
            capacity = max(1, cache_bytes // (row_bytes * ROWS_A_FETCH))
            self._shares[key] = cached_share(fetches, None, capacity)
        return self._shares[key]

    def _work(
        self,
        streams: float,
        *,
        reads: float = 0.0,
        row_bytes: int = 0,
        table: int = 0,
        shares: Sequence[float] = (),
        once: float = 0.0,
        own: float = 0.0,
        **other: float,
    ) -> Work:
        """Make a :class:`Work`; matrices that together fit in a cache are counted as read from there.

        There are ``streams`` bytes of matrices and ids, and ``reads`` rows read at random, in whole cache
        lines, of a table. ``shares`` of these hit a core's cache and all cache; empty without caches.
        ``once`` are the bytes of the table where a cache holds it, unless ``streams`` counts them.
        ``own`` rows of the table are read in order, which a core's cache is taken to hold.
        """
        inner, whole = self._caches or (0, 0)
        near, share = shares or (1.0, 1.0)
        rows = reads * -(-row_bytes // _LINE) * _LINE
        random, outer = (1 - share) * rows, max(0.0, share - near) * rows
        rows += own * row_bytes
        if random or streams + once > whole:
            return Work(
                stream_bytes=streams + once,
                random_bytes=random,
                random_rate=self._row_rate(table, row_bytes) if random and self._row_rate else 0.0,
                outer_bytes=max(0.0, outer - once),
                cached_bytes=rows,
                **other,
            )
        if streams + once > inner:
            streams += 0.0 if outer else once
            return Work(outer_stream_bytes=streams, outer_bytes=outer, cached_bytes=rows, **other)
        return Work(cached_bytes=max(rows, streams + once), **other)


_Counts = tuple[Callable[[Ledger, Any], Work], Callable[[Ledger, Any], Work]]
_BY_ROWS: _Counts = Ledger._rowwise, Ledger._rowwise_backward
_COUNTS: dict[type[ir.Operation], _Counts] = {
    ir.DestinationRows: (Ledger._nothing, Ledger._nothing),
    ir.Hoisted: (Ledger._nothing, Ledger._nothing),
    ir.Add: (Ledger._rowwise, Ledger._nothing),
    ir.Linear: (Ledger._linear, Ledger._linear_backward),
    ir.Aggregate: (Ledger._aggregate, Ledger._aggregate_backward),
    ir.Attention: (Ledger._attention, Ledger._attention_backward),
    ir.Maximum: (Ledger._maximum, Ledger._maximum_backward),
    ir.Messages: (Ledger._aggregate, Ledger._messages_backward),
    ir.Gine: (Ledger._gine, Ledger._gine_backward),
}
"""Methods that count an operation's work, forward and backward; all others read and write their rows once."""
