"""Aggregation over in-neighbours in Triton; ``csrc/aggregate/spmm.inl`` has the same formula for the CPU."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from graphbraid.ops import reference
from graphbraid.ops.library import RowEpilogue
from graphbraid.ops.triton.epilogue import activated, dropout_arguments, dropout_key, kept, seed_of
from graphbraid.ops.triton.launch import like
from graphbraid.ops.triton.partition import (
    add_segments,
    edges_of,
    load_row,
    load_rows,
    reduce_rows,
    work_tile,
)


@triton.jit(do_not_specialize=["num_loops", "num_addend", "seed", "threshold"])
def spmm_kernel(
    indptr,  # (num_dst + 1,) int64
    indices,  # (num_edges,) int32 or int64, in [0, num_src)
    x,  # (num_src, width) float32, float16 or bfloat16; rows x_stride apart
    weight,  # (num_edges,) float32 or None
    src_scale,  # (num_src,) float32 or None
    dst_scale,  # (num_dst,) float32 or None
    loop,  # (num_loops,) float32 or None
    addend,  # (num_addend, width) of out's dtype, or None
    out,  # (num_dst, width) of x's dtype or float32; rows out_stride apart
    partial,  # (num_segments, width) float32: written where PARTIAL, else read; None without hubs
    bias,  # of the epilogue: (width,) float32 or None
    ids,  # of the epilogue: (num_dst,) int64, the row that each row's mask is drawn for, or None: itself
    loop_scale,
    num_loops,
    num_addend,
    width,
    x_stride,
    addend_stride,
    out_stride,
    slope,
    segment_row,  # see partition.HubSegments
    segment_first,
    seed,
    threshold,
    keep_scale,
    LOOPS: tl.constexpr,  # num_loops > 0
    SKIP_LOOPS: tl.constexpr,
    MEAN: tl.constexpr,
    AFTER: tl.constexpr,  # an epilogue follows
    ACT: tl.constexpr,
    DROPOUT: tl.constexpr,
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Sum over in-neighbours with the coefficients of ``csrc/aggregate/spmm.h``.

    out[v, :] = dst_scale[v] * sum of weight[e] * src_scale[u] * x[u, :] over the edges e = u -> v; `MEAN`
    divides by the number of the row's edges; loop_scale * loop[v] * src_scale[v] * x[v, :] is in the sum;
    addend[v, :] is added last. With AFTER, the row then becomes mask * act(row + bias). A program handles
    FEAT columns of one row, or of one segment of a hub.

    Bound by reading num_edges rows of x. Programs of one tile of columns run together, so that the part of x
    that they share stays in the L2 cache.
    """
    item, columns, inside = work_tile(width, FEAT)
    v, begin, end = edges_of(item, indptr, segment_row, segment_first, SEGMENT, PARTIAL)
    # EDGES independent sums keep as many row reads in flight; they are added up once, at the end.
    acc = tl.zeros((EDGES, FEAT), tl.float32)
    for first in range(begin, end, EDGES):
        e = first + tl.arange(0, EDGES)
        live = e < end
        u = tl.load(indices + e, mask=live, other=0).to(tl.int64)
        if SKIP_LOOPS:
            live = live & (u != v)
        rows = load_rows(x, u, x_stride, columns, live[:, None] & inside[None, :])
        if weight is not None:
            rows *= tl.load(weight + e, mask=live, other=0.0)[:, None]
        if src_scale is not None:
            rows *= tl.load(src_scale + u, mask=live, other=0.0)[:, None]
        acc += rows
    if PARTIAL:
        tl.store(partial + item * width + columns, tl.sum(acc, axis=0), mask=inside)
    else:
        acc = add_segments(acc, partial, segment_first, v, columns, inside, width, EDGES)
        total = tl.sum(acc, axis=0)
        if LOOPS:
            has_loop = v < num_loops
            own = load_row(x, v, x_stride, columns, columns < tl.where(has_loop, width, 0))
            if loop is not None:
                own *= tl.load(loop + v, mask=has_loop, other=0.0)
            if src_scale is not None:
                own *= tl.load(src_scale + v, mask=has_loop, other=0.0)
            total += loop_scale * own
        if MEAN:
            degree = tl.load(indptr + v + 1) - tl.load(indptr + v)
            total /= tl.maximum(degree, 1).to(tl.float32)
        if dst_scale is not None:
            total *= tl.load(dst_scale + v)
        if addend is not None:
            limit = tl.where(v < num_addend, width, 0)
            total += load_row(addend, v, addend_stride, columns, columns < limit)
        if AFTER:
            total = total.to(out.dtype.element_ty).to(tl.float32)  # rounded, as if read again
            if bias is not None:
                total += tl.load(bias + columns, mask=inside, other=0.0)
            total = activated(total, slope, ACT)
            if DROPOUT:
                row = v
                if ids is not None:
                    row = tl.load(ids + v)
                stays = kept(dropout_key(seed_of(seed), row), columns, threshold)
                total *= tl.where(stays, keep_scale, 0.0)
        tl.store(out + v * out_stride + columns, total, mask=inside)


@like(reference.spmm)
def spmm(a: Any) -> None:
    """Compute like the twin; ``x`` is float32, float16 or bfloat16."""
    how = a.after or RowEpilogue(bias=None, act=0, slope=0.0, p=0.0, seed=0, ids=None)
    more = dropout_arguments(how.p, how.seed)
    more |= {"bias": how.bias, "ids": how.ids, "slope": float(how.slope), "AFTER": a.after is not None}
    more |= {"loop_scale": float(a.loop_scale), "LOOPS": a.num_loops > 0, "SKIP_LOOPS": a.skip_loops}
    more["num_addend"] = 0 if a.addend is None else a.addend.shape[0]
    reduce_rows(spmm_kernel, a, **more, MEAN=a.mean, ACT=how.act)
