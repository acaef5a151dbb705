"""Levels: the nodes of values' rows, the edges from each level to the next, and the rows that ranks send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.program import AdjacencyMatrix, ComputedEdges, LevelNodes
from graphbraid.graph.csc import Csc, index_dtype, indptr_of, ranges
from graphbraid.graph.types import Relation
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.gather import places_of

FEW_EDGES = 1 << 22
"""Most edges of a small graph, whose edges may be copied in another order."""
STRETCH = 1 << 12
"""Nodes that follow each other and may change places: few enough to leave their rows in the same cache."""
_EDGES_AT_A_TIME = 1 << 21
"""Edges relabelled at a time, which bounds the temporary memory of building the levels."""


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """The edges from one level to the next, with the nodes at both ends."""

    csc: Csc
    """Edges from the level's rows to the next level's rows."""
    sources: Tensor | None
    """``(num_src,)`` int64 node of each source row; None if row v is node v."""
    destinations: Tensor | None
    """``(num_dst,)`` int64 node of each destination row; None if row v is node v."""
    edges: Tensor | None
    """``(num_edges,)`` int64 position of each edge in the graph; None if nothing is stored per edge."""
    route: Route | None = None
    """The rows that travel, if ranks exchange rows between these two levels; there are no edges then."""

    def of(self, relation: Relation | None) -> Block:
        """Return itself: a block of one node type has all edges together."""
        assert relation is None
        return self

    def before(self, _: int = 0) -> tuple[int, Tensor | None]:
        """Return the number of rows before it, and the node of each; None if row v is node v."""
        return self.csc.num_src, self.sources

    def after(self, _: int = 0) -> tuple[int, Tensor | None]:
        """Return the number of rows after it, and the node of each; None if row v is node v."""
        return self.csc.num_dst, self.destinations

    @property
    def copies(self) -> Iterator[Tensor]:
        """The arrays that it holds in addition to the graph."""
        if self.destinations is None:
            return
        send = None if self.route is None else self.route.send
        for array in (self.csc.indptr, self.csc.indices, self.sources, self.edges, send):
            if array is not None:
                yield array

    def bind(self, whole: Aggregation) -> Aggregation:
        """Restrict an aggregation over the whole graph to these two levels, with their rows' coefficients."""
        if self.destinations is None and self.sources is None:
            return whole
        return replace(
            whole,
            csc=self.csc,
            weight=_take(whole.weight, self.edges),
            src_scale=_take(whole.src_scale, self.sources),
            dst_scale=_take(whole.dst_scale, self.destinations),
            loop=_take(whole.loop, self.destinations),
        )


@dataclass(frozen=True, eq=False, slots=True)
class TypedBlock:
    """The edges of each relation from one level to the next, where nodes have types."""

    relations: Mapping[int, Block]
    """The edges of the relations that are read, by number, between the rows of their two types."""
    whole: Mapping[int, Csc]
    """All edges of these relations, between the nodes of their two types."""
    num_src: tuple[int, ...]
    """Number of rows of each type before it."""
    num_dst: tuple[int, ...]
    """Number of rows of each type after it."""
    sources: tuple[Tensor | None, ...]
    """``(num_src,)`` int64 node of each row before it, by type; None if row v is node v."""
    destinations: tuple[Tensor | None, ...]
    """``(num_dst,)`` int64 node of each row after it, by type; None if row v is node v."""

    def of(self, relation: Relation | None) -> Block:
        """Return the edges of one relation."""
        assert relation is not None
        return self.relations[relation.number]

    def before(self, node_type: int = 0) -> tuple[int, Tensor | None]:
        """Return the number of a type's rows before it, and the node of each; None if row v is node v."""
        return self.num_src[node_type], self.sources[node_type]

    def after(self, node_type: int = 0) -> tuple[int, Tensor | None]:
        """Return the number of a type's rows after it, and the node of each; None if row v is node v."""
        return self.num_dst[node_type], self.destinations[node_type]

    @property
    def copies(self) -> Iterator[Tensor]:
        """The arrays that it holds in addition to the graph, in which relations are not apart."""
        for csc in (*self.whole.values(), *(block.csc for block in self.relations.values())):
            yield from (csc.indptr, csc.indices)
        yield from (ids for ids in (*self.sources, *self.destinations) if ids is not None)


Blocks = Sequence[Block] | Sequence[TypedBlock]
"""The edges from each level to the next."""


def num_rows_of(blocks: Blocks, place: LevelNodes, num_nodes: int) -> int:
    """Return the number of nodes of a type of a level; ``num_nodes`` if there are no blocks."""
    return _rows_at(blocks, place)[0] if blocks else num_nodes


