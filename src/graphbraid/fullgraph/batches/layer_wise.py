"""LayerWise: a program runs on a whole graph level by level, without gradients and in bounded memory.

The rows that a level's nodes need are computed in chunks of nodes, each with all its in-edges. Rows that a
later level reads are kept, in memory or in a temporary file. A level has only the nodes that the levels after
it read. So each row is computed once, and no neighbourhood grows with the number of levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from graphbraid.errors import ResourceError
from graphbraid.features.rows.row_stream import ScratchRows
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.batches.fusing import couples_rows
from graphbraid.fullgraph.batches.operations import RUN, BatchRun, loop_rows
from graphbraid.fullgraph.device import csc_on
from graphbraid.fullgraph.lowering.levels import LAPLACIANS, aggregation, chunks
from graphbraid.fullgraph.lowering.passes import swapped
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.csc import Csc, indptr_of, ranges
from graphbraid.graph.types import Relation
from graphbraid.ops import Aggregation
from graphbraid.ops.kernels import sum_dtype
from graphbraid.ops.sparse_linear import sparse_linear

FeatureLookup = Callable[[int, Tensor], Tensor | SparseFeatures]
"""Returns the feature rows of nodes of a type, by its number, dense or sparse, of the parameters' dtype."""

_ALONG_EDGES = (ir.Aggregate, ir.Attention, ir.Gine, ir.Maximum, ir.Messages)
"""Operations whose result for some nodes comes from the rows of these nodes' in-edges alone."""
_EDGE_BYTES = 96
"""Bytes per edge of a chunk: its position, source and local ids as int64, and the temporaries of ``unique``
and of a layer's scores."""
_SPARE = 16 << 20
"""Bytes by which a single node may exceed the budget: little beside the memory of an interpreter."""


def why_not_by_level(program: ir.Program, device: torch.device) -> str:
    """Return why a program cannot run level by level, as a clause; empty if it can."""
    reasons = (f"{op.symbol} ({op.details()}) {why}" for op in program.ops if (why := _why_not(op, device)))
    if program.by_relation and program.reads_edges:
        return "features of edges are read by relation"
    return next(reasons, "")


def _why_not(op: ir.Operation, device: torch.device) -> str:
    of_edges = isinstance(op, ir.Messages) or (isinstance(op, ir.Attention) and op.reads_edges)
    walks_otherwise = op.moves and not isinstance(op, ir.DestinationRows) and type(op) not in _ALONG_EDGES
    walks_otherwise |= isinstance(op, ir.RelationAttention)
    is_laplacian = isinstance(op, ir.Aggregate) and op.adjacency.kind in LAPLACIANS
    conditions = {
        "may make each row of all rows": couples_rows(op),
        "reads the edges of the whole graph": isinstance(op, ir.Break) and bool(op.reads),
        "reads several relations at once": walks_otherwise,
        "runs along edges that it computes of the whole graph": isinstance(op, ir.Messages)
        and op.edges is not None,
        "reads a result that another part of the model keeps": isinstance(op, ir.Break)
        and bool(op.read_breaks or op.layers),
        "is scaled by its largest entry, that of all edges": is_laplacian,
        "needs the CPU": of_edges and device.type != "cpu",
        "has no operator": not isinstance(op, ir.DestinationRows | ir.Learned) and type(op) not in RUN,
    }
    return next((why for why, holds in conditions.items() if holds), "")


