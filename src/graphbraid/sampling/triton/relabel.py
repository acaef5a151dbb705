"""Local ids in order of first appearance, in Triton, by a table of first positions and a prefix sum.

Every seed and edge of a batch has a position: the seeds come first, then the edges, hop by hop. All edges of
a hop claim the slot of their source node at once by an atomic minimum, so the slot holds the node's first
position whatever the order of the claims. An edge that finds its own position there has found a new node; a
prefix sum over these edges numbers the new nodes, and their slots receive the local ids. A local id is never
greater than a position, so a node that is known already keeps its slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphbraid.errors import ResourceError
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

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return self.slots.nbytes

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
    """Check that a batch of ``count`` seeds and edges can be numbered.

    Raises:
        ResourceError: ``count`` is above ``MAX_POSITIONS``.
    """
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