def nodes_of(blocks: Blocks, place: LevelNodes) -> Tensor | None:
    """Return the ``(num_rows,)`` int64 node of each row of a type of a level; None if row v is node v."""
    return _rows_at(blocks, place)[1] if blocks else None


def _rows_at(blocks: Blocks, place: LevelNodes) -> tuple[int, Tensor | None]:
    level, node_type = place
    return blocks[level].before(node_type) if level < len(blocks) else blocks[-1].after(node_type)


def whole_graph(csc: Csc, num_blocks: int) -> list[Block]:
    """Return blocks between levels that each hold all nodes."""
    return [Block(csc, None, None, None)] * num_blocks


@dataclass(frozen=True, eq=False, slots=True)
class Reach:
    """The nodes on which the outputs of some seeds depend, nearest first."""

    nodes: Tensor
    """``(num_reached,)`` int64: the seeds in their order, then each further level's new nodes, ascending
    (or as :meth:`ordered` has placed them)."""
    sizes: tuple[int, ...]
    """Number of nodes that each level holds, a prefix of ``nodes``: from the seeds' level to level 0."""

    def edges(self, csc: Csc) -> tuple[int, ...]:
        """Return the number of in-edges that each block reads, from level 0 on."""
        degrees = csc.degrees()[self.nodes]
        return tuple(int(degrees[:size].sum()) for size in reversed(self.sizes[:-1]))

    def ordered(self, rank: Tensor | None) -> Reach:
        """Return the same levels, each one's new nodes sorted by ``rank[node]`` or, if None, by id."""
        parts = []
        for begin, end in pairwise((0, *self.sizes)):
            part = self.nodes[begin:end]
            parts.append(part.sort().values if rank is None else part[rank[part].argsort()])
        return Reach(torch.cat(parts), self.sizes)

    def by_degree(self, degrees: Tensor) -> Reach:
        """Return the same levels, with the nodes of each stretch sorted by their ``degrees``.

        A loop over a row's edges that is as long as the one before ends where the processor predicts it.
        """
        stretch = torch.arange(len(self.nodes)) // STRETCH
        key = stretch * (int(degrees.max()) + 1) + degrees[self.nodes]
        rank = torch.empty_like(degrees)
        rank[self.nodes[key.argsort(stable=True)]] = torch.arange(len(self.nodes))
        return self.ordered(rank)


def everything(num_nodes: int, num_blocks: int) -> Reach:
    """Return levels that each hold all nodes, in the graph's order."""
    return Reach(torch.arange(num_nodes), (num_nodes,) * (num_blocks + 1))


def reach(csc: Csc, seeds: Tensor, num_hops: int) -> Reach:
    """Find all nodes within ``num_hops`` in-edges of the distinct ``(num_seeds,)`` int64 ``seeds``."""
    is_reached = torch.zeros(csc.num_src, dtype=torch.bool)
    is_reached[seeds] = True
    newest, found, sizes = seeds, [seeds], [seeds.numel()]
    for _ in range(num_hops):
        is_source = torch.zeros(csc.num_src, dtype=torch.bool)
        for _, positions in edges_of(csc, newest):
            is_source[csc.indices[positions].long()] = True
        newest = (is_source & ~is_reached).nonzero().squeeze(1)
        is_reached[newest] = True
        found.append(newest)
        sizes.append(sizes[-1] + newest.numel())
    return Reach(torch.cat(found), tuple(sizes))


def towards(
    csc: Csc, reached: Reach, *, keep_edges: bool = False, sources: Reach | None = None
) -> list[Block]:
    """Build blocks of only the edges that the seeds' outputs depend on; each level is a prefix of the last.

    Because levels are nested, the edges of every later block are a prefix of the first block's, so all share
    one array. Edges of a row keep their order; their positions in the graph are kept if it has weights or if
    ``keep_edges``. ``sources`` are the levels' nodes that edges lead from, if these are of another type.
    Blocks are from level 0 to the last.
    """
    nodes, sizes = reached.nodes, reached.sizes
    src = reached if sources is None else sources
    # -1 marks nodes that no level holds: no edge into a reached node leads from one.
    row_of = places_of(src.nodes, csc.num_src, index_dtype(csc.num_src))
    destinations = nodes[: sizes[-2]]
    keep_edges = keep_edges or csc.weight is not None
    indptr, indices, edges = renumbered_edges(csc, destinations, row_of, keep_edges=keep_edges)
    blocks: list[Block] = []
    # Sizes stand from the seeds' level on; blocks go the other way, from (largest, next) to (next, seeds).
    for num_src, num_dst in zip(src.sizes[:0:-1], sizes[-2::-1], strict=True):
        if blocks and (blocks[-1].csc.num_src, blocks[-1].csc.num_dst) == (num_src, num_dst):
            blocks.append(blocks[-1])
            continue
        last = int(indptr[num_dst])
        between = Csc(indptr[: num_dst + 1], indices[:last], num_src, trusted=True)
        if csc.is_own_reverse and num_src == num_dst:  # no edge leads out of or into these nodes
            between.keep_as_own_reverse()
        ids = None if edges is None else edges[:last]
        blocks.append(Block(between, src.nodes[:num_src], nodes[:num_dst], ids))
    return blocks


