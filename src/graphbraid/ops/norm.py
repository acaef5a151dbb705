"""layer_norm and batch_norm: rows or columns normalised to mean 0 and variance 1, then scaled and shifted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.scans import tracing
from graphbraid.ops.kernels import backend, check_row_dtype, new_rows, recorded_whole, sum_dtype
from graphbraid.ops.library import once_differentiable, operator
from graphbraid.signatures import typed

Moments = tuple[Tensor, Tensor, int]
"""Each column's mean and biased variance, ``(channels,)``, and the number of rows that they are of."""


@typed
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Compute ``(x - mean) / sqrt(var + eps) * weight + bias`` with mean and biased variance of each row.

    This is :func:`torch.nn.functional.layer_norm` over the columns. Sums run in float32 (float64 for float64)
    and results do not depend on the number of threads. ``x`` and two numbers per row are kept for backward.

    Args:
        x: ``(num_rows, channels)`` float32, float64, float16 or bfloat16.
        weight: ``(channels,)`` or None for ones.
        bias: ``(channels,)`` or None for zeros.
        eps: added to the variance.

    Returns:
        ``(num_rows, channels)`` of ``x``'s dtype.

    Raises:
        ConfigError: ``eps`` is negative or not a number.
        DataError: ``x`` is not a matrix of floating-point numbers, or ``weight`` or ``bias`` does not fit it.
    """
    check_norm(x, eps, weight=weight, bias=bias)
    return _layer_norm(x, weight, bias, eps)


@typed
def batch_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    """Compute ``(x - mean) / sqrt(var + eps) * weight + bias`` with mean and biased variance of each column.

    This is :class:`torch.nn.BatchNorm1d` on a matrix: in training, or without running statistics, it uses the
    mean and variance of the rows, which also update the running ones; otherwise it uses the running ones.
    Sums run in float32 (float64 for float64) and results do not depend on the number of threads.

    Args:
        x: ``(num_rows, channels)`` float32, float64, float16 or bfloat16.
        running_mean: ``(channels,)``, updated in place in training; None if not tracked.
        running_var: ``(channels,)`` unbiased variances, like ``running_mean``.
        weight: ``(channels,)`` or None for ones.
        bias: ``(channels,)`` or None for zeros.
        training: whether to use the statistics of the rows and to update the running ones.
        momentum: share of the new statistics in the running ones. If None, the running ones are the plain
            average over all calls, which ``num_batches_tracked`` counts.
        eps: added to the variance.
        num_batches_tracked: integer scalar, incremented in place in training.

    Returns:
        ``(num_rows, channels)`` of ``x``'s dtype.

    Raises:
        ConfigError: ``eps`` is negative or not a number; only one running statistic is given; ``momentum`` is
            None without ``num_batches_tracked``.
        DataError: ``x`` is not a matrix of floating-point numbers, a vector does not fit it, or statistics of
            its rows are needed but it has only one row, which has no variance.
    """
    check_norm(x, eps, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    mean, rstd, from_rows = batch_statistics(
        x,
        running_mean,
        running_var,
        training=training,
        momentum=momentum,
        eps=eps,
        num_batches_tracked=num_batches_tracked,
    )
    return _batch_norm(x, weight, bias, mean, rstd, from_rows)


def settings_of(norm: Any) -> dict[str, Any]:
    """Return the arguments of :func:`batch_norm` that say what a :class:`torch.nn.BatchNorm1d` does now."""
    tracks = norm.track_running_stats or not norm.training
    running = {name: getattr(norm, name) if tracks else None for name in ("running_mean", "running_var")}
    own = ("training", "momentum", "eps", "num_batches_tracked")
    return running | {name: getattr(norm, name) for name in own}


@recorded_whole
def batch_statistics(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    training: bool,
    momentum: float | None,
    eps: float,
    num_batches_tracked: Tensor | None,
    moments: Callable[[Tensor], Moments] | None = None,
) -> tuple[Tensor, Tensor, bool]:
    """Return the statistics :func:`batch_norm` normalises with, after updating the running ones.

    ``moments`` finds those of the rows if ``x`` holds only some of them; by default, :func:`column_moments`.

    Returns:
        ``(channels,)`` mean and ``1 / sqrt(var + eps)`` in the dtype of the sums, without autograd, and
        whether they are those of the rows of ``x``.
    """
    if (running_mean is None) != (running_var is None):
        raise ConfigError("running_mean and running_var must be given together, or neither")
    dtype = sum_dtype(x.dtype)
    if not training and running_mean is not None and running_var is not None:
        # A copy, since later calls may change the running mean before backward reads it.
        return running_mean.to(dtype, copy=True), (running_var.to(dtype) + eps).rsqrt(), False
    mean, var, num_rows = (moments or column_moments)(x)
    if num_rows == 1:
        raise DataError("batch normalisation in training needs more than one row, whose variance is 0; got 1")
    if training and running_mean is not None and running_var is not None:
        share = _share_of_new(momentum, num_batches_tracked)
        if num_rows:
            _track(running_mean, mean, share)
            _track(running_var, var * (num_rows / (num_rows - 1)), share)
    return mean, (var + eps).rsqrt(), True


def column_moments(x: Tensor) -> Moments:
    """Return each column's mean and biased variance, in the dtype of the sums, and the number of rows."""
    if tracing():
        var, mean = torch.var_mean(x.detach().to(sum_dtype(x.dtype)), 0, correction=0)
        return mean, var, x.shape[0]
    mean, var = (torch.empty(x.shape[1], dtype=sum_dtype(x.dtype), device=x.device) for _ in range(2))
    backend(x).column_moments(x.detach().contiguous(), mean, var)
    return mean, var, x.shape[0]


