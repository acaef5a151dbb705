"""Sums over own and peers' rows in Triton: neighbour partitions in turns, as the kernel of MGG has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from graphbraid.ops import reference
from graphbraid.ops.peers import VECTOR_BYTES
from graphbraid.ops.triton.launch import kernel_dtype, launch, like
from graphbraid.ops.triton.partition import load_row, load_rows, row_tile, row_tiles, work_tile

if TYPE_CHECKING:
    from graphbraid.ops.peers import PeerTable, PipelinePlan


AHEAD = 4
"""Edges of a partition whose rows are on their way at a time; they are added up in order."""


@triton.jit
def _bounds(work, place, there, indptr):
    """Return the partitions of warps and their edges [begin, end); none where there is no partition."""
    p = tl.load(work + place, mask=there, other=-1).to(tl.int64)
    live = p >= 0
    begin = tl.load(indptr + p, mask=live, other=0)
    return p, begin, tl.load(indptr + p + 1, mask=live, other=0)


@triton.jit
def _messages(
    e,  # (WPB,) int64 edge of each warp
    end,  # (WPB,) int64
    indices,
    owners,
    factor,
    bases,
    rank,
    num_local,
    width,
    columns,
    inside,
    ROW: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Read the rows of edges where they are, as (WPB, FEAT) float32 by their factors; 0 past the end."""
    live = e < end
    u = tl.load(indices + e, mask=live, other=0).to(tl.int64)
    owner = tl.load(owners + (e - num_local), mask=live & (e >= num_local), other=rank)
    base = tl.load(bases + owner).to(tl.pointer_type(ROW))
    if ALIGNED > 1:
        base = tl.multiple_of(base, ALIGNED)
    place = base[:, None] + u[:, None] * width + columns[None, :]
    rows = tl.load(place, mask=live[:, None] & inside[None, :], other=0.0).to(tl.float32)
    if factor is not None:
        rows *= tl.load(factor + e, mask=live, other=0.0)[:, None]
    return rows


