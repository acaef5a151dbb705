"""Draws of in-neighbours in Triton, uniform and by weight: the positions of a hop's edges in the graph.

They equal those of ``csrc/sampling/sample_row.inl`` bit for bit. By weight, arrivals and running sums are
float64 in a fixed order of exactly rounded operations, so these kernels are compiled without fused
multiply-adds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.ops.triton.launch import on_device_of
from graphbraid.ops.triton.partition import destination_of, search_steps
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.rows.by_id import AT_ONCE, weight_bytes
from graphbraid.sampling.triton.rng import bounded, draw, log_of_draw, row_key
from graphbraid.sampling.triton.topology import (
    HopRows,
    PlacedTopology,
    RowEdges,
    empty,
    load_edge,
    place,
    row_edges,
    rows_of_hop,
)

_TILE = 1024
_LONGEST_TILE = 128
"""Most draws of a row that are made in registers; Floyd's algorithm compares each with all before it."""


@triton.jit(do_not_specialize=["hop", "fanout", "key"])
def floyd_kernel(
    node_bounds,
    n_id,
    starts,  # see RowEdges
    degrees,
    offsets,
    positions,  # (num_edges,) int64, written
    hop,
    fanout,
    key,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,  # power of two, at least fanout
):
    """Draw by Floyd's algorithm for ROWS rows at once; rows no longer than the fanout take all, in order.

    Draw i is in [0, degree - fanout + i], the bound included; if it is taken already, the bound is drawn.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    begin, num_rows = rows_of_hop(node_bounds, hop, BLOCKS)
    if tl.program_id(0) * ROWS >= num_rows:  # the grid has room for the most rows a batch can have
        return
    live = row < num_rows
    node = tl.load(n_id + begin + row, mask=live, other=0)
    start, degree, first = row_edges(row, live, starts, degrees, offsets)
    keys = row_key(key, hop, node)
    chosen = tl.full((ROWS, WIDTH), -1, tl.int64)
    for i in range(fanout):
        bound = tl.maximum(degree - fanout + i, 0)
        t = bounded(draw(keys, i), bound + 1)
        taken = tl.max((chosen == t[:, None]).to(tl.int32), axis=1) > 0
        pick = tl.where(taken, bound, t)
        chosen = tl.where((column == i)[None, :], pick[:, None], chosen)
    place = tl.where((degree <= fanout)[:, None], column[None, :], chosen)
    inside = live[:, None] & (column[None, :] < tl.minimum(degree, fanout)[:, None])
    tl.store(positions + first[:, None] + column[None, :], start[:, None] + place, mask=inside)


@triton.jit(do_not_specialize=["hop", "fanout", "key"])
def floyd_long_kernel(
    node_bounds,
    n_id,
    starts,
    degrees,
    offsets,
    positions,  # written, and read back as the set of positions taken so far
    hop,
    fanout,
    key,
    BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Draw by Floyd's algorithm, one row per program, for fanouts above a tile: fanout**2 / CHUNK steps."""
    row = tl.program_id(0).to(tl.int64)
    begin, num_rows = rows_of_hop(node_bounds, hop, BLOCKS)
    live = row < num_rows
    node = tl.load(n_id + begin + row, mask=live, other=0)
    start, degree, first = row_edges(row, live, starts, degrees, offsets)
    out = positions + first
    column = tl.arange(0, CHUNK)
    row_keys = row_key(key, hop, node)
    if degree <= fanout:
        for c in range(0, degree, CHUNK):
            tl.store(out + c + column, start + c + column, mask=c + column < degree)
    else:
        for i in range(fanout):
            bound = degree - fanout + i
            t = start + bounded(draw(row_keys, i), bound + 1)
            found = tl.zeros((CHUNK,), tl.int32)
            for c in range(0, i, CHUNK):
                before = tl.load(out + c + column, mask=c + column < i, other=-1)
                found |= (before == t).to(tl.int32)
            tl.store(out + i, tl.where(tl.max(found, axis=0) > 0, start + bound, t))
            tl.debug_barrier()  # the next draw reads this one


