"""What becomes of a batch's drawn edges, in Triton: local ids in order of first appearance, and two layouts.

Every seed and edge of a batch has a position: the seeds come first, then the edges, hop by hop. All edges of
a hop claim the slot of their source node at once by an atomic minimum, so the slot holds the node's first
position whatever the order of the claims. An edge that finds its own position there has found a new node; a
prefix sum over these edges numbers the new nodes, and their slots receive the local ids. A local id is never
greater than a position, so a node that is known already keeps its slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphbraid.errors import ResourceError
from graphbraid.graph.csc import Csc
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.sample import SampledEdges
from graphbraid.sampling.triton.rng import mix, signed, unsigned
from graphbraid.sampling.triton.topology import EdgeArray, load_edge

_BLOCK = 512
_NUM_ERAS = 2**31 - 1
_UNTOUCHED = 2**63 - 1
_POSITION = tl.constexpr(0xFFFFFFFF)
MAX_POSITIONS = 2**31 - 1
"""Largest number of seeds and edges in one batch, as positions are int32."""


class Table:
    """A table from global to local ids, of 8 bytes for each node of the graph.

    The high half of a slot is the number of the batch that wrote it (its era), which falls from batch to
    batch, so that under an atomic minimum any newer entry replaces an older one. The table is therefore
    cleared only once in 2**31 - 1 batches.
    """

    def __init__(self, num_nodes: int, device: torch.device) -> None:
        self.slots = torch.full((num_nodes,), _UNTOUCHED, dtype=torch.int64, device=device)
        self.era = _NUM_ERAS

    def begin_batch(self) -> None:
        """Begin a new era, which makes the entries of earlier batches invalid."""
        if self.era == 0:
            self.slots.fill_(_UNTOUCHED)
            self.era = _NUM_ERAS
        self.era -= 1


@triton.jit
def stamped(era, value):
    """Return a slot's entry: the batch's era in the high half, a position or local id in the low half."""
    return (tl.cast(era, tl.int64) << 32) | value


@triton.jit(
    do_not_specialize=["num_seeds", "hop", "era", "num_hot", "shift"],
    do_not_specialize_on_alignment=["num_edges_ptr"],
)
def claim_kernel(
    places,  # (num_edges,) int64 of the hop's edges
    indices,  # (graph's edges,) int32 or int64 source nodes; this and the next three: see topology.EdgeArray
    hot_indices,
    num_hot,
    shift,
    num_edges_ptr,  # one int64
    edge_bounds,  # int64; see batch.Counts
    ids,  # (num_edges,) int64, written: source nodes; may be places
    table,
    num_seeds,
    hop,
    era,
    BLOCK: tl.constexpr,
):
    """Read each edge's source and lower its slot to the edge's position. Bound by both scattered accesses."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = e < tl.load(num_edges_ptr)
    place = tl.load(places + e, mask=live, other=0)
    node = load_edge(place, indices, hot_indices, num_hot, shift, live, 0).to(tl.int64)
    tl.store(ids + e, node, mask=live)
    base = num_seeds + tl.load(edge_bounds + hop)
    # Relaxed order suffices: no other memory depends on a claim, and the next launch sees them all.
    tl.atomic_min(table + node, stamped(era, base + e), mask=live, sem="relaxed")


@triton.jit(
    do_not_specialize=["num_seeds", "hop", "capacity"], do_not_specialize_on_alignment=["num_edges_ptr"]
)
def first_kernel(
    ids,
    num_edges_ptr,
    edge_bounds,
    table,
    first,  # (capacity,) int32, written: what the source's slot holds, a local id or a first position
    is_first,  # (capacity,) int32, written: 1 where an edge found a new node, 0 past the last edge
    num_seeds,
    hop,
    capacity,
    BLOCK: tl.constexpr,
):
    """Read the slots after all claims. Bound by one scattered read per edge."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = e < tl.load(num_edges_ptr)
    node = tl.load(ids + e, mask=live, other=0)
    held = tl.load(table + node, mask=live, other=0) & _POSITION
    own = num_seeds + tl.load(edge_bounds + hop) + e
    tl.store(first + e, held.to(tl.int32), mask=live)
    tl.store(is_first + e, (live & (held == own)).to(tl.int32), mask=e < capacity)


@triton.jit(
    do_not_specialize=["num_seeds", "hop", "capacity", "era"],
    do_not_specialize_on_alignment=["num_edges_ptr"],
)
def number_kernel(
    ids,
    num_edges_ptr,
    first,
    ranks,  # (capacity,) int32: running sum of is_first
    node_bounds,  # int64; see batch.Counts: [hop + 2] is written
    edge_bounds,  # int64; see batch.Counts: [hop + 1] is written
    local,  # (capacity,) int32, written: local ids of the sources
    n_id,  # int64, written from the first new node on
    table,
    num_seeds,
    hop,
    capacity,
    era,
    BLOCK: tl.constexpr,
):
    """Turn first positions into local ids, list the new nodes, and count. Does not read the table."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    num_edges = tl.load(num_edges_ptr)
    live = e < num_edges
    edges_before = tl.load(edge_bounds + hop)
    known = tl.load(node_bounds + hop + 1)
    base = num_seeds + edges_before
    held = tl.load(first + e, mask=live, other=0).to(tl.int64)
    is_new = live & (held >= base)
    rank = tl.load(ranks + held - base, mask=is_new, other=1).to(tl.int64) - 1
    number = tl.where(is_new, known + rank, held)
    tl.store(local + e, number.to(tl.int32), mask=live)
    finder = live & (held == base + e)
    node = tl.load(ids + e, mask=finder, other=0)
    tl.store(n_id + number, node, mask=finder)
    tl.store(table + node, stamped(era, number), mask=finder)
    if tl.program_id(0) == 0:
        tl.store(node_bounds + hop + 2, known + tl.load(ranks + capacity - 1))
        tl.store(edge_bounds + hop + 1, edges_before + num_edges)


