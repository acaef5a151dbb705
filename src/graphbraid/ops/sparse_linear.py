"""Linear maps and dropout of sparse rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_number, check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.kernels import check_row_dtype
from graphbraid.ops.library import derived, once_differentiable, operator, share
from graphbraid.ops.rng import draw_seed, keep_mask, row_ids
from graphbraid.signatures import typed


@typed
def sparse_linear(x: SparseFeatures, weight: Tensor) -> Tensor:
    """Compute ``x Wᵀ`` for CSR rows, as an aggregation of the columns of ``W`` weighted by the stored values.

    The gradient of ``W`` is the transposed aggregation, whose order is fixed and computed once per feature
    matrix. The values get no gradient.

    Args:
        x: ``(num_rows, in_channels)``.
        weight: ``(out_channels, in_channels)``; under autocast it is used in the autocast dtype.

    Returns:
        ``(num_rows, out_channels)`` in ``weight``'s dtype or the autocast dtype.

    Raises:
        DataError: the widths do not match.
    """
    check_row_dtype(check_tensor(weight, "weight"), "weight")
    if weight.ndim != 2 or weight.shape[1] != x.num_cols:
        raise DataError(
            f"weight must be (out_channels, {x.num_cols}) for these features; got {tuple(weight.shape)}"
        )
    if torch.is_autocast_enabled(weight.device.type):
        weight = weight.to(torch.get_autocast_dtype(weight.device.type))
    return _sparse_linear(weight, x.values, structure(x))


@typed
def sparse_dropout(x: SparseFeatures, p: float, *, training: bool) -> SparseFeatures:
    """Apply dropout to the stored values, at a cost of one draw per stored value rather than per cell.

    Args:
        x: sparse features.
        p: probability of dropping a value.
        training: whether to drop values; if False, ``x`` is returned unchanged.

    Raises:
        ConfigError: ``p`` is not a probability.
    """
    p = as_number(p, "p", least=0, most=1)
    if not training or p == 0:
        return x
    degree, ids = x.indptr.diff(), row_ids(x.shape[0])
    rows = (torch.arange(x.shape[0], device=degree.device) if ids is None else ids).repeat_interleave(degree)
    kept = keep_mask(rows, x.indices.unsqueeze(1), p, draw_seed()).squeeze(1)
    dropped = replace(x, values=torch.where(kept, x.values / (1 - p), 0), trusted=True)
    share(x, dropped, "structure", lambda: structure(x))
    return dropped


def structure(x: SparseFeatures) -> Csc:
    """Return the sparsity pattern of ``x`` as an adjacency from columns to rows, made once per ``x``."""
    return derived(x, "structure", lambda: Csc(x.indptr, x.indices, x.num_cols, trusted=True))


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, values: Tensor, pattern: Csc) -> Tensor:
        ctx.how = Aggregation(csc=pattern, weight=values)
        out: Tensor = ctx.how.forward(weight.t().contiguous())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_column: Tensor = ctx.how.backward(grad)
        return by_column.t(), None, None


_sparse_linear = operator(
    "sparse_linear", _SparseLinear, lambda a: a.weight.new_empty(a.pattern.num_dst, a.weight.shape[0])
)
