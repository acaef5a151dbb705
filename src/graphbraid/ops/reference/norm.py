# ruff: noqa: PLR0917 - the kernels take their arguments by position
"""Plain PyTorch twins of the normalisation kernels, part of :mod:`graphbraid.ops.reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.ops.reference.epilogue import sum_dtype


def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out: Tensor,
    mean: Tensor | None,
    rstd: Tensor | None,
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
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    grad_x: Tensor | None,
    grad_weight: Tensor | None,
    grad_bias: Tensor | None,
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


def column_moments(x: Tensor, mean: Tensor, var: Tensor) -> None:
    """Twin of the kernel of that name: mean and variance over the rows, 0 if there are none."""
    if x.shape[0] == 0:
        mean.zero_()
        var.zero_()
        return
    variance, average = torch.var_mean(x.to(sum_dtype(x.dtype)), 0, correction=0)
    mean.copy_(average)
    var.copy_(variance)


def batch_norm(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None, out: Tensor
) -> None:
    """Twin of the kernel of that name."""
    out.copy_(_affine((x.to(sum_dtype(x.dtype)) - mean) * rstd, weight, bias))


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    from_rows: bool,
    grad_x: Tensor | None,
    grad_weight: Tensor,
    grad_bias: Tensor,
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
