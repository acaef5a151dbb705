"""GINE's sums of rectified sums in Triton; ``csrc/aggregate/gine.inl`` has the same formulas for the CPU."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from graphbraid.ops import reference
from graphbraid.ops.triton.launch import launch, like
from graphbraid.ops.triton.partition import (
    RowReduction,
    add_segments,
    destination_of,
    edges_by_row,
    edges_of,
    load_row,
    load_rows,
    row_tile,
    row_tiles,
    work_tile,
)


@triton.jit
def finish_row(
    acc,
    item,
    v,
    own,
    loop_scale,
    num_loops,
    out,
    partial,
    columns,
    inside,
    width,
    own_stride,
    segment_first,
    PARTIAL: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Write a segment's sums, or a row's sums together with those of its segments and its own row's part."""
    place = item * width + columns
    if PARTIAL:
        tl.store(partial + place, tl.sum(acc, axis=0), mask=inside)
    else:
        acc = add_segments(acc, partial, segment_first, v, columns, inside, width, EDGES)
        row = load_row(own, v, own_stride, columns, columns < tl.where(v < num_loops, width, 0))
        tl.store(out + place, tl.sum(acc, axis=0) + loop_scale * row, mask=inside)


@triton.jit(do_not_specialize=["num_loops"])
def gine_kernel(
    indptr,  # (num_dst + 1,) int64
    indices,  # (num_edges,) int32 or int64, in [0, num_src)
    x,  # (num_src, width) float32, float16 or bfloat16; rows x_stride apart
    edges,  # (num_edges, width) of x's dtype; rows edges_stride apart
    out,  # (num_dst, width) of x's dtype
    partial,  # (num_segments, width) float32: written where PARTIAL, else read; None without hubs
    loop_scale,
    num_loops,
    width,
    x_stride,
    edges_stride,
    segment_row,  # see partition.HubSegments
    segment_first,
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Sum out[v, :] = loop_scale * x[v, :] + sum of relu(x[u, :] + edges[e, :]) over the edges e = u -> v.

    Only the first num_loops rows add their own. NaNs propagate. Bound by reading num_edges rows of x and of
    edges.
    """
    item, columns, inside = work_tile(width, FEAT)
    v, begin, end = edges_of(item, indptr, segment_row, segment_first, SEGMENT, PARTIAL)
    acc = tl.zeros((EDGES, FEAT), tl.float32)
    for first in range(begin, end, EDGES):
        e = first + tl.arange(0, EDGES)
        live = e < end
        tile = live[:, None] & inside[None, :]
        u = tl.load(indices + e, mask=live, other=0).to(tl.int64)
        rows = load_rows(x, u, x_stride, columns, tile) + load_rows(edges, e, edges_stride, columns, tile)
        acc += tl.where(rows < 0, 0.0, rows)
    finish_row(
        acc,
        item,
        v,
        x,
        loop_scale,
        num_loops,
        out,
        partial,
        columns,
        inside,
        width,
        x_stride,
        segment_first,
        PARTIAL,
        EDGES,
    )


@triton.jit(do_not_specialize=["num_loops"])
def gine_backward_kernel(
    indptr,  # (num_src + 1,) int64, of the transpose
    indices,  # (num_edges,) int32 or int64, of the transpose: destinations
    perm,  # (num_edges,) int64: edge of the transpose -> edge
    grad,  # (num_dst, width) float32, float16 or bfloat16; rows grad_stride apart
    x,  # (num_src, width), rows x_stride apart; None: edges hold the edges' gradients
    edges,  # (num_edges, width); rows edges_stride apart
    out,  # (num_src, width)
    partial,  # (num_segments, width) float32; None without hubs
    loop_scale,
    num_loops,
    width,
    grad_stride,
    x_stride,
    edges_stride,
    segment_row,
    segment_first,
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute the gradient of x.

    out[u, :] = loop_scale * grad[u, :] + sum of grad[v, :] where x[u, :] + edges[e, :] > 0, over e = u -> v.
    Bound by reading num_edges rows of grad and of edges.
    """
    item, columns, inside = work_tile(width, FEAT)
    u, begin, end = edges_of(item, indptr, segment_row, segment_first, SEGMENT, PARTIAL)
    acc = tl.zeros((EDGES, FEAT), tl.float32)
    for first in range(begin, end, EDGES):
        t = first + tl.arange(0, EDGES)
        live = t < end
        tile = live[:, None] & inside[None, :]
        e = tl.load(perm + t, mask=live, other=0)
        rows = load_rows(edges, e, edges_stride, columns, tile)
        if x is not None:
            rows += load_row(x, u, x_stride, columns, inside)[None, :]
            v = tl.load(indices + t, mask=live, other=0).to(tl.int64)
            rows = tl.where(rows <= 0, 0.0, load_rows(grad, v, grad_stride, columns, tile))
        acc += rows
    finish_row(
        acc,
        item,
        u,
        grad,
        loop_scale,
        num_loops,
        out,
        partial,
        columns,
        inside,
        width,
        grad_stride,
        segment_first,
        PARTIAL,
        EDGES,
    )


@triton.jit(do_not_specialize=["num_dst", "num_edges", "steps"])
def gine_edge_backward_kernel(
    indptr,  # (num_dst + 1,) int64
    indices,  # (num_edges,) int32 or int64, in [0, num_src)
    x,  # (num_src, width) float32, float16 or bfloat16; rows x_stride apart
    edges,  # (num_edges, width); rows edges_stride apart
    grad,  # (num_dst, width); rows grad_stride apart
    out,  # (num_edges, width); rows out_stride apart; may be edges
    num_dst,
    num_edges,
    steps,  # of the binary search for a row
    width,
    x_stride,
    edges_stride,
    grad_stride,
    out_stride,
    EDGES: tl.constexpr,
    FEAT: tl.constexpr,
):
    """Compute out[e, :] = grad[v, :] where x[u, :] + edges[e, :] > 0, else 0, for the edge e = u -> v.

    A program handles FEAT columns of EDGES consecutive edges. Bound by reading num_edges rows of x and of
    edges and writing as many.
    """
    e = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    columns = tl.program_id(1) * FEAT + tl.arange(0, FEAT)
    live = e < num_edges
    tile = live[:, None] & (columns < width)[None, :]
    v = destination_of(e, indptr, num_dst, steps)
    u = tl.load(indices + e, mask=live, other=0).to(tl.int64)
    rows = load_rows(x, u, x_stride, columns, tile) + load_rows(edges, e, edges_stride, columns, tile)
    given = load_rows(grad, v, grad_stride, columns, tile)
    tl.store(out + e[:, None] * out_stride + columns[None, :], tl.where(rows <= 0, 0.0, given), mask=tile)


@like(reference.gine)
def gine(a: Any) -> None:
    """Compute like the twin; ``out`` is contiguous."""
    if a.out.numel():
        RowReduction(a.indptr, a.indices.numel(), a.out.shape[1]).launch(gine_kernel, a)


@like(reference.gine_backward)
def gine_backward(a: Any) -> None:
    """Compute like the twin; ``out`` is contiguous."""
    if a.out.numel():
        RowReduction(a.indptr, a.indices.numel(), a.out.shape[1]).launch(gine_backward_kernel, a)


@like(reference.gine_edge_backward)
def gine_edge_backward(a: Any) -> None:
    """Compute like the twin."""
    num_edges, width = a.out.shape
    if a.out.numel():
        tile = row_tile(width)
        grid = triton.cdiv(num_edges, tile["EDGES"]), row_tiles(width, tile)
        launch(gine_edge_backward_kernel, grid, a, **edges_by_row(a.indptr, num_edges), width=width, **tile)
