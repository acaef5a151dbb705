# ruff: noqa: PLR0917 - the kernels take their arguments by position
"""Plain PyTorch twins of the GINE kernels, part of :mod:`graphbraid.ops.reference`."""

from __future__ import annotations

from torch import Tensor

from graphbraid.ops.reference.attention import destinations
from graphbraid.ops.reference.epilogue import sum_dtype


def gine(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    edges: Tensor,
    loop_scale: float,
    num_loops: int,
    out: Tensor,
) -> None:
    """Twin of ``gine.inl``, which gives the formula."""
    x, edges = (rows.to(sum_dtype(rows.dtype)) for rows in (x, edges))
    total = x.new_zeros(out.shape)
    total.index_add_(0, destinations(indptr), (x[indices.long()] + edges).relu())
    total[:num_loops] += loop_scale * x[:num_loops]
    out.copy_(total)


def gine_backward(
    indptr: Tensor,
    indices: Tensor,
    perm: Tensor,
    grad: Tensor,
    x: Tensor | None,
    edges: Tensor,
    loop_scale: float,
    num_loops: int,
    out: Tensor,
) -> None:
    """Twin of the kernel of that name, over the transpose; without ``x``, ``edges`` holds edge gradients."""
    source, dtype = destinations(indptr), sum_dtype(grad.dtype)
    rows, grad = edges.to(dtype)[perm], grad.to(dtype)
    if x is not None:
        rows = grad[indices.long()].masked_fill(x.to(dtype)[source] + rows <= 0, 0)
    total = grad.new_zeros(out.shape).index_add_(0, source, rows)
    total[:num_loops] += loop_scale * grad[:num_loops]
    out.copy_(total)


def gine_edge_backward(
    indptr: Tensor, indices: Tensor, x: Tensor, edges: Tensor, grad: Tensor, out: Tensor
) -> None:
    """Twin of the kernel of that name; ``out`` may be ``edges``."""
    dtype = sum_dtype(x.dtype)
    sums = x.to(dtype)[indices.long()] + edges.to(dtype)
    out.copy_(grad[destinations(indptr)].masked_fill(sums <= 0, 0))


__all__ = ["gine", "gine_backward", "gine_edge_backward"]