def at_narrower_side(program: ir.Program) -> ir.Program:
    """Return a program whose sums over in-neighbours read the narrower side of a linear map beside them.

    Where both sides are equally wide, the sum comes first: other operations may read its rows, too.
    """
    for op in program.ops:
        if not isinstance(op, ir.Aggregate) or len(op.inputs) > 1:
            continue
        before, after = program.producer(op.inputs[0]), program.consumers(op.out)
        pair: tuple[ir.Operation, ir.Operation]
        if type(before) is ir.Linear and len(before.inputs) == 1 and len(program.consumers(before.out)) == 1:
            pair, gains = (before, op), program.width(before.inputs[0]) <= program.width(before.out)
        elif len(after) == 1 and type(after[0]) is ir.Linear and len(after[0].inputs) == 1:
            pair, gains = (op, after[0]), program.width(after[0].out) < program.width(op.out)
        else:
            continue
        if gains:
            return at_narrower_side(swapped(program, *pair))
    return program


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LevelPass:
    """One pass over nodes of a type: the operations whose results belong to them at one level."""

    place: ir.LevelNodes
    nodes: Tensor
    """``(num_nodes,)`` int64 ids."""
    is_all: bool
    """Whether these are all nodes of the type, in their order."""
    ops: Sequence[ir.Operation]
    results: Sequence[str]
    """Values whose rows are kept for later passes; in the last pass, the program's output."""


@dataclass(frozen=True, eq=False, slots=True)
class _Kept:
    rows: ScratchRows
    ids: Tensor | None
    """Nodes of the rows, ascending; None for all nodes."""

    def gather(self, nodes: Tensor) -> Tensor:
        return self.rows.gather(nodes if self.ids is None else torch.searchsorted(self.ids, nodes))