def renumbered_edges(
    csc: Csc, nodes: Tensor, row_of: Tensor, *, keep_edges: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the in-edges of ``nodes``, in their order, between rows: ``indptr``, ``indices`` and positions.

    Positions in ``csc`` are None unless ``keep_edges``. ``row_of`` is the row of each source.
    """
    indptr = indptr_of(csc.degrees()[nodes])
    indices = torch.empty(int(indptr[-1]), dtype=row_of.dtype)
    edges = torch.empty(indices.numel(), dtype=torch.int64) if keep_edges else None
    for begin, positions in edges_of(csc, nodes):
        part = slice(begin, begin + positions.numel())
        indices[part] = row_of[csc.indices[positions].long()]
        if edges is not None:
            edges[part] = positions
    return indptr, indices, edges


def computed_between(edges: ComputedEdges, whole: Csc, block: Block) -> tuple[Csc, tuple[Tensor, ...]]:
    """Return the edges computed of a graph between two levels, and their float32 values.

    It is a ConfigError if one leads from a node that the earlier level does not hold.
    """
    found, values = edges.of(whole, torch.float32)
    if block.sources is None and block.destinations is None:
        return found, values
    ends = (block.sources, whole.num_src), (block.destinations, whole.num_dst)
    sources, destinations = (torch.arange(count) if ids is None else ids for ids, count in ends)
    num_src, num_dst = sources.numel(), destinations.numel()
    reached, others = Reach(destinations, (num_dst, num_dst)), Reach(sources, (num_dst, num_src))
    (part,) = towards(found, reached, keep_edges=True, sources=others)
    if bool((part.csc.indices < 0).any()):
        raise ConfigError("edges that the model computes lead from nodes that its outputs do not depend on")
    assert part.edges is not None
    ids = part.edges
    return part.csc, tuple(value[ids] for value in values)


def copied_bytes(blocks: Blocks) -> int:
    """Return the bytes that ``blocks`` hold in addition to the graph; shared arrays count once."""
    shared: dict[int, int] = {}
    for block in blocks:
        for tensor in block.copies:
            storage = tensor.untyped_storage()
            shared[storage.data_ptr()] = storage.nbytes()
    return sum(shared.values())


def edges_of(csc: Csc, nodes: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield the positions of the in-edges of ``nodes`` in chunks, each with the number of edges before it."""
    before, degrees = 0, csc.degrees()[nodes]
    for start, end, num_edges in chunks(degrees, _EDGES_AT_A_TIME):
        yield before, ranges(csc.indptr[nodes[start:end]], degrees[start:end])
        before += num_edges


def chunks(degrees: Tensor, most_edges: int, most_nodes: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Yield the ends of chunks of nodes, and their numbers of edges; a chunk has at least one node."""
    ends, start, before = degrees.cumsum(0), 0, 0
    while start < degrees.numel():
        end = int(torch.searchsorted(ends, before + most_edges, right=True))
        end = max(start + 1, end if most_nodes is None else min(end, start + most_nodes))
        last = int(ends[end - 1])
        yield start, end, last - before
        start, before = end, last


def aggregation(adjacency: AdjacencyMatrix, csc: Csc, dtype: torch.dtype = torch.float32) -> Aggregation:
    """Return the linear map over a graph that an adjacency stands for, with coefficients of ``dtype``."""
    whole = _unscaled(adjacency, csc, dtype)
    if adjacency.scale == 1:
        return whole
    ones = whole.dst_scale
    if ones is None:
        ones = torch.ones(csc.num_dst, dtype=dtype, device=csc.indptr.device)
    return replace(whole, dst_scale=ones * adjacency.scale)


def _unscaled(adjacency: AdjacencyMatrix, csc: Csc, dtype: torch.dtype) -> Aggregation:
    weight = csc.weight if adjacency.weighted else None
    plain = csc if csc.weight is weight else Csc(csc.indptr, csc.indices, csc.num_src, trusted=True)
    if adjacency.kind == "gcn":
        from graphbraid.nn.gcn import gcn_norm

        loops = {"add_self_loops": adjacency.loop_scale != 0, "improved": adjacency.loop_scale == 2.0}
        whole = gcn_norm(plain, **loops, dtype=dtype)
        return whole if plain is csc else whole.with_parts(csc=csc)
    if adjacency.kind in LAPLACIANS:
        return replace(scaled_laplacian(plain, LAPLACIANS[adjacency.kind], dtype), csc=csc)
    if adjacency.kind not in ("sum", "mean"):
        raise ValueError(f"no aggregation is called {adjacency.kind!r}")
    return Aggregation(csc=csc, weight=weight, mean=adjacency.kind == "mean", loop_scale=adjacency.loop_scale)


def _take(values: Tensor | None, ids: Tensor | None) -> Tensor | None:
    return values if values is None or ids is None else values[ids]


# ---- the scaled Laplacian of Chebyshev polynomials, as an aggregation with the factors of PyG's ``ChebConv``

LAPLACIANS: dict[str, str | None] = {"laplacian": None, "laplacian sym": "sym", "laplacian rw": "rw"}
"""PyG's name of the normalisation for each Laplacian kind of adjacency."""


def scaled_laplacian(csc: Csc, normalization: str | None, dtype: torch.dtype = torch.float32) -> Aggregation:
    """Return the aggregation by ``2 L / lambda_max - I`` of a graph without its stored self-loops.

    ``L`` is ``I - D^-1/2 A D^-1/2`` (sym), ``I - A D^-1`` (rw) or ``D - A`` (None), and ``lambda_max`` is
    twice its largest entry, PyG's default. A node's degree is the sum of the weights of the edges that
    *leave* it, as in PyG. Weights may have any sign.
    """
    ones = torch.ones(csc.num_edges, dtype=dtype, device=csc.indices.device)
    weight = ones if csc.weight is None else csc.weight.to(dtype)
    sources, destinations = csc.indices.long(), csc.destinations().long()
    weight = weight.masked_fill(sources == destinations, 0.0)
    degree = weight.new_zeros(csc.num_src).index_add_(0, sources, weight)
    src, dst = _scales(degree, normalization)
    entries = weight * (src[sources] * dst[destinations])
    diagonal = degree if normalization is None else torch.ones_like(degree)
    largest = (
        torch.cat((-entries[sources != destinations], diagonal)).max() if csc.num_src else degree.new_ones(())
    )
    scale = 1 / largest  # 2 / lambda_max
    loop = scale * diagonal - 1
    if bool((loop == 0).all()):
        return Aggregation(csc=csc, weight=csc.weight, src_scale=src, dst_scale=-scale * dst, skip_loops=True)
    if normalization is None:  # self-loops share the rows' factor
        return Aggregation(
            csc=csc,
            weight=csc.weight,
            dst_scale=(-scale).expand(csc.num_dst).clone(),
            loop=-loop / scale,
            loop_scale=1.0,
            skip_loops=True,
        )
    assert csc.weight is not None  # without weights the diagonal holds the largest entry
    return Aggregation(csc=csc, weight=-scale * entries, loop=loop, loop_scale=1.0, skip_loops=True)


def _scales(degree: Tensor, normalization: str | None) -> tuple[Tensor, Tensor]:
    """Return the factors of sources and of destinations; they are 0 for nodes without edges."""
    ones = torch.ones_like(degree)
    if normalization is None:
        return ones, ones
    power = degree.pow(-0.5 if normalization == "sym" else -1.0)
    power = power.masked_fill(power == float("inf"), 0.0)
    return (power, power) if normalization == "sym" else (power, ones)


# ---- own rows: a value is computed for the rows that are read

_BY_ROW = (
    ir.Add, ir.AlongRow, ir.ColumnRange, ir.Combine, ir.Concat, ir.Epilogue, ir.Largest, ir.Linear, ir.Prelu,
    ir.Product, ir.RowFunction, ir.RowOfParameters, ir.Scale, ir.UnitRows,
)  # fmt: skip
"""Operations that map each row by itself."""


def on_needed_rows(program: ir.Program) -> ir.Program:
    """Compute a value only for the rows that the operations after it read.

    A model maps all rows before its layer reads some of them as the destinations' own, for instance as a root
    or a query. The rows of a level are a prefix of those before it, so the map can run on the own rows.
    """
    levels = _needed_levels(program)
    ops, own, same = list[ir.Operation](), dict[tuple[str, int], str](), dict[str, str]()

    def at(value: str, level: int) -> str:
        """Return the name of a value's rows at a level."""
        name = same.get(value, value)
        for reached in range(levels[name], level):
            if (name, reached) not in own:
                own[name, reached] = f"{name} own"
                ops.append(ir.DestinationRows(out=f"{name} own", inputs=(name,)))
                levels[f"{name} own"] = reached + 1
            name = own[name, reached]
        return name

    for op in program.ops:
        if isinstance(op, ir.DestinationRows) and op.out != program.output:
            same[op.out] = at(op.inputs[0], levels[op.out])
            continue
        needs = _levels_of_inputs(program, op, levels[op.out])
        inputs = tuple(at(value, level) for value, level in zip(op.inputs, needs, strict=True))
        ops.append(replace(op, inputs=inputs))
    return program.rewritten(tuple(ops))


def _needed_levels(program: ir.Program) -> dict[str, int]:
    """Return for each value the level whose rows are enough for all operations that read it."""
    needed: dict[str, int] = {}
    for op in reversed(program.ops):
        level = program.level(op.out)
        if isinstance(op, (*_BY_ROW, ir.DestinationRows)):
            level = needed.get(op.out, level)
        needed[op.out] = level
        for value, wanted in zip(op.inputs, _levels_of_inputs(program, op, level), strict=True):
            needed[value] = min(needed.get(value, wanted), wanted)
    return needed | dict.fromkeys(program.inputs, 0)


def _levels_of_inputs(program: ir.Program, op: ir.Operation, level: int) -> list[int]:
    """Return for each input the level whose rows an operation reads to compute the rows of ``level``."""
    if isinstance(op, _BY_ROW):
        return [level] * len(op.inputs)
    if isinstance(op, ir.DestinationRows):
        return [level - (op.out == program.output)]
    levels = [program.level(value) for value in op.inputs]
    if isinstance(op, ir.Messages) and op.edges is None:
        sources = {place for _, role, place in op.reads if role is ir.ReadRows.SOURCE}
        if 0 in sources:  # the first input tells where the edges begin
            levels = [level - (place in sources) for place in range(len(levels))]
    return levels


# ---- route: the rows that one of several ranks sends and receives between two levels


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Route:
    """The rows that travel from a level of own rows to one of own rows and, after them, the halo's."""

    send: Tensor
    """``(num_sent,)`` int64 own rows to send, by receiver; a row goes to each rank that reads it."""
    send_rows: tuple[int, ...]
    """How many of them go to each rank."""
    receive_rows: tuple[int, ...]
    """How many halo rows come from each rank, in this order."""

    @property
    def num_sent(self) -> int:
        """Number of rows to send."""
        return sum(self.send_rows)

    @property
    def num_received(self) -> int:
        """Number of halo rows."""
        return sum(self.receive_rows)


# ---- PartView: facts of the whole graph for a rank that holds its own part alone


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PartView:
    """The place of a rank's nodes in the whole graph; the rank numbers its own first, then its halo."""

    ids: Tensor
    """``(num_own + num_halo,)`` int64 node of each of the rank's nodes."""
    first_edge: Tensor
    """``(num_own,)`` int64 position of the first in-edge of each own node in the whole graph."""
    route: Route
    """The rows that travel before every aggregation."""
    halo_scales: dict[AdjacencyMatrix, Tensor | None] = field(default_factory=dict)
    """``(num_halo,)`` factors of the halo's rows, by adjacency, as their owners have told them."""

    @property
    def num_own(self) -> int:
        """Number of nodes that the rank owns."""
        return self.first_edge.numel()

    def missing(self, adjacencies: Iterable[AdjacencyMatrix]) -> list[AdjacencyMatrix]:
        """Return those whose factors the owners have not told yet, in their order."""
        return [adjacency for adjacency in dict.fromkeys(adjacencies) if adjacency not in self.halo_scales]

    def corrected(self, adjacency: AdjacencyMatrix, own: Aggregation) -> Aggregation:
        """Return a map of the rank's graph with the factors that the halo's rows have in the whole graph.

        The factors of a row come from its in-edges, and the rank holds no in-edges of its halo's rows.
        """
        halo = self.halo_scales[adjacency]
        if own.src_scale is None or halo is None:
            return own
        return replace(own, src_scale=torch.cat((own.src_scale[: self.num_own], halo)))