@triton.jit
def _put(
    acc,  # (WPB, FEAT) float32
    p,  # (WPB,) int64 partition of each warp, -1 for none
    target,
    dst_scale,
    addend,
    num_addend,
    out,
    partial,
    width,
    addend_stride,
    out_stride,
    columns,
    inside,
):
    """Finish the rows whose only partition this is; write the sums of the others for the second pass."""
    live = p >= 0
    t = tl.load(target + p, mask=live, other=0)
    ends = live & (t >= 0)
    tl.store(
        partial + (-1 - t)[:, None] * width + columns[None, :],
        acc,
        mask=(live & (t < 0))[:, None] & inside[None, :],
    )
    total = acc
    if dst_scale is not None:
        total *= tl.load(dst_scale + t, mask=ends, other=0.0)[:, None]
    if addend is not None:
        adds = (ends & (t < num_addend))[:, None] & inside[None, :]
        total += load_rows(addend, t, addend_stride, columns, adds)
    tl.store(out + t[:, None] * out_stride + columns[None, :], total, mask=ends[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["num_warps_of_work", "rank", "num_local", "num_addend"])
def pipelined_sum_kernel(
    work,  # (num_warps_of_work, 2 * dist) int32: partitions, -1 where there is none
    indptr,  # (num_partitions + 1,) int64
    indices,  # (num_edges,) int32 or int64: place of each edge's row on its owner, local edges first
    owners,  # (num_remote_edges,) int32
    factor,  # (num_edges,) float32 or None
    bases,  # (num_ranks,) int64: addresses of rows of ROW, `width` apart
    target,  # (num_partitions,) int64: row of out, or -1 - place in partial
    dst_scale,  # (num_rows,) float32 or None
    addend,  # (num_addend, width) of out's dtype, or None
    out,  # (num_rows, width) of the rows' dtype or float32; rows out_stride apart
    partial,  # (num_partials, width) float32, written
    num_warps_of_work,
    dist,
    rank,
    num_local,
    num_addend,
    width,
    addend_stride,
    out_stride,
    ROW: tl.constexpr,
    ALIGNED: tl.constexpr,  # bytes of which the addresses of rows are multiples, or 1
    WPB: tl.constexpr,
    AHEAD: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Sum up neighbour partitions: those of columns `j` and `dist + j` of a warp's work at the same time.

    A program is a block of WPB warps, and row i of its tile the work of warp i. While the rows of one
    partition of a pair are on their way from a peer, those of the other arrive from the device's own memory;
    each has a sum of its own. Bound by reading num_edges rows, each at the speed of its memory.
    """
    block, columns, inside = work_tile(width, FEAT)
    warp = block * WPB + tl.arange(0, WPB)
    there = warp < num_warps_of_work
    for pair in range(dist):
        place = warp * (2 * dist) + pair
        p, e, end = _bounds(work, place, there, indptr)
        q, f, stop = _bounds(work, place + dist, there, indptr)
        longest = tl.max(tl.maximum(end - e, stop - f), axis=0)
        near = tl.zeros((WPB, FEAT), tl.float32)
        far = tl.zeros((WPB, FEAT), tl.float32)
        for k in range(0, longest, AHEAD):
            for i in tl.static_range(AHEAD):
                far += _messages(
                    f + (k + i), stop, indices, owners, factor, bases, rank, num_local, width, columns,
                    inside, ROW, ALIGNED,
                )  # fmt: skip
                near += _messages(
                    e + (k + i), end, indices, owners, factor, bases, rank, num_local, width, columns,
                    inside, ROW, ALIGNED,
                )  # fmt: skip
        _put(
            near, p, target, dst_scale, addend, num_addend, out, partial, width, addend_stride, out_stride,
            columns, inside,
        )  # fmt: skip
        _put(
            far, q, target, dst_scale, addend, num_addend, out, partial, width, addend_stride, out_stride,
            columns, inside,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_addend"])
def partial_sums_kernel(
    rest,  # (num_rest,) int64 rows that no partition has finished
    first,  # (num_rest + 1,) int64: rest[i] has the partial sums [first[i], first[i + 1])
    partial,  # (num_partials, width) float32
    dst_scale,  # (num_rows,) float32 or None
    addend,  # (num_addend, width) of out's dtype, or None
    out,  # (num_rows, width); rows out_stride apart
    num_addend,
    width,
    addend_stride,
    out_stride,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Add up the partial sums of a row, EDGES of them at a time; the sum of a row without edges is 0."""
    item, columns, inside = work_tile(width, FEAT)
    v = tl.load(rest + item)
    end = tl.load(first + item + 1)
    acc = tl.zeros((EDGES, FEAT), tl.float32)
    for begin in range(tl.load(first + item), end, EDGES):
        s = begin + tl.arange(0, EDGES)
        acc += load_rows(partial, s, width, columns, (s < end)[:, None] & inside[None, :])
    total = tl.sum(acc, axis=0)
    if dst_scale is not None:
        total *= tl.load(dst_scale + v)
    if addend is not None:
        limit = tl.where(v < num_addend, width, 0)
        total += load_row(addend, v, addend_stride, columns, columns < limit)
    tl.store(out + v * out_stride + columns, total, mask=inside)


@like(reference.pipelined_sum)
def pipelined_sum(a: Any) -> None:
    """Compute like the twin; rows are float32, float16 or bfloat16."""
    if a.out.numel() == 0:
        return
    plan: PipelinePlan = a.plan
    table: PeerTable = a.table
    tile = row_tile(table.width)
    tiles, (num_warps, pairs), wpb = row_tiles(table.width, tile), plan.work.shape, plan.config.wpb
    num_addend = 0 if a.addend is None else a.addend.shape[0]
    shared = {"dst_scale": plan.dst_scale, "num_addend": num_addend, "width": table.width}
    shared["partial"] = a.out.new_empty(plan.num_partials, table.width, dtype=torch.float32)
    if num_warps:
        launch(
            pipelined_sum_kernel,
            (triton.cdiv(num_warps, wpb), tiles),
            a,
            **shared,
            **{name: getattr(plan, name) for name in ("work", "indptr", "indices", "factor", "target")},
            owners=plan.owner,
            bases=table.bases,
            num_warps_of_work=num_warps,
            dist=pairs // 2,
            rank=table.rank,
            num_local=plan.indices.numel() - plan.owner.numel(),
            ROW=kernel_dtype(table.dtype),
            ALIGNED=VECTOR_BYTES if table.in_vectors else 1,
            WPB=wpb,
            AHEAD=AHEAD,
            FEAT=tile["FEAT"],
            num_warps=wpb,
        )
    if plan.rest.numel():
        rest = {"rest": plan.rest, "first": plan.rest_first}
        launch(partial_sums_kernel, (plan.rest.numel(), tiles), a, **shared, **rest, **tile)