class LayerWise:
    """A program that runs level by level over chunks of nodes.

    Args:
        program: a program that was read from a model in evaluation mode, and not lowered, which
            :func:`why_not_by_level` allows.
        graph: the graph.
        features: returns feature rows.
        device: the device that computes; rows are kept on the CPU.
        budget: bytes of memory for rows that are kept and for a chunk, beside the graph and its features.
        folder: folder of the temporary files. If None, the system's.
        check: function called between chunks, which may raise to stop.
        dtype: dtype of rows and parameters.
    """

    most_nodes = 0.5
    """Largest share of a type's nodes for which a level computes single rows. Above it, it computes all."""

    def __init__(
        self,
        program: ir.Program,
        graph: Graph,
        features: FeatureLookup,
        *,
        device: torch.device,
        budget: int,
        folder: Path | None = None,
        check: Callable[[], None] = lambda: None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.program, self.graph, self.device, self.dtype = program, graph, device, dtype
        self._features, self._budget, self._folder, self._check = features, budget, folder, check
        self.types = graph.all_types
        self._counts = [nodes.num_nodes for nodes in self.types.nodes.values()]
        # In the current chunk, the position of each node among its sources; -1 where it is none.
        self._local = [torch.full((count,), -1, dtype=torch.int32) for count in self._counts]
        self._ops: dict[ir.LevelNodes, list[ir.Operation]] = {}
        for op in program.ops:
            self._ops.setdefault(program.place(op.out), []).append(op)
        self._ops.setdefault(program.place(program.output), [])
        self._last_read: dict[str, int] = {}
        for op in program.ops:
            for value in op.inputs:
                root = self.root(value)
                self._last_read[root] = max(self._last_read.get(root, 0), program.level(op.out))
        self._kept: dict[str, _Kept] = {}
        self._scales: dict[ir.AdjacencyMatrix, Tensor] = {}

    def run(self, nodes: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the outputs for ``nodes`` in chunks: the place of the first node, and ``(n, width)`` rows.

        Args:
            nodes: ``(num_nodes,)`` int64 ids, of the type that the program has outputs of.

        Raises:
            ResourceError: a single node does not fit the budget, or the disk is full.
        """
        *before, last = self.passes(nodes)
        for one in before:
            self.begin(one)
            for start, end in self.cut(one):
                self._check()
                self.keep(one, start, self.rows(one, one.nodes[start:end]))
        for start, end in self.cut(last):
            yield start, self.rows(last, last.nodes[start:end])[self.program.output]

    # ---- passes

    def root(self, value: str) -> str:
        """Return the value that holds a value's rows: rows of destinations are another value's first ones."""
        while isinstance(op := self.program.producer(value), ir.DestinationRows):
            value = op.inputs[0]
        return value

    def passes(self, nodes: Tensor) -> list[LevelPass]:
        """Return the passes that lead to the outputs of ``nodes``, in their order."""
        program = self.program
        output = program.place(program.output)
        needed: dict[ir.LevelNodes, Tensor | None] = {output: nodes}
        found = []
        for place in sorted(self._ops, reverse=True):
            if place not in needed:  # nothing reads its rows
                continue
            ids, ops = needed[place], self._ops[place]
            if ids is not None and place == output:
                ids = torch.unique(ids)
            run = [op for op in ops if not isinstance(op, ir.DestinationRows)]
            walks = {op.walks for op in run if op.moves}
            # In one order: ranks that hold parts ask each other for the sources of each relation.
            for relation in sorted(walks, key=lambda one: -1 if one is None else one.number):
                read = self._sources_of(ids, relation, place)
                source = place.node_type if relation is None else relation.source
                self._add(needed, ir.LevelNodes(place.level - 1, source), read)
            if any(op.moves for op in ops):
                self._add(needed, ir.LevelNodes(place.level - 1, place.node_type), ids)
            own = nodes if place == output else needed[place]
            results = [op.out for op in run if self._last_read.get(op.out, 0) > place.level]
            found.append(
                LevelPass(
                    place=place,
                    nodes=torch.arange(self._counts[place.node_type]) if own is None else own,
                    is_all=own is None,
                    ops=run,
                    results=[program.output] if place == output else results,
                )
            )
        return [one for one in reversed(found) if one.results]

    def _add(
        self, needed: dict[ir.LevelNodes, Tensor | None], place: ir.LevelNodes, ids: Tensor | None
    ) -> None:
        before = needed.get(place, torch.empty(0, dtype=torch.int64))
        if ids is None or before is None:
            needed[place] = None
            return
        both = ids if not before.numel() else torch.unique(torch.cat((before, ids)))
        needed[place] = None if both.numel() > self.most_nodes * self._counts[place.node_type] else both

    def _sources_of(
        self, ids: Tensor | None, relation: Relation | None, place: ir.LevelNodes
    ) -> Tensor | None:
        """Return the sources that some nodes of a level read, ascending; None where these are most nodes."""
        if ids is None or ids.numel() > self.most_nodes * self._counts[place.node_type]:
            return None
        return self._all_sources(ids, relation, place.node_type)

    def _all_sources(self, ids: Tensor, relation: Relation | None, node_type: int) -> Tensor:
        """Return the sources of all in-edges of some nodes, ascending."""
        source = node_type if relation is None else relation.source
        is_read = torch.zeros(self._counts[source], dtype=torch.bool)
        most_edges = self._budget // 2 // _EDGE_BYTES
        for start, end, _ in chunks(self._degrees(ids, relation), most_edges):
            is_read[self._in_edges(ids[start:end], relation)[1]] = True
        return is_read.nonzero().flatten()

    # ---- rows that are kept

    def begin(self, one: LevelPass) -> None:
        """Make room for the results of a pass, in memory as far as half the budget has room for them.

        Rows that neither this pass nor a later one reads are dropped before.
        """
        self._kept = {v: kept for v, kept in self._kept.items() if self._last_read[v] >= one.place.level}
        for value in one.results:
            self._make_room(value, one.nodes, self.program.width(value), is_all=one.is_all)

    def _make_room(self, value: str, nodes: Tensor, width: int, *, is_all: bool = False) -> ScratchRows:
        held = sum(kept.rows.memory_bytes for kept in self._kept.values())
        fits = held + nodes.numel() * width * self.dtype.itemsize <= self._budget // 2
        rows = ScratchRows(nodes.numel(), width, in_memory=fits, folder=self._folder, dtype=self.dtype)
        self._kept[value] = _Kept(rows, None if is_all else nodes)
        return rows

    def kept_bytes(self, passes: Sequence[LevelPass]) -> tuple[int, int]:
        """Return the most bytes of kept rows at a time, in memory and in files."""
        held, most = dict[str, tuple[int, int]](), [0, 0]
        for one in passes[:-1]:
            held = {v: nbytes for v, nbytes in held.items() if self._last_read[v] >= one.place.level}
            for value in one.results:
                nbytes = one.nodes.numel() * self.program.width(value) * self.dtype.itemsize
                fits = sum(memory for memory, _ in held.values()) + nbytes <= self._budget // 2
                held[value] = (nbytes, 0) if fits else (0, nbytes)
            for place in range(2):
                most[place] = max(most[place], sum(nbytes[place] for nbytes in held.values()))
        return most[0], most[1]

    def keep(self, one: LevelPass, start: int, rows: dict[str, Tensor]) -> None:
        """Write the results of a chunk, whose first node is number ``start`` of the pass."""
        for value in one.results:
            self._kept[value].rows.write(start, rows[value])

    def rows_of(self, value: str, nodes: Tensor) -> Tensor | SparseFeatures:
        """Return the rows of a value that is kept, or of features, on the device."""
        value = self.root(value)
        if value in self.program.inputs:
            rows = self._features(self.program.node_type(value), nodes)
            if isinstance(rows, SparseFeatures) and self.device.type == "cpu":
                return rows
            return _dense(rows).to(self.device)
        return self._kept[value].gather(nodes).to(self.device)

    # ---- chunks

    def rows(self, one: LevelPass, chunk: Tensor) -> dict[str, Tensor]:
        """Return the rows of a pass's results for some nodes, on the CPU."""
        nodes, places = chunk, None
        if self.program.place(self.program.output) == one.place:  # nodes may be asked for several times
            nodes, places = torch.unique(chunk, return_inverse=True)
        with torch.no_grad():
            made = _ChunkRun(self, one, nodes).results()
        return {value: (rows if places is None else rows[places]).cpu() for value, rows in made.items()}

    def cut(self, one: LevelPass) -> list[tuple[int, int]]:
        """Cut the nodes of a pass into chunks whose in-edges, source rows and results fit half the budget.

        Raises:
            ResourceError: a single node does not.
        """
        program, size, room = self.program, self.dtype.itemsize, self._budget // 2
        moving = [op for op in one.ops if op.moves]
        read = {value for op in moving for value in op.inputs if program.level(value) < one.place.level}
        source_bytes = 2 * size * sum(map(program.width, read))  # gathered, and on a device or widened
        own = {value for op in one.ops for value in (*op.inputs, op.out)} - read
        row_bytes = source_bytes + size * sum(map(program.width, own)) + 8
        relations = {op.walks for op in moving}
        edge_bytes = _EDGE_BYTES + size * max((_numbers_per_edge(program, op) for op in moving), default=0)
        degrees = torch.zeros(one.nodes.numel(), dtype=torch.int64)
        for relation in relations:
            degrees += self._degrees(one.nodes, relation)
        # Each edge may bring a new source row, up to the number of nodes in the graph.
        num_sources = sum(self._counts[one.place.node_type if r is None else r.source] for r in relations)
        most_edges = room // (source_bytes + edge_bytes)
        if num_sources * source_bytes <= room // 2:
            most_edges = max(most_edges, room // 2 // edge_bytes)
        most_nodes = max(1, room // (2 * row_bytes))
        cuts = []
        for start, end, num_edges in chunks(degrees, most_edges, most_nodes):
            needed = num_edges * edge_bytes + min(num_edges, num_sources) * source_bytes
            if end == start + 1 and needed > self._budget + _SPARE:
                raise ResourceError(
                    f"exact inference for node {int(one.nodes[start])} needs {format_bytes(needed)} for its "
                    f"{num_edges:,} in-edges; memory_budget_bytes allows {format_bytes(self._budget)}. Raise "
                    "it, or use mode='sampled'."
                )
            cuts.append((start, end))
        return cuts

    def _degrees(self, nodes: Tensor, relation: Relation | None) -> Tensor:
        at = nodes if relation is None else relation.first_row + nodes * relation.stride
        indptr = self.types.rows.indptr
        return indptr[at + 1] - indptr[at]

    def _in_edges(self, nodes: Tensor, relation: Relation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return where the in-edges of each node begin, their sources, and their positions in the graph."""
        csc, first_source = self.types.rows, 0
        at = nodes
        if relation is not None:
            at, first_source = relation.first_row + nodes * relation.stride, relation.first_source
        first = csc.indptr[at]
        counts = csc.indptr[at + 1] - first
        edges = ranges(first, counts)
        return indptr_of(counts), csc.indices[edges].long() - first_source, edges

    def block(self, nodes: Tensor, relation: Relation | None, node_type: int) -> ChunkEdges:
        """Return all in-edges of distinct nodes; where sources are of their type, they come first."""
        source = node_type if relation is None else relation.source
        local = self._local[source]
        indptr, sources, edges = self._in_edges(nodes, relation)
        own = nodes if source == node_type else nodes[:0]
        local[own] = torch.arange(own.numel(), dtype=torch.int32)
        others = torch.unique(sources[local[sources] < 0])
        local[others] = torch.arange(own.numel(), own.numel() + others.numel(), dtype=torch.int32)
        src, indices = torch.cat([own, others]), local[sources]
        local[src] = -1
        weight = self.types.rows.weight
        if relation is not None and not self.types.edges[relation.edge_type].weighted:
            weight = None
        weight = None if weight is None else weight[edges]
        csc = csc_on(Csc(indptr, indices, src.numel(), weight, trusted=True), self.device)
        return ChunkEdges(self, csc, src, edges, node_type)

    def source_scale(self, adjacency: ir.AdjacencyMatrix, node_type: int) -> Tensor:
        """Return the factors that GCN's normalisation gives all nodes of a type as sources.

        A source's factor comes from its own in-edges. A chunk holds these only for its destinations.
        """
        if adjacency not in self._scales:
            nodes = torch.arange(self._counts[node_type])
            self._scales[adjacency] = self._scale_of(nodes, adjacency, node_type)
        return self._scales[adjacency]

    def _scale_of(self, nodes: Tensor, adjacency: ir.AdjacencyMatrix, node_type: int) -> Tensor:
        """Return the factors of some nodes from all their in-edges, ``(num_nodes,)``."""
        scale = torch.empty(nodes.numel(), dtype=self.dtype)
        most_edges = max(1, self._budget // 4 // _EDGE_BYTES)
        for start, end, _ in chunks(self._degrees(nodes, adjacency.relation), most_edges, most_edges):
            edges = self.block(nodes[start:end], adjacency.relation, node_type)
            found = aggregation(replace(adjacency, scale=1.0), edges.csc, self.dtype).dst_scale
            assert found is not None
            scale[start:end] = found.cpu()
        return scale

    def edge_attr(self, edges: ChunkEdges) -> Tensor | SparseFeatures:
        """Return the features of a chunk's edges, in their order."""
        attr = self.graph.edge_attr
        assert attr is not None
        rows: Tensor | SparseFeatures = attr[edges.positions]
        return rows


class ChunkEdges:
    """All in-edges of a chunk's nodes."""

    def __init__(self, walk: LayerWise, csc: Csc, sources: Tensor, positions: Tensor, node_type: int) -> None:
        self._walk, self.csc, self.sources = walk, csc, sources
        self.positions, self._node_type = positions, node_type

    def aggregation(self, adjacency: ir.AdjacencyMatrix, dtype: torch.dtype) -> Aggregation:
        """Return the linear map that an adjacency stands for, with the coefficients of the whole graph."""
        how = aggregation(adjacency, self.csc, sum_dtype(dtype))
        if adjacency.kind != "gcn":
            return how
        scale = self._walk.source_scale(adjacency, self._node_type)[self.sources]
        return replace(how, src_scale=scale.to(self.csc.indptr.device))


class _ChunkRun:
    """One pass over some nodes. The functions of :data:`RUN` read it as they read a :class:`BatchRun`.

    Args:
        walk: the program and the rows that are kept.
        one: the pass.
        nodes: ``(n,)`` int64, distinct.
    """

    is_half = False

    def __init__(self, walk: LayerWise, one: LevelPass, nodes: Tensor) -> None:
        self._walk, self._pass, self._nodes = walk, one, nodes
        self.program = walk.program
        self._values: dict[str, Tensor] = {}
        self._at_sources: dict[tuple[str, Relation | None], Tensor] = {}
        self._blocks: dict[Relation | None, ChunkEdges] = {}

    def results(self) -> dict[str, Tensor]:
        for op in self._pass.ops:
            self._values[op.out] = self._run(op)
        return {value: self._own(value) for value in self._pass.results}

    def _run(self, op: ir.Operation) -> Tensor:
        if isinstance(op, ir.Learned):
            return op.table[self._nodes.to(op.table.device)]
        if type(op) is ir.Linear and self._walk.program.producer(self._walk.root(op.inputs[0])) is None:
            x = self._walk.rows_of(op.inputs[0], self._nodes)
            if isinstance(x, SparseFeatures):
                out = sparse_linear(x, op.matrix(learns=True))
                return out + self._own(op.inputs[1]) if len(op.inputs) > 1 else out
        return RUN[type(op)](op, cast("BatchRun", self))

    def made_of(self, inputs: Sequence[Tensor], op: ir.Break) -> Tensor:
        """Make the calls of a graph break, which reads neither the graph nor an earlier break."""
        return op.run(inputs, {})

    def read(self, op: ir.Operation, place: int = 0) -> Tensor:
        """Return the rows of an operation's input: of the sources, if it is of the level before."""
        value, program = op.inputs[place], self._walk.program
        if program.level(value) == self._pass.place.level:
            return self._own(value)
        key = value, op.walks
        if key not in self._at_sources:
            self._at_sources[key] = _dense(self._walk.rows_of(value, self.edges(op).sources))
        return self._at_sources[key]

    def _own(self, value: str) -> Tensor:
        if value not in self._values:
            self._values[value] = _dense(self._walk.rows_of(value, self._nodes))
        return self._values[value]

    def edges(self, op: ir.Operation) -> ChunkEdges:
        """Return the in-edges of the nodes that an operation reads."""
        if op.walks not in self._blocks:
            place = self._pass.place
            self._blocks[op.walks] = self._walk.block(self._nodes, op.walks, place.node_type)
        return self._blocks[op.walks]

    def num_rows(self, _: ir.Operation) -> int:
        """Return the number of nodes."""
        return self._nodes.numel()

    def edge_attr(self, op: ir.Operation, dtype: torch.dtype) -> Tensor:
        """Return the features of :meth:`edges`, in their order."""
        return _dense(self._walk.edge_attr(self.edges(op))).to(self._walk.device, dtype)

    def edge_rows(self, op: ir.Gine | ir.Attention, dtype: torch.dtype) -> Tensor:
        """Return the features of :meth:`edges`, then those of self-loops that an attention adds."""
        rows = self.edge_attr(op, dtype)
        if not isinstance(op, ir.Attention) or not op.self_loops:
            return rows
        return torch.cat((rows, loop_rows(op, self.edges(op).csc, rows)))

    def edge_weight(self, op: ir.Operation, dtype: torch.dtype) -> Tensor:
        """Return the weights of :meth:`edges`, in their order."""
        weight = self.edges(op).csc.weight
        assert weight is not None
        return weight.to(dtype)

    def may_overwrite(self, _: ir.Operation) -> bool:
        """Return False: rows may be those that are kept."""
        return False


def _dense(rows: Tensor | SparseFeatures) -> Tensor:
    return rows.to_dense() if isinstance(rows, SparseFeatures) else rows


def _numbers_per_edge(program: ir.Program, op: ir.Operation) -> int:
    """Return how many numbers an operation holds for each edge, at most."""
    if isinstance(op, ir.Attention):
        of_edges = 0 if op.edge_weight is None else int(op.edge_weight.shape[1])
        return 3 * op.heads + of_edges
    if isinstance(op, ir.Gine):
        return op.edge_channels + (0 if op.weight is None else int(op.weight.shape[0]))
    return program.width(op.out) if isinstance(op, ir.Messages) and op.reads_edges else 0
