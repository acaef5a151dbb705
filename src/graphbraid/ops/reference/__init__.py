"""Plain PyTorch twins of the compiled kernels, with the same arguments and, up to rounding, the same results.

They define what each kernel computes, run where no compiled kernel can (another device, no extension), and
are the reference that the tests compare every variant with. They may allocate memory per edge and feature;
the compiled kernels never do.
"""

# ruff: noqa: PLR0917 - the kernels take their arguments by position
from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.ops.reference.attention import (
    destinations,
    edge_softmax,
    edge_softmax_backward,
    gat_backward,
    gat_forward,
    gatv2_backward,
    gatv2_forward,
)
from graphbraid.ops.reference.epilogue import epilogue, epilogue_backward, sum_dtype
from graphbraid.ops.reference.gather import (
    gather_as_float,
    gather_rows,
    gather_scaled,
    gather_tiered,
    spread_rows,
)
from graphbraid.ops.reference.gine import gine, gine_backward, gine_edge_backward
from graphbraid.ops.reference.gram import tall_gram_round
from graphbraid.ops.reference.norm import (
    batch_norm,
    batch_norm_backward,
    column_moments,
    layer_norm,
    layer_norm_backward,
)
from graphbraid.ops.reference.pipelined import pipelined_sum
from graphbraid.ops.row_epilogue import RowEpilogue

WORD_BITS = 32
"""Number of bits in a word."""

__all__ = [
    "WORD_BITS",
    "batch_norm",
    "batch_norm_backward",
    "bit_gram",
    "bit_product",
    "column_moments",
    "edge_softmax",
    "edge_softmax_backward",
    "epilogue",
    "epilogue_backward",
    "gat_backward",
    "gat_forward",
    "gather_as_float",
    "gather_rows",
    "gather_scaled",
    "gather_tiered",
    "gatv2_backward",
    "gatv2_forward",
    "gine",
    "gine_backward",
    "gine_edge_backward",
    "layer_norm",
    "layer_norm_backward",
    "pipelined_sum",
    "sddmm",
    "spmm",
    "spmm_max",
    "spmm_max_backward",
    "spmm_max_shared_backward",
    "spread_rows",
    "sum_dtype",
    "tall_gram_round",
]


def spmm(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None,
    src_scale: Tensor | None,
    dst_scale: Tensor | None,
    loop: Tensor | None,
    loop_scale: float,
    num_loops: int,
    skip_loops: bool,
    mean: bool,
    addend: Tensor | None,
    out: Tensor,
    after: RowEpilogue | None = None,
) -> None:
    """Twin of ``spmm.inl``, which gives the formula."""
    x = x.to(sum_dtype(x.dtype))
    scaled = x if src_scale is None else x * src_scale[:, None]
    src, dst = indices.long(), destinations(indptr)
    rows = scaled[src]
    if weight is not None:
        rows *= weight[:, None]
    if skip_loops:
        rows[src == dst] = 0
    total = x.new_zeros(out.shape).index_add_(0, dst, rows)
    if num_loops:
        own = scaled[:num_loops] * loop_scale
        total[:num_loops] += own if loop is None else own * loop[:, None]
    if mean:
        total /= indptr.diff().clamp(min=1)[:, None]
    if dst_scale is not None:
        total *= dst_scale[:, None]
    if addend is not None:
        total[: addend.shape[0]] += addend
    out.copy_(total)
    _follow_up(out, after)


def spmm_max(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None,
    ties: int,
    out: Tensor,
    found: Tensor,
) -> None:
    """Twin of ``spmm_max.inl``; ``ops/spmm_max.py`` describes ``ties`` and ``found``."""
    width = x.shape[1]
    rows = _messages(indices, x, weight)
    degrees = indptr.diff()
    dst = destinations(indptr)[:, None].expand(-1, width)
    best = rows.new_full(out.shape, -torch.inf).scatter_reduce_(0, dst, rows, "amax")
    is_best = rows == best.gather(0, dst)
    if ties == 0:
        position = torch.arange(indices.numel(), device=x.device) - indptr[:-1].repeat_interleave(degrees)
        last = torch.iinfo(torch.int64).max
        first = torch.full(out.shape, last, dtype=torch.int64, device=x.device)
        candidates = torch.where(is_best | rows.isnan(), position[:, None], last)
        first.scatter_reduce_(0, dst, candidates, "amin")
        found.copy_(first.masked_fill_((degrees == 0)[:, None], -1))
    else:
        count = torch.zeros(out.shape, dtype=torch.int64, device=x.device)
        count.scatter_add_(0, dst, is_best.long())
        if ties == 2:  # the initial zero counts as well
            count += (best == 0) & (degrees > 0)[:, None]
        found.copy_(count)
    best[degrees == 0] = 0
    out.copy_(best)