def relabel(
    table: Table,
    indices: EdgeArray,
    places: Tensor,
    num_edges: Tensor,
    node_bounds: Tensor,
    edge_bounds: Tensor,
    n_id: Tensor,
    *,
    num_seeds: int,
    hop: int,
    keep_places: bool,
) -> Tensor:
    """Return the local ids of a hop's sources; also write the new nodes and the counts after the hop.

    Args:
        table: the table of the batch, which holds every node found before.
        indices: ``(graph's edges,)`` int32 or int64 source nodes.
        places: ``(capacity,)`` int64: places of the hop's edges in ``indices``, at least one.
        num_edges: ``(1,)`` int64: number of edges of the hop.
        node_bounds: ``(hops + 2,)`` int64; entry ``hop + 2`` is written.
        edge_bounds: ``(hops + 1,)`` int64; entry ``hop + 1`` is written.
        n_id: int64 with room for all new nodes; written.
        num_seeds: number of seeds of the batch.
        hop: index of the hop; 0 is that of the seeds' in-neighbours.
        keep_places: whether to leave ``places`` as they are; otherwise the sources' ids overwrite them.

    Returns:
        Local ids, ``(capacity,)`` int32.
    """
    capacity = places.numel()
    grid = (triton.cdiv(capacity, _BLOCK),)
    launch = {"BLOCK": _BLOCK, "num_warps": 4}
    ids = torch.empty_like(places) if keep_places else places
    first, ranks, local = (torch.empty_like(ids, dtype=torch.int32) for _ in range(3))
    claim_kernel[grid](
        places,
        *indices.arguments,
        num_edges,
        edge_bounds,
        ids,
        table.slots,
        num_seeds,
        hop,
        table.era,
        **launch,
    )
    first_kernel[grid](
        ids, num_edges, edge_bounds, table.slots, first, ranks, num_seeds, hop, capacity, **launch
    )
    ranks.cumsum_(0)
    number_kernel[grid](
        ids,
        num_edges,
        first,
        ranks,
        node_bounds,
        edge_bounds,
        local,
        n_id,
        table.slots,
        num_seeds,
        hop,
        capacity,
        table.era,
        **launch,
    )
    return local


def check_positions(count: int) -> None:
    """Raise ResourceError if ``count`` seeds and edges of a batch are above ``MAX_POSITIONS``."""
    if count > MAX_POSITIONS:
        raise ResourceError(
            f"a mini-batch on a device may hold {MAX_POSITIONS:,} seeds and edges at most; this one has "
            f"up to {count:,}. Lower the fanouts or the batch size"
        )


_SEEDS_BLOCK = 128
_ROUNDS = tl.constexpr(4)


@triton.jit
def permuted(position, live, n, key, half_bits):
    """Return images under the keyed permutation of [0, n); twin of ``sampling.config.permuted``."""
    half = unsigned(half_bits)
    low = (unsigned(1) << half) - 1
    x = position.to(tl.uint64)
    outside = live
    while tl.max(outside.to(tl.int32), axis=0) > 0:
        left = x >> half
        right = x & low
        for i in tl.static_range(_ROUNDS):
            mixed = mix(unsigned(key) ^ mix(right + (i << 56))) & low
            image = left ^ mixed
            left = right
            right = image
        x = tl.where(outside, (left << half) | right, x)
        outside = outside & (x >= unsigned(n))
    return x.to(tl.int64)


