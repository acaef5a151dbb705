"""Plain PyTorch twins of the kernels that work row by row: the epilogue and normalisation."""

# ruff: noqa: PLR0917 - the kernels take their arguments by position
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.ops.dropout import RowEpilogue, keep_mask
from graphbraid.ops.reference.kinds import Ids, Matrix, Vector


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that rows of ``dtype`` are summed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def epilogue(
    x: Matrix,
    bias: Vector | None,
    act: int,
    slope: float,
    p: float,
    seed: int | Tensor,
    out: Matrix,
    ids: Ids | None = None,
) -> None:
    """Twin of ``epilogue.inl``, with its numbers of activations."""
    y = x.to(sum_dtype(x.dtype))
    y = y if bias is None else y + bias
    y = (y, y.relu(), F.leaky_relu(y, slope), F.elu(y))[act]
    out.copy_(y if p == 0 else y * _mask(y.shape, p, seed, y, ids))


def epilogue_backward(
    grad: Matrix,
    out: Matrix,
    act: int,
    slope: float,
    p: float,
    seed: int | Tensor,
    grad_x: Matrix,
    grad_bias: Vector | None,
    ids: Ids | None = None,
) -> None:
    """Twin of the kernel of that name; computes the activation's slope from its output."""
    y, g = out.to(sum_dtype(out.dtype)), grad.to(sum_dtype(out.dtype))
    if p > 0:
        g, y = g * _mask(y.shape, p, seed, y, ids), y * (1 - p)
    if act == 1:  # where y is NaN, g passes, as in PyTorch; where y is 0, g is not read: it may be NaN
        g = torch.where(y <= 0, 0.0, g)
    else:
        g = torch.where(y > 0, g, (g, g, g * slope, g * (y + 1))[act])
    grad_x.copy_(g)
    if grad_bias is not None:
        grad_bias.copy_(column_sums(g))


def apply_epilogue(out: Tensor, after: RowEpilogue | None) -> None:
    """Apply an epilogue to the rows that a kernel wrote."""
    if after is not None:
        epilogue(out, after.bias, after.act, after.slope, after.p, after.seed, out, after.ids)


def column_sums(rows: Tensor) -> Tensor:
    """Sum over rows in order; ``sum(0)`` would split them by threads, which changes the rounding."""
    only = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    return rows.new_zeros(1, rows.shape[1]).index_add_(0, only, rows)[0]


def _mask(shape: torch.Size, p: float, seed: int | Tensor, like: Tensor, ids: Tensor | None) -> Tensor:
    rows = torch.arange(shape[0], device=like.device) if ids is None else ids
    return keep_mask(rows, shape[1], p, seed).to(like.dtype) / (1 - p)


def layer_norm(
    x: Matrix,
    weight: Vector | None,
    bias: Vector | None,
    eps: float,
    out: Matrix,
    mean: Vector | None,
    rstd: Vector | None,
) -> None:
    """Twin of the kernel of that name; ``norm.inl`` gives the formulas."""
    if x.numel() == 0:
        return
    rows = x.to(sum_dtype(x.dtype))
    variance, average = torch.var_mean(rows, 1, correction=0)
    factor = (variance + eps).rsqrt()
    out.copy_(_affine((rows - average[:, None]) * factor[:, None], weight, bias))
    if mean is not None:
        mean.copy_(average)
    if rstd is not None:
        rstd.copy_(factor)


def layer_norm_backward(
    grad: Matrix,
    x: Matrix,
    weight: Vector | None,
    mean: Vector,
    rstd: Vector,
    grad_x: Matrix | None,
    grad_weight: Vector | None,
    grad_bias: Vector | None,
) -> None:
    """Twin of the kernel of that name."""
    dtype = sum_dtype(x.dtype)
    given = grad.to(dtype)
    y = (x.to(dtype) - mean[:, None]) * rstd[:, None]
    if grad_weight is not None:
        torch.sum(given * y, 0, out=grad_weight)
    if grad_bias is not None:
        torch.sum(given, 0, out=grad_bias)
    if grad_x is not None and x.shape[1]:
        h = _affine(given, weight, None)
        along = (h * y).mean(1, keepdim=True)
        grad_x.copy_(rstd[:, None] * (h - h.mean(1, keepdim=True) - y * along))


def column_moments(x: Matrix, mean: Vector, var: Vector) -> None:
    """Twin of the kernel of that name: mean and variance over the rows, 0 if there are none."""
    if x.shape[0] == 0:
        mean.zero_()
        var.zero_()
        return
    variance, average = torch.var_mean(x.to(sum_dtype(x.dtype)), 0, correction=0)
    mean.copy_(average)
    var.copy_(variance)


def batch_norm(
    x: Matrix, mean: Vector, rstd: Vector, weight: Vector | None, bias: Vector | None, out: Matrix
) -> None:
    """Twin of the kernel of that name."""
    out.copy_(_affine((x.to(sum_dtype(x.dtype)) - mean) * rstd, weight, bias))


def batch_norm_backward(
    grad: Matrix,
    x: Matrix,
    mean: Vector,
    rstd: Vector,
    weight: Vector | None,
    from_rows: bool,
    grad_x: Matrix | None,
    grad_weight: Vector,
    grad_bias: Vector,
) -> None:
    """Twin of the kernel of that name; with ``from_rows``, mean and rstd are those of the rows of ``x``."""
    dtype = sum_dtype(x.dtype)
    given = grad.to(dtype)
    y = (x.to(dtype) - mean) * rstd
    torch.sum(given * y, 0, out=grad_weight)
    torch.sum(given, 0, out=grad_bias)
    if grad_x is None:
        return
    if from_rows and x.shape[0]:
        given = given - (grad_bias + y * grad_weight) / x.shape[0]
    grad_x.copy_(_affine(given * rstd, weight, None))


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