def _messages(indices: Tensor, x: Tensor, weight: Tensor | None) -> Tensor:
    """Return the ``(num_edges, width)`` messages in the dtype of the sums."""
    rows = x.to(sum_dtype(x.dtype))[indices.long()]
    return rows if weight is None else rows * weight[:, None]


def spmm_max_backward(
    indptr: Tensor,
    indices: Tensor,
    perm: Tensor,
    forward_indptr: Tensor,
    grad: Tensor,
    weight: Tensor | None,
    winner: Tensor,
    out: Tensor,
) -> None:
    """Twin of the kernel of that name; ``weight`` is in the order of the transpose."""
    dst = indices.long()
    position = perm - forward_indptr[dst]
    rows = torch.where(winner[dst] == position[:, None], grad.to(sum_dtype(grad.dtype))[dst], 0)
    if weight is not None:
        rows = rows * weight[:, None]
    out.copy_(rows.new_zeros(out.shape).index_add_(0, destinations(indptr), rows))


def spmm_max_shared_backward(
    indptr: Tensor,
    indices: Tensor,
    share: Tensor,
    weight: Tensor | None,
    largest: Tensor,
    x: Tensor,
    out: Tensor,
) -> None:
    """Twin of the kernel of that name, over the transpose; ``x`` has one row per row of the transpose."""
    src, dst = destinations(indptr), indices.long()
    dtype = sum_dtype(share.dtype)
    message = _messages(src, x, weight)
    below = message < largest.to(dtype)[dst]  # otherwise it is equal, or the maximum is NaN
    given = _messages(dst, share, weight).masked_fill_(below, 0)
    out.copy_(given.new_zeros(out.shape).index_add_(0, src, given))


def sddmm(
    indptr: Tensor,
    indices: Tensor,
    dst_rows: Tensor,
    src_rows: Tensor,
    dst_scale: Tensor | None,
    src_scale: Tensor | None,
    out: Tensor,
) -> None:
    """Twin of ``sddmm.inl``: the scaled inner product of both ends' rows, per edge and head."""
    dtype = sum_dtype(dst_rows.dtype)
    left, right = dst_rows.to(dtype), src_rows.to(dtype)
    left = left if dst_scale is None else left * dst_scale[:, None]
    right = right if src_scale is None else right * src_scale[:, None]
    products = left[destinations(indptr)] * right[indices.long()]
    out.copy_(products.reshape(*out.shape, products.shape[1] // out.shape[1]).sum(-1))


def tall_product(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    add: bool,
    ids: Tensor | None = None,
    after: RowEpilogue | None = None,
) -> None:
    """Compute ``out = a[ids] @ b`` or ``out += a[ids] @ b`` (all rows without ids), then the epilogue."""
    rows = a if ids is None else a[ids]
    if add:
        out.addmm_(rows, b)
    else:
        torch.mm(rows, b, out=out)
    _follow_up(out, after)


def bit_product(
    bits: Tensor,
    factors: Tensor | None,
    b: Tensor,
    out: Tensor,
    add: bool = False,
    after: RowEpilogue | None = None,
) -> None:
    """Compute ``out = diag(factors) x b`` or ``out += ...`` for the matrix x of bits, then the epilogue."""
    rows = _unpacked(bits, b.shape[0], b.dtype)
    if factors is not None:
        rows *= factors[:, None]
    tall_product(rows, b, out, add, None, after)


def bit_gram(a: Tensor, bits: Tensor, factors: Tensor | None, out: Tensor) -> None:
    """Compute ``out = a.t() diag(factors) x`` for the matrix x of bits."""
    scaled = a if factors is None else a * factors[:, None]
    torch.mm(scaled.t(), _unpacked(bits, a.shape[0], a.dtype).t(), out=out)


def _unpacked(bits: Tensor, depth: int, dtype: torch.dtype) -> Tensor:
    """Unpack to ``(num_rows, depth)`` zeros and ones: bit j of ``bits[w, i]`` is row i, column 32 w + j."""
    octets = bits.t().clone(memory_format=torch.contiguous_format).view(torch.uint8)
    each = octets[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device) & 1
    return each.flatten(1)[:, :depth].to(dtype)


def _follow_up(out: Tensor, after: RowEpilogue | None) -> None:
    """Apply an epilogue to the rows that a kernel wrote."""
    if after is not None:
        epilogue(out, after.bias, after.act, after.slope, after.p, after.seed, out, after.ids)


def tall_gram(a: Tensor, b: Tensor, out: Tensor, ids: Tensor | None = None) -> None:
    """Compute ``out = a.t() @ b[ids]`` (all rows without ids)."""
    torch.mm(a.t(), b if ids is None else b[ids], out=out)
