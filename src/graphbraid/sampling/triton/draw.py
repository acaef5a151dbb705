"""Uniform draws of in-neighbours in Triton: the positions of a hop's edges in the graph.

The CPU's counterpart is ``csrc/sampling/sample_row.inl``. Draws by weight are in ``weighted.py``.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops.triton.partition import destination_of, search_steps
from graphbraid.sampling.triton.rng import bounded, draw, row_key
from graphbraid.sampling.triton.topology import HopRows, RowEdges, row_edges, rows_of_hop

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

    Args:
        rows: the rows of the hop, whose fanout is not 0.
        edges: the result of :func:`.topology.count_edges`.
        positions: int64 with room for the hop's edges; written.
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