def check_norm(x: Tensor, eps: float, **vectors: Tensor | None) -> None:
    """Raise DataError or ConfigError unless ``x`` is a matrix that can be normalised with ``vectors``."""
    if check_tensor(x, "x").ndim != 2:
        raise DataError(f"x must be a matrix (num_rows, channels); got shape {tuple(x.shape)}")
    check_row_dtype(x, "x")
    for name, vector in vectors.items():
        if vector is not None and check_tensor(vector, name, floating=True).shape != (x.shape[1],):
            raise DataError(
                f"{name} must have one value per column of x ({x.shape[1]},); got shape {tuple(vector.shape)}"
            )
    if not isinstance(eps, int | float) or not 0 <= eps < math.inf:
        raise ConfigError(f"eps must be a number of at least 0; got {eps!r}")


_CANNOT_COUNT = (torch.bool, torch.uint16, torch.uint32, torch.uint64)


def _share_of_new(momentum: float | None, num_batches_tracked: Tensor | None) -> float:
    """Count this call and return the weight of its statistics in the running ones."""
    if momentum is None and num_batches_tracked is None:
        raise ConfigError("momentum=None averages over all calls and needs num_batches_tracked to count them")
    if num_batches_tracked is not None:
        check_tensor(num_batches_tracked, "num_batches_tracked")
        if num_batches_tracked.dtype in _CANNOT_COUNT or num_batches_tracked.numel() != 1:
            raise DataError(
                "num_batches_tracked must be one int64 number; "
                f"got {num_batches_tracked.dtype} of shape {tuple(num_batches_tracked.shape)}"
            )
        num_batches_tracked.add_(1)
    if momentum is not None:
        return float(momentum)
    assert num_batches_tracked is not None
    return 1.0 / float(num_batches_tracked)


def _track(running: Tensor, new: Tensor, share: float) -> None:
    # Through .data, hidden from autograd as in PyTorch's own batch normalisation, which saves the running
    # statistics for its backward pass but does not read them there.
    running.data.mul_(1.0 - share).add_(new.to(running.dtype), alpha=share)


def as_factors(vector: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a weight or bias as the kernels take it for rows of ``dtype``."""
    return None if vector is None else vector.detach().to(sum_dtype(dtype)).contiguous()


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        x = x.contiguous()
        out = new_rows(x, *x.shape)
        mean, rstd = (torch.empty(x.shape[0], dtype=sum_dtype(x.dtype), device=x.device) for _ in range(2))
        factors = as_factors(weight, x.dtype), as_factors(bias, x.dtype)
        backend(x).layer_norm(x.detach(), *factors, eps, out, mean, rstd)
        ctx.save_for_backward(x, None if weight is None else weight.detach(), mean, rstd)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        grad_x = new_rows(x, *x.shape) if ctx.needs_input_grad[0] else None
        grad_weight, grad_bias = (
            torch.zeros(x.shape[1], dtype=mean.dtype, device=x.device) if needed else None
            for needed in ctx.needs_input_grad[1:3]
        )
        rows = grad.to(x.dtype).contiguous(), x.detach()
        grads = grad_x, grad_weight, grad_bias
        backend(x).layer_norm_backward(*rows, as_factors(weight, x.dtype), mean, rstd, *grads)
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_x, grad_weight, None if grad_bias is None else grad_bias.to(ctx.bias_dtype), None


_layer_norm = operator("layer_norm", _LayerNorm, lambda a: a.x.new_empty(a.x.shape))


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        rstd: Tensor,
        from_rows: bool,
    ) -> Tensor:
        x = x.contiguous()
        out = new_rows(x, *x.shape)
        factors = as_factors(weight, x.dtype), as_factors(bias, x.dtype)
        backend(x).batch_norm(x.detach(), mean, rstd, *factors, out)
        ctx.save_for_backward(x, None if weight is None else weight.detach(), mean, rstd)
        ctx.from_rows, ctx.bias_dtype = from_rows, None if bias is None else bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        grad_x = new_rows(x, *x.shape) if ctx.needs_input_grad[0] else None
        grad_weight, grad_bias = torch.zeros_like(mean), torch.zeros_like(mean)
        rows, grads = (grad.to(x.dtype).contiguous(), x.detach()), (grad_x, grad_weight, grad_bias)
        how = as_factors(weight, x.dtype), ctx.from_rows
        backend(x).batch_norm_backward(*rows, mean, rstd, *how, *grads)
        of_weight = grad_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None
        of_bias = grad_bias.to(ctx.bias_dtype) if ctx.needs_input_grad[2] else None
        return grad_x, of_weight, of_bias, None, None, None


_batch_norm = operator("batch_norm", _BatchNorm, lambda a: a.x.new_empty(a.x.shape))
