"""aggregate_linear: an aggregation and the linear maps around it as one operator, in the cheaper order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor, check_type
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.machine.rates import Rates
from graphbraid.ops.aggregation import (
    Aggregation,
    aggregated,
    check_row_dtype,
    check_rows,
    row_contiguous,
)
from graphbraid.ops.library import once_differentiable, operator
from graphbraid.ops.linear.dense import tall_gram, tall_product
from graphbraid.ops.linear.sparse_linear import sparse_linear
from graphbraid.ops.spmm import aggregate

_RATES = Rates()


def aggregate_linear(
    how: Aggregation, x: Tensor | SparseFeatures, weight: Tensor, root_weight: Tensor | None = None
) -> Tensor:
    """Compute ``A x Wᵀ + x_dst W_rootᵀ`` for an aggregation ``A`` and the destinations' own rows ``x_dst``.

    It runs as ``(A x) Wᵀ`` or ``A (x Wᵀ)``, whichever costs less (:func:`narrows`). The first form keeps the
    aggregated and the own rows side by side, so that both maps are one matrix product forward and one
    backward. Nothing is computed for inputs that need no gradient; both gradients of ``x`` are summed in the
    kernel.

    Args:
        how: the aggregation, whose destinations are a prefix of its sources.
        x: ``(num_src, in_channels)``; half-precision storage is summed and multiplied in ``weight``'s dtype.
            Sparse features are transformed first.
        weight: ``(out_channels, in_channels)``.
        root_weight: ``(out_channels, in_channels)``, or None.

    Returns:
        ``(num_dst, out_channels)`` in ``weight``'s dtype, or the autocast dtype.

    Raises:
        DataError: ``x`` does not fit the graph, or a weight does not fit ``x``.
    """
    _check(how, x, weight, "weight")
    if root_weight is not None:
        _check(how, x, root_weight, "root_weight")
        if root_weight.shape != weight.shape or root_weight.dtype != weight.dtype:
            raise DataError(
                f"root_weight must be {weight.dtype} of shape {tuple(weight.shape)} as weight is; "
                f"got {root_weight.dtype} of {tuple(root_weight.shape)}"
            )
    if isinstance(x, SparseFeatures):
        return _sparse_aggregate_linear(how, x, weight, root_weight)
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
        root_weight = None if root_weight is None else root_weight.to(dtype)
    out: Tensor = _aggregate_linear(x, weight, root_weight, how)
    return out


def _check(how: Aggregation, x: Tensor | SparseFeatures, weight: Tensor, name: str) -> None:
    check_type(how, "how", Aggregation, "an Aggregation", error=ConfigError)
    check_row_dtype(check_tensor(weight, name, ndim=2), name)
    if not isinstance(x, SparseFeatures):
        check_rows(x, "x", how.csc.num_src, "source node")
    elif x.shape[0] != how.csc.num_src:
        raise DataError(f"x must have one row per source node ({how.csc.num_src}); got {x.shape[0]}")
    if weight.shape[1] != x.shape[1]:
        raise DataError(f"{name} must be (out_channels, {x.shape[1]}) for this x; got {tuple(weight.shape)}")


def _sparse_aggregate_linear(
    how: Aggregation, x: SparseFeatures, weight: Tensor, root_weight: Tensor | None
) -> Tensor:
    if root_weight is None:
        return aggregate(how, sparse_linear(x, weight))
    # Both maps in one pass over the values.
    both, width = sparse_linear(x, torch.cat((weight, root_weight))), weight.shape[0]
    return aggregate(how, both[:, :width], addend=both[: how.csc.num_dst, width:])


def narrows(how: Aggregation, in_channels: int, out_channels: int, *, grad_x: bool) -> bool:
    """Return whether transforming first is cheaper: fewer bytes to aggregate, but all sources to transform.

    Args:
        how: the aggregation.
        in_channels: width of the input.
        out_channels: width of the output.
        grad_x: whether the input needs a gradient; if not, aggregating first needs no aggregation backward.
    """

    def seconds(width: int, rows: int, aggregations: int, products: int) -> float:
        multiplying = products * _RATES.multiply_seconds(rows, in_channels, out_channels)
        return multiplying + aggregations * _RATES.aggregate_seconds(how.csc.num_edges, width)

    training = torch.is_grad_enabled()
    products = 1 + training + (training and grad_x)
    first = seconds(out_channels, how.csc.num_src, 1 + training, products)
    last = seconds(in_channels, how.csc.num_dst, 1 + (training and grad_x), products)
    return first < last


class _AggregateLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, root_weight: Tensor | None, how: Aggregation) -> Tensor:
        ctx.how, ctx.dtype, ctx.has_root = how, x.dtype, root_weight is not None
        ctx.transform_first = narrows(how, x.shape[1], weight.shape[0], grad_x=ctx.needs_input_grad[0])
        if ctx.transform_first:
            return _transform_first(ctx, x.to(weight.dtype), weight, root_weight)
        return _aggregate_first(ctx, x, weight, root_weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        backward = _transform_first_backward if ctx.transform_first else _aggregate_first_backward
        grad_x, grad_weight, grad_root = backward(ctx, grad)
        return None if grad_x is None else grad_x.to(ctx.dtype), grad_weight, grad_root, None


_aggregate_linear = operator(
    "aggregate_linear", _AggregateLinear, lambda a: a.weight.new_empty(a.how.csc.num_dst, a.weight.shape[0])
)


def _aggregate_first(ctx: Any, x: Tensor, weight: Tensor, root_weight: Tensor | None) -> Tensor:
    how: Aggregation = ctx.how
    width, num_dst = x.shape[1], how.csc.num_dst
    if root_weight is not None:
        weight = torch.cat((weight, root_weight), 1)
    rows = x.new_empty((num_dst, weight.shape[1]), dtype=weight.dtype)
    if x.dtype == weight.dtype or (x.dtype != torch.float64 and weight.dtype == torch.float32):
        aggregated(how, x, out=rows[:, :width])
    else:
        rows[:, :width] = aggregated(how, x)
    if root_weight is not None:
        rows[:, width:] = x[:num_dst]
    ctx.width = width
    ctx.save_for_backward(rows, weight)
    return tall_product(rows, weight.t())


def _aggregate_first_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, weight = ctx.saved_tensors
    width: int = ctx.width
    grad_weight = grad_root = grad_x = None
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        both = tall_gram(grad, rows)
        grad_weight, grad_root = both[:, :width], both[:, width:] if ctx.has_root else None
    if ctx.needs_input_grad[0]:
        grad_rows = tall_product(grad, weight)
        grad_x = ctx.how.backward(grad_rows[:, :width], addend=grad_rows[:, width:] if ctx.has_root else None)
    return grad_x, grad_weight, grad_root


def _transform_first(ctx: Any, x: Tensor, weight: Tensor, root_weight: Tensor | None) -> Tensor:
    how: Aggregation = ctx.how
    root = None if root_weight is None else tall_product(x[: how.csc.num_dst], root_weight.t())
    ctx.save_for_backward(x, weight, root_weight)
    return how.forward(tall_product(x, weight.t()), addend=root, out=root)


def _transform_first_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, root_weight = ctx.saved_tensors
    num_dst: int = ctx.how.csc.num_dst
    grad = row_contiguous(grad)
    grad_weight = grad_root = grad_x = None
    if ctx.needs_input_grad[2] and root_weight is not None:
        grad_root = tall_gram(grad, x[:num_dst])
    if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
        grad_rows = ctx.how.backward(grad)
        if ctx.needs_input_grad[1]:
            grad_weight = tall_gram(grad_rows, x)
        if ctx.needs_input_grad[0]:
            grad_x = tall_product(grad_rows, weight)
            if root_weight is not None:
                tall_product(grad, root_weight, out=grad_x[:num_dst], add=True)
    return grad_x, grad_weight, grad_root