@triton.jit(do_not_specialize=["first", "count", "num_seeds", "key", "half_bits", "era"])
def seeds_kernel(
    seeds,  # (num_seeds,) int64 node ids
    input_id,  # (count,) int64, written: positions in seeds
    n_id,  # (at least count,) int64, written
    node_bounds,  # int64; see batch.Counts: [1] is written
    table,  # (num_nodes,) int64; see relabel.Table
    first,
    count,
    num_seeds,
    key,
    half_bits,
    era,
    SHUFFLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the seeds of one step and enter them in the table; of repeated seeds it keeps the first copy."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    position = first + i
    if SHUFFLE:
        position = permuted(position, live, num_seeds, key, half_bits)
    node = tl.load(seeds + position, mask=live, other=0)
    tl.store(input_id + i, position, mask=live)
    tl.store(n_id + i, node, mask=live)
    tl.atomic_min(table + node, stamped(era, i), mask=live, sem="relaxed")
    if tl.program_id(0) == 0:
        tl.store(node_bounds + 1, tl.cast(count, tl.int64))


def place_seeds(
    seeds: Tensor,
    table: Table,
    node_bounds: Tensor,
    input_id: Tensor,
    n_id: Tensor,
    *,
    first: int,
    shuffle_key: int | None,
) -> None:
    """Write a step's seeds and enter them in the table of local ids.

    Args:
        seeds: ``(num_seeds,)`` int64: all seeds of the schedule.
        table: table of local ids, whose current era is this batch's.
        node_bounds: ``(hops + 2,)`` int64; entry 1 is written.
        input_id: ``(count,)`` int64, written: positions in ``seeds``.
        n_id: ``(count,)`` int64, written: node ids.
        first: position of the step's first seed before the shuffle.
        shuffle_key: key of the epoch's permutation. If None, the seeds keep their order.
    """
    count, num_seeds = input_id.numel(), seeds.numel()
    bits = max((num_seeds - 1).bit_length(), 1)
    seeds_kernel[(triton.cdiv(count, _SEEDS_BLOCK),)](
        seeds,
        input_id,
        n_id,
        node_bounds,
        table.slots,
        first,
        count,
        num_seeds,
        0 if shuffle_key is None else signed(shuffle_key),
        (bits + 1) // 2,
        table.era,
        SHUFFLE=shuffle_key is not None,
        BLOCK=_SEEDS_BLOCK,
        num_warps=4,
    )


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class GraphBounds:
    """The properties of a graph that the bounds of its batches depend on."""

    num_nodes: int
    num_edges: int
    largest: Tensor | None
    """Entry n is the total in-degree of the n nodes of highest in-degree: ``(num_nodes + 1,)`` int64 on the
    CPU. None unless a hop takes all neighbours."""

    @classmethod
    def of(cls, csc: Csc, config: SamplerConfig) -> GraphBounds:
        """Make the bounds of a graph on the CPU; sorts its degrees if a fanout is -1."""
        largest = None
        if -1 in config.fanouts:
            largest = torch.zeros(csc.num_dst + 1, dtype=torch.int64)
            torch.cumsum(csc.degrees().sort(descending=True).values, 0, out=largest[1:])
        return cls(num_nodes=csc.num_dst, num_edges=csc.num_edges, largest=largest)

    def edges_into(self, num_nodes: int) -> int:
        """Return the largest number of in-edges that ``num_nodes`` distinct nodes can have."""
        assert self.largest is not None
        return int(self.largest[min(num_nodes, self.num_nodes)])


class BatchBounds:
    """Upper bounds on the nodes and edges of one batch, hop by hop.

    A seed may occur in a batch more than once; every node found later occurs once.
    """

    def __init__(self, graph: GraphBounds, config: SamplerConfig, *, num_seeds: int, seed_edges: int) -> None:
        """Begin at the first hop; ``seed_edges`` bounds the seeds' in-edges (used for fanout -1 only)."""
        self._graph, self._config = graph, config
        self._num_seeds, self._seed_edges = num_seeds, seed_edges
        self._found = self._newest = self._edges = 0
        self._hop = 0

    @property
    def nodes(self) -> int:
        """Largest number of nodes in the batch so far."""
        return self._num_seeds + self._found

    @property
    def positions(self) -> int:
        """Largest number of seeds and edges in the batch so far."""
        return self._num_seeds + self._edges

    @property
    def rows(self) -> int:
        """Largest number of nodes that draw at the next hop."""
        seeds, others = self._drawing()
        return seeds + others

    @property
    def edges(self) -> int:
        """Largest number of edges of the next hop."""
        fanout = self._config.fanouts[self._hop]
        seeds, others = self._drawing()
        if self._graph.num_edges == 0 or fanout == 0:
            return 0
        if fanout < 0:
            return (self._seed_edges if seeds else 0) + self._graph.edges_into(others)
        if self._config.replace:
            return (seeds + others) * fanout
        return seeds * fanout + min(others * fanout, self._graph.num_edges)

    def advance(self, edges: int) -> None:
        """Go on to the next hop; the current one has at most ``edges`` edges."""
        self._newest = min(edges, self._graph.num_nodes)
        self._found = min(self._found + edges, self._graph.num_nodes)
        self._edges += edges
        self._hop += 1

    def _drawing(self) -> tuple[int, int]:
        if self._config.layout == "blocks":
            return self._num_seeds, self._found
        return (self._num_seeds, 0) if self._hop == 0 else (0, self._newest)


class Counts:
    """Running numbers of nodes and edges after each hop, which kernels read and write.

    Attributes:
        nodes: ``(hops + 2,)`` int64: 0, the number of seeds, then the batch's nodes after each hop.
        edges: ``(hops + 1,)`` int64: 0, then the batch's edges after each hop.
    """

    def __init__(self, num_hops: int, device: torch.device) -> None:
        split = (num_hops + 3) // 2 * 2  # aligns edges to 16 bytes, which kernels are compiled for
        self._counts = torch.zeros(split + num_hops + 1, dtype=torch.int64, device=device)
        self.nodes, self.edges = self._counts[: num_hops + 2], self._counts[split:]
        self._split, self._num_hops = split, num_hops
        self._host = self._counts
        self._copied: torch.cuda.Event | None = None

    def send(self) -> None:
        """Start the copy to the host; the batch must be complete in stream order."""
        if self._counts.is_cuda:
            self._host = torch.empty(self._counts.shape, dtype=torch.int64, pin_memory=True)
            self._host.copy_(self._counts, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> tuple[list[int], list[int]]:
        """Return ``nodes`` and ``edges`` as lists; waits for the copy that :meth:`send` started."""
        if self._copied is not None:
            self._copied.synchronize()
        numbers = self._host.tolist()
        return numbers[: self._num_hops + 2], numbers[self._split :]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class DrawnHop:
    """The edges that one hop drew, in buffers as large as the hop's upper bounds."""

    offsets: Tensor
    """Offsets of the rows' edges, starting at 0: ``(rows + 1,)`` int64."""
    local: Tensor
    """Local ids of the sources, ``(edges,)`` int32."""
    positions: Tensor | None
    """Positions of the edges in the graph, ``(edges,)`` int64; None unless the batch keeps them."""


def no_edges(num_rows: int, n_id: Tensor, *, keep_positions: bool) -> DrawnHop:
    """Return a hop of ``num_rows`` rows that draws nothing, on the device of ``n_id``."""
    none = n_id.new_empty(0)
    offsets = n_id.new_zeros(num_rows + 1)
    return DrawnHop(offsets=offsets, local=none.int(), positions=none if keep_positions else None)


def steps_of(bounds: list[int]) -> list[int]:
    """Return the differences of consecutive numbers."""
    return [after - before for before, after in pairwise(bounds)]


def cut_blocks(hops: list[DrawnHop], nodes: list[int], edges: list[int]) -> list[SampledEdges]:
    """Return the edges of each hop, whose rows are all nodes found before it."""
    return [
        SampledEdges(
            indptr=hop.offsets[: num_rows + 1],
            indices=hop.local[:count],
            positions=None if hop.positions is None else hop.positions[:count],
        )
        for hop, num_rows, count in zip(hops, nodes[1:-1], steps_of(edges), strict=True)
    ]


def cut_subgraph(hops: list[DrawnHop], nodes: list[int], edges: list[int]) -> list[SampledEdges]:
    """Return the edges of all hops, concatenated."""
    indptr = hops[0].offsets.new_zeros(nodes[-2] + 1)
    for h, hop in enumerate(hops):
        rows = hop.offsets[1 : nodes[h + 1] - nodes[h] + 1]
        torch.add(rows, edges[h], out=indptr[nodes[h] + 1 : nodes[h + 1] + 1])
    cut = list(zip(hops, steps_of(edges), strict=True))
    positions = [hop.positions[:count] for hop, count in cut if hop.positions is not None]
    return [
        SampledEdges(
            indptr=indptr,
            indices=torch.cat([hop.local[:count] for hop, count in cut]),
            positions=torch.cat(positions) if positions else None,
        )
    ]
