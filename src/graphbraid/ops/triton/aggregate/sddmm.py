"""Inner products along edges in Triton; ``csrc/aggregate/sddmm.inl`` has the same formula for the CPU."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops.triton.partition import destination_of, on_device_of, search_steps
from graphbraid.ops.triton.tiles import load_rows


@triton.jit(do_not_specialize=["num_dst", "num_edges", "steps"])
def sddmm_kernel(
    indptr,  # (num_dst + 1,) int64
    indices,  # (num_edges,) int32 or int64, in [0, num_src)
    dst_rows,  # (num_dst, heads * channels) float32, float16 or bfloat16; rows dst_stride apart
    src_rows,  # (num_src, heads * channels); rows src_stride apart
    dst_scale,  # (num_dst,) float32 or None
    src_scale,  # (num_src,) float32 or None
    out,  # (num_edges, heads) float32
    num_dst,
    num_edges,
    steps,  # of the binary search for a row
    heads,
    channels,
    dst_stride,
    src_stride,
    EDGES: tl.constexpr,
    CHANNELS: tl.constexpr,  # of a head taken together, a power of two
):
    """Compute inner products along edges.

    out[e, h] = dst_scale[v] * src_scale[u] * <dst_rows[v, h, :], src_rows[u, h, :]> for the edge e = u -> v.
    A program handles EDGES consecutive edges, whatever rows they belong to, so hubs need no special care.

    Bound by reading num_edges rows of src_rows; a row of dst_rows is read once for neighbouring edges.
    """
    e = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    live = e < num_edges
    v = destination_of(e, indptr, num_dst, steps)
    u = tl.load(indices + e, mask=live, other=0).to(tl.int64)
    for head in range(heads):
        acc = tl.zeros((EDGES, CHANNELS), tl.float32)
        for channel in range(0, channels, CHANNELS):
            c = channel + tl.arange(0, CHANNELS)
            tile = live[:, None] & (c < channels)[None, :]
            columns = head * channels + c
            left = load_rows(dst_rows, v, dst_stride, columns, tile)
            acc += left * load_rows(src_rows, u, src_stride, columns, tile)
        total = tl.sum(acc, axis=1)
        if dst_scale is not None:
            total *= tl.load(dst_scale + v, mask=live, other=0.0)
        if src_scale is not None:
            total *= tl.load(src_scale + u, mask=live, other=0.0)
        tl.store(out + e * heads + head, total, mask=live)


def sddmm(
    indptr: Tensor,
    indices: Tensor,
    dst_rows: Tensor,
    src_rows: Tensor,
    dst_scale: Tensor | None,
    src_scale: Tensor | None,
    out: Tensor,
) -> None:
    """Compute like the twin in ``ops/reference/``; rows are float32, float16 or bfloat16."""
    num_edges, heads = out.shape
    if out.numel() == 0:
        return
    num_dst, channels = indptr.numel() - 1, dst_rows.shape[1] // heads
    # A warp reads 128 columns, with at most eight values per lane, as each needs two 64-bit addresses.
    block = min(128, triton.next_power_of_2(max(channels, 1)))
    edges = max(8, min(64, 1024 // block))
    with on_device_of(dst_rows):
        sddmm_kernel[(triton.cdiv(num_edges, edges),)](
            indptr,
            indices,
            dst_rows,
            src_rows,
            dst_scale,
            src_scale,
            out,
            num_dst,
            num_edges,
            search_steps(num_dst),
            heads,
            channels,
            dst_rows.stride(0),
            src_rows.stride(0),
            EDGES=edges,
            CHANNELS=block,
            num_warps=4,
        )