@triton.jit(do_not_specialize=["hop", "fanout", "key"])
def repeat_kernel(
    node_bounds,
    n_id,
    starts,
    degrees,
    offsets,
    positions,  # written
    hop,
    fanout,
    key,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Draw with replacement: WIDTH draws for each of ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    begin, num_rows = rows_of_hop(node_bounds, hop, BLOCKS)
    if tl.program_id(0) * ROWS >= num_rows:  # the grid has room for the most rows a batch can have
        return
    live = row < num_rows
    node = tl.load(n_id + begin + row, mask=live, other=0)
    start, degree, first = row_edges(row, live, starts, degrees, offsets)
    bits = draw(row_key(key, hop, node)[:, None], column[None, :])
    inside = (live & (degree > 0))[:, None] & (column < fanout)[None, :]
    place = start[:, None] + bounded(bits, degree[:, None])
    tl.store(positions + first[:, None] + column[None, :], place, mask=inside)


@triton.jit(do_not_specialize=["capacity", "steps"])
def take_all_kernel(
    starts,
    offsets,
    positions,  # written
    capacity,
    steps,  # see partition.destination_of
    BLOCK: tl.constexpr,
):
    """Take all in-neighbours, one edge per lane, so that a hub is not the work of a single program."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = e < tl.load(offsets + capacity)
    row = destination_of(e, offsets, capacity, steps)
    place = tl.load(starts + row, mask=live, other=0) + e - tl.load(offsets + row, mask=live, other=0)
    tl.store(positions + e, place, mask=live)


def draw_edges(rows: HopRows, edges: RowEdges, positions: Tensor) -> None:
    """Write the place of every edge of a hop, row by row and draw by draw.

    ``positions`` is int64 with room for the hop's edges, and is written.
    """
    if rows.fanout < 0:
        block = 256
        take_all_kernel[(triton.cdiv(positions.numel(), block),)](
            edges.starts,
            edges.offsets,
            positions,
            rows.capacity,
            search_steps(rows.capacity),
            BLOCK=block,
            num_warps=4,
        )
        return
    shared = (rows.node_bounds, rows.n_id, edges.starts, edges.degrees, edges.offsets, positions)
    draws = (rows.hop, rows.fanout, rows.key)
    tile = draw_tile(rows.fanout)
    grid = triton.cdiv(rows.capacity, tile["ROWS"])
    if rows.replace:
        grid_2d = (grid, triton.cdiv(rows.fanout, tile["WIDTH"]))
        repeat_kernel[grid_2d](*shared, *draws, BLOCKS=rows.blocks, **tile)
    elif rows.fanout <= tile["WIDTH"]:
        floyd_kernel[(grid,)](*shared, *draws, BLOCKS=rows.blocks, **tile)
    else:
        floyd_long_kernel[(rows.capacity,)](*shared, *draws, BLOCKS=rows.blocks, CHUNK=256, num_warps=4)


def draw_tile(fanout: int) -> dict[str, int]:
    """Return the launch options of a tile: the rows and draws that one program makes, and its warps."""
    width = min(triton.next_power_of_2(fanout), _LONGEST_TILE)
    return {"ROWS": max(_TILE // width, 1), "WIDTH": width, "num_warps": 4}


_NO_EDGE = tl.constexpr(2**62)


@triton.jit(do_not_specialize=["num_nodes"])
def weigh_kernel(
    indptr,  # (num_nodes + 1,) int64
    weight,  # (num_edges,) float32
    available,  # (num_nodes,) int32, written: number of in-edges with a weight above 0
    running,  # (num_edges,) float64, written: running sum of the row's weights; None if not needed
    num_nodes,
    BLOCK: tl.constexpr,
):
    """Prepare each row for draws by weight, once per graph. One lane sums one row, which fixes the order."""
    node = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(indptr + node, mask=node < num_nodes, other=0)
    degree = tl.load(indptr + node + 1, mask=node < num_nodes, other=0) - start
    count = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), tl.float64)
    for i in range(tl.max(degree, axis=0)):
        inside = i < degree
        w = tl.load(weight + start + i, mask=inside, other=0.0)
        count += (w > 0).to(tl.int32)
        if running is not None:
            total += tl.where(w > 0, w, 0.0).to(tl.float64)
            tl.store(running + start + i, total, mask=inside)
    tl.store(available + node, count, mask=node < num_nodes)


@triton.jit
def arrivals(weight, hot_weight, num_hot, shift, keys, start, e, degree):
    """Return the arrival times of the neighbours ``e`` of a row in the race; infinity for weight 0."""
    w = load_edge(start + e, weight, hot_weight, num_hot, shift, e < degree, 0.0)
    arrival = -log_of_draw(draw(keys, e)) / tl.where(w > 0, w, 1.0).to(tl.float64)
    return tl.where(w > 0, arrival, float("inf"))


@triton.jit
def first_after(arrival, e, last, last_edge):
    """Return the least (arrival, edge) above (last, last_edge); an infinite arrival if there is none."""
    later = (arrival > last) | ((arrival == last) & (e > last_edge))
    arrival = tl.where(later, arrival, float("inf"))
    best = tl.min(arrival, axis=0)
    return best, tl.min(tl.where(arrival == best, e, _NO_EDGE), axis=0)


@triton.jit(do_not_specialize=["hop", "fanout", "key", "num_hot", "shift"])
def race_kernel(
    node_bounds,
    n_id,
    starts,  # see topology.RowEdges
    degrees,
    offsets,
    positions,  # written
    weight,  # (num_edges,) float32; this and the next three: see topology.EdgeArray
    hot_weight,
    num_hot,
    shift,
    available,  # (num_nodes,) int32
    hop,
    fanout,
    key,
    BLOCKS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Take the first ``fanout`` arrivals of a row's exponential race, in order; all if there are no more.

    Each program handles one row. Arrival times of the first EDGES neighbours stay in registers; those of the
    others are computed again for every draw.
    """
    row = tl.program_id(0).to(tl.int64)
    begin, num_rows = rows_of_hop(node_bounds, hop, BLOCKS)
    live = row < num_rows
    node = tl.load(n_id + begin + row, mask=live, other=0)
    start, degree, first = row_edges(row, live, starts, degrees, offsets)
    runners = tl.load(available + node, mask=live, other=0)
    out = positions + first
    lane = tl.arange(0, EDGES).to(tl.int64)
    if (fanout < 0) | (runners <= fanout):
        found = tl.zeros((), tl.int64)
        for c in range(0, degree, EDGES):
            e = c + lane
            runs = load_edge(start + e, weight, hot_weight, num_hot, shift, e < degree, 0.0) > 0
            rank = tl.cumsum(runs.to(tl.int32), axis=0)
            tl.store(out + found + rank - 1, start + c + lane, mask=runs)
            found += tl.max(rank, axis=0)
    else:
        keys = row_key(key, hop, node)
        head = arrivals(weight, hot_weight, num_hot, shift, keys, start, lane, degree)
        last = tl.full((), -1.0, tl.float64)
        last_edge = tl.full((), -1, tl.int64)
        for i in range(fanout):
            best, edge = first_after(head, lane, last, last_edge)
            for c in range(EDGES, degree, EDGES):
                e = c + lane
                times = arrivals(weight, hot_weight, num_hot, shift, keys, start, e, degree)
                arrival, at = first_after(times, e, last, last_edge)
                edge = tl.where(arrival < best, at, edge)
                best = tl.minimum(arrival, best)
            tl.store(out + i, start + edge)
            last = best
            last_edge = edge


@triton.jit(do_not_specialize=["hop", "fanout", "key", "steps", "num_hot", "shift"])
def invert_kernel(
    node_bounds,
    n_id,
    starts,
    degrees,
    offsets,
    positions,  # written
    running,  # (num_edges,) float64: see weigh_kernel; this and the next three: see topology.EdgeArray
    hot_running,
    num_hot,
    shift,
    available,
    hop,
    fanout,
    key,
    steps,  # binary-search steps that suffice for the longest row
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Draw with replacement: find the first neighbour whose running sum passes the draw, by bisection."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    begin, num_rows = rows_of_hop(node_bounds, hop, BLOCKS)
    if tl.program_id(0) * ROWS >= num_rows:  # the grid has room for the most rows a batch can have
        return
    live = row < num_rows
    node = tl.load(n_id + begin + row, mask=live, other=0)
    start, degree, first = row_edges(row, live, starts, degrees, offsets)
    live = live & (tl.load(available + node, mask=live, other=0) > 0)
    total = load_edge(start + degree - 1, running, hot_running, num_hot, shift, live, 0.0)
    bits = draw(row_key(key, hop, node)[:, None], column[None, :])
    target = (bits.to(tl.float64) + 0.5) * (1.0 / 4294967296.0) * total[:, None]
    inside = live[:, None] & (column < fanout)[None, :]
    low = tl.zeros((ROWS, WIDTH), tl.int64)
    high = low + degree[:, None]
    for _ in range(steps):
        middle = (low + high) // 2
        open_ = inside & (low < high)
        place = start[:, None] + middle
        sums = load_edge(place, running, hot_running, num_hot, shift, open_, 0.0)
        passed = open_ & (sums <= target)
        low = tl.where(passed, middle + 1, low)
        high = tl.where(open_ & (passed == 0), middle, high)
    tl.store(positions + first[:, None] + column[None, :], start[:, None] + low, mask=inside)


def weigh(indptr: Tensor, weight: Tensor, available: Tensor, running: Tensor | None) -> None:
    """Write each node's number of drawable neighbours and the running sums of each row's weights.

    Args:
        indptr: ``(num_nodes + 1,)`` int64.
        weight: ``(num_edges,)`` float32.
        available: ``(num_nodes,)`` int32, written.
        running: ``(num_edges,)`` float64, written. None for draws without replacement.
    """
    if available.numel():
        weigh_kernel[(triton.cdiv(available.numel(), 128),)](
            indptr,
            weight,
            available,
            running,
            available.numel(),
            BLOCK=128,
            num_warps=4,
            enable_fp_fusion=False,
        )


class PlacedWeights:
    """The arrays that draws by weight read in addition to the topology."""

    def __init__(
        self, lists: PlacedTopology, csc: Csc, config: SamplerConfig, topology: str, device: torch.device
    ) -> None:
        assert csc.weight is not None
        weight = place(csc.weight, topology, device)
        self._max_degree = int(csc.degrees().max()) if csc.num_dst else 0
        self.available = torch.empty(csc.num_dst, dtype=torch.int32, device=device)
        """Number of in-neighbours that can be drawn, ``(num_nodes,)`` int32."""
        running = empty(csc.num_edges, torch.float64, topology, device) if config.replace else None
        with on_device_of(self.available):
            weigh(lists.indptr, weight, self.available, running)
        self._lists, self._replace = lists, config.replace
        self.read_bytes = torch.zeros((), dtype=torch.int64, device=device) if topology == "host" else None
        """Bytes that draws have read from the host so far, ``()`` int64; None if the device has all."""
        self._running = None if running is None else lists.by_place(running)
        self._weight = lists.by_place(weight) if running is None else None

    def draw_edges(self, rows: HopRows, edges: RowEdges, positions: Tensor) -> None:
        """Write the positions of a hop's edges."""
        if self.read_bytes is not None:
            with on_device_of(self.read_bytes):
                self.read_bytes.add_(self._read_of(rows, edges))
        read = (rows.node_bounds, rows.n_id, edges.starts, edges.degrees, edges.offsets, positions)
        draws = (self.available, rows.hop, rows.fanout, rows.key)
        launch = {"BLOCKS": rows.blocks, "enable_fp_fusion": False}
        if self._weight is not None:
            weight = self._weight.arguments
            race_kernel[(rows.capacity,)](*read, *weight, *draws, EDGES=AT_ONCE, num_warps=2, **launch)
            return
        assert self._running is not None
        tile, steps = draw_tile(rows.fanout), search_steps(self._max_degree)
        grid = (triton.cdiv(rows.capacity, tile["ROWS"]), triton.cdiv(rows.fanout, tile["WIDTH"]))
        invert_kernel[grid](*read, *self._running.arguments, *draws, steps, **launch, **tile)

    def _read_of(self, rows: HopRows, edges: RowEdges) -> Tensor:
        """Return the bytes that a hop's draws read from the host, ``()`` int64; does not wait."""
        first = rows.node_bounds[0 if rows.blocks else rows.hop]
        place = torch.arange(rows.capacity, device=first.device)
        is_row = place < rows.node_bounds[rows.hop + 1] - first
        nodes = rows.n_id[torch.where(is_row, place + first, 0)]
        on_host = is_row & (edges.starts >= self._lists.num_hot)
        degrees = torch.where(on_host, edges.degrees, 0)
        drawable = self.available[torch.where(is_row, nodes, 0)]
        return weight_bytes(degrees, drawable, rows.fanout, replace=self._replace).sum()
