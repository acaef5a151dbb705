"""Values of edges in Triton, made of steps: inner products, the softmax over in-edges, and GINE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphbraid.ops import reference
from graphbraid.ops.message_steps import MessageOp, MessageStep
from graphbraid.ops.triton.launch import launch, like
from graphbraid.ops.triton.messages import Result, run_steps
from graphbraid.ops.triton.partition import destination_of, edges_by_row, load_rows


@triton.jit(do_not_specialize=["num_dst", "num_edges", "steps"])
def sddmm_kernel(
    indptr,  # (num_dst + 1,) int64
    indices,  # (num_edges,) int32 or int64, in [0, num_src)
    dst,  # (num_dst, heads * channels) float32, float16 or bfloat16; rows dst_stride apart
    src,  # (num_src, heads * channels); rows src_stride apart
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

    out[e, h] = dst_scale[v] * src_scale[u] * <dst[v, h, :], src[u, h, :]> for the edge e = u -> v.
    A program handles EDGES consecutive edges, whatever rows they belong to, so hubs need no special care.

    Bound by reading num_edges rows of src; a row of dst is read once for neighbouring edges.
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
            left = load_rows(dst, v, dst_stride, columns, tile)
            acc += left * load_rows(src, u, src_stride, columns, tile)
        total = tl.sum(acc, axis=1)
        if dst_scale is not None:
            total *= tl.load(dst_scale + v, mask=live, other=0.0)
        if src_scale is not None:
            total *= tl.load(src_scale + u, mask=live, other=0.0)
        tl.store(out + e * heads + head, total, mask=live)


@like(reference.sddmm)
def sddmm(a: Any) -> None:
    """Compute like the twin; rows are float32, float16 or bfloat16."""
    num_edges, heads = a.out.shape
    if a.out.numel() == 0:
        return
    channels = a.dst.shape[1] // heads
    # A warp reads 128 columns, with at most eight values per lane, as each needs two 64-bit addresses.
    block = min(128, triton.next_power_of_2(max(channels, 1)))
    edges = max(8, min(64, 1024 // block))
    numbers = {**edges_by_row(a.indptr, num_edges), "heads": heads, "channels": channels}
    grid = (triton.cdiv(num_edges, edges),)
    launch(sddmm_kernel, grid, a, **numbers, EDGES=edges, CHANNELS=block, num_warps=4)


_OP = MessageOp
_LOGIT, _OTHER = MessageStep(_OP.EDGE), MessageStep(_OP.EDGE, 1)
_TOP, _TOTAL = MessageStep(_OP.DESTINATION), MessageStep(_OP.DESTINATION, 1)
_PRODUCT = (_LOGIT, _OTHER, MessageStep(_OP.MULTIPLY, 0, 1))
_POWER = (_LOGIT, _TOP, MessageStep(_OP.SUBTRACT, 0, 1), MessageStep(_OP.EXP, 2))
_COEFFICIENT = (*_POWER, _TOTAL, MessageStep(_OP.DIVIDE, 3, 4))
_GRADIENT = (_LOGIT, _OTHER, _TOP, MessageStep(_OP.SUBTRACT, 1, 2), MessageStep(_OP.MULTIPLY, 0, 3))


@like(reference.edge_softmax)
def edge_softmax(a: Any) -> None:
    """Compute like the twin: exp(logit - top) / total of a row's largest logit and sum of exponentials."""
    top, total = (a.logits.new_empty((a.indptr.numel() - 1, a.logits.shape[1])) for _ in range(2))
    _over_edges(a.indptr, (_LOGIT,), ("EXP_SUM", 0, top, total), a.logits)
    _over_edges(a.indptr, _COEFFICIENT, ("EDGE", 5, a.out, None), a.logits, rows=(top, total))


@like(reference.edge_softmax_backward)
def edge_softmax_backward(a: Any) -> None:
    """Compute like the twin: alpha * (grad - total) with a row's sum of alpha * grad."""
    total = a.alpha.new_empty((a.indptr.numel() - 1, a.alpha.shape[1]))
    _over_edges(a.indptr, _PRODUCT, ("SUM", 2, total, None), a.alpha, a.grad)
    _over_edges(a.indptr, _GRADIENT, ("EDGE", 4, a.out, None), a.alpha, a.grad, rows=(total,))


def row_sums(indptr: Tensor, values: Tensor, out: Tensor) -> None:
    """Sum ``out[v, h] = sum of values[e, h]`` over the edges of each row; float32, ``out`` contiguous."""
    _over_edges(indptr, (_LOGIT,), ("SUM", 0, out, None), values)


def _over_edges(
    indptr: Tensor, steps: Sequence[MessageStep], result: Result, *values: Tensor, rows: Sequence[Tensor] = ()
) -> None:
    run_steps(indptr, None, steps, [result], width=values[0].shape[1], destinations=rows, edges=values)


_GINE = (MessageStep(_OP.SOURCE), MessageStep(_OP.EDGE), MessageStep(_OP.ADD, 0, 1))
_GINE_GRADIENT = (*_GINE, MessageStep(_OP.DESTINATION), MessageStep(_OP.RELU_GRADIENT, 3, 2))


@like(reference.gine)
def gine(a: Any) -> None:
    """Compute like the twin."""
    _gine_sum(a, (*_GINE, MessageStep(_OP.RELU, 2)), a.x, sources=(a.x,), edges=(a.edges,))


@like(reference.gine_backward)
def gine_backward(a: Any) -> None:
    """Compute like the twin."""
    how: dict[str, Any] = {"perm": a.perm, "by_source": True, "edges": (a.edges,)}
    if a.x is None:
        _gine_sum(a, _GINE[1:2], a.grad, **how)
    else:
        _gine_sum(a, _GINE_GRADIENT, a.grad, sources=(a.x,), destinations=(a.grad,), **how)


@like(reference.gine_edge_backward)
def gine_edge_backward(a: Any) -> None:
    """Compute like the twin."""
    read: dict[str, Any] = {"sources": (a.x,), "destinations": (a.grad,), "edges": (a.edges,)}
    results = [("EDGE", len(_GINE_GRADIENT) - 1, a.out, None)]
    run_steps(a.indptr, a.indices, _GINE_GRADIENT, results, width=a.out.shape[1], **read)


def _gine_sum(a: Any, steps: tuple[MessageStep, ...], own: Tensor, **read: Any) -> None:
    """Write the sums of messages, and of ``loop_scale`` times the own rows of the first nodes."""
    out: Tensor = a.out
    adds = a.num_loops > 0
    total = out if out.dtype == torch.float32 or not adds else out.new_empty(out.shape, dtype=torch.float32)
    if adds:
        total[a.num_loops :] = 0
        torch.mul(own[: a.num_loops].float(), a.loop_scale, out=total[: a.num_loops])
    results = [("SUM", len(steps) - 1, total, None)]
    run_steps(a.indptr, a.indices, steps, results, width=out.shape[1], adds=adds, **read)
    if total is not out:
        out.copy_(total)
