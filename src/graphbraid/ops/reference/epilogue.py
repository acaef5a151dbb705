# ruff: noqa: PLR0917 - the kernels take their arguments by position
"""Plain PyTorch twins of the epilogue kernels, part of :mod:`graphbraid.ops.reference`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.ops.dropout import keep_mask


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that rows of ``dtype`` are summed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def epilogue(
    x: Tensor,
    bias: Tensor | None,
    act: int,
    slope: float,
    p: float,
    seed: int | Tensor,
    out: Tensor,
    ids: Tensor | None = None,
) -> None:
    """Twin of ``epilogue.inl``, with its numbers of activations."""
    y = x.to(sum_dtype(x.dtype))
    y = y if bias is None else y + bias
    y = (y, y.relu(), F.leaky_relu(y, slope), F.elu(y))[act]
    out.copy_(y if p == 0 else y * _mask(y.shape, p, seed, y, ids))


def epilogue_backward(
    grad: Tensor,
    out: Tensor,
    act: int,
    slope: float,
    p: float,
    seed: int | Tensor,
    grad_x: Tensor,
    grad_bias: Tensor | None,
    ids: Tensor | None = None,
) -> None:
    """Twin of the kernel of that name; computes the activation's slope from its output."""
    y, g = out.to(sum_dtype(out.dtype)), grad.to(sum_dtype(out.dtype))
    if p > 0:
        g, y = g * _mask(y.shape, p, seed, y, ids), y * (1 - p)
    below = (torch.ones_like(y), torch.zeros_like(y), torch.full_like(y, slope), y + 1)[act]
    g = torch.where(y > 0, g, g * below)
    grad_x.copy_(g)
    if grad_bias is not None:
        grad_bias.copy_(column_sums(g))


def column_sums(rows: Tensor) -> Tensor:
    """Sum over rows in order; ``sum(0)`` would split them by threads, which changes the rounding."""
    only = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    return rows.new_zeros(1, rows.shape[1]).index_add_(0, only, rows)[0]


def _mask(shape: torch.Size, p: float, seed: int | Tensor, like: Tensor, ids: Tensor | None) -> Tensor:
    rows = torch.arange(shape[0], device=like.device) if ids is None else ids
    return keep_mask(rows, shape[1], p, seed).to(like.dtype) / (1 - p)
