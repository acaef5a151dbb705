"""Linear maps of rows, alone and around an aggregation.

Dense float32 rows on the CPU run in graphbraid's own kernels, whose results do not depend on the number of
threads, bit for bit; every other dtype and device runs in PyTorch.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.arguments import as_number, check_choice, check_tensor, check_type
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import tracing
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.machine.hardware import Rates
from graphbraid.ops import reference
from graphbraid.ops.aggregation import Aggregation, aggregated, follow_up, summed_back
from graphbraid.ops.epilogue import (
    ACTIVATION_CODES,
    LEAKY_SLOPE,
    bias_act_dropout,
    check_bias,
    epilogue_gradients,
    owns_gradient,
)
from graphbraid.ops.kernels import (
    backend,
    check_row_dtype,
    check_rows,
    new_rows,
    plain,
    row_contiguous,
    sum_dtype,
)
from graphbraid.ops.library import AnySeed, RowEpilogue, once_differentiable, operator, run
from graphbraid.ops.rng import row_ids, seed_of_call
from graphbraid.ops.sparse_linear import sparse_linear
from graphbraid.ops.spmm import aggregate


def tall_product(
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor | None = None,
    add: bool = False,
    ids: Tensor | None = None,
    after: RowEpilogue | None = None,
) -> Tensor:
    """Compute ``a @ b`` or ``a[ids] @ b`` for a tall ``a`` and a weight ``b``, without autograd.

    Args:
        a: ``(num_rows, depth)``.
        b: ``(depth, width)`` of the same dtype; any strides, so that ``weight.t()`` is not copied.
        out: ``(num_rows, width)``, written; its rows may be strided. If None, a new matrix.
        add: whether to add to the values in ``out``.
        ids: ``(num_rows,)`` int64 rows of ``a`` to use, in any order. If None, all rows.
        after: epilogue, applied to the rows while the cache holds them.
    """
    if out is None:
        out = new_rows(a, a.shape[0] if ids is None else ids.numel(), b.shape[1])
    kernels, rows = kernels_for(a, b, out), row_contiguous(plain(a))
    if kernels is reference:
        bias = None if after is None or add or ids is not None else after.bias
        if after is not None and bias is not None and out.is_cpu and out.dtype == torch.bfloat16:
            # PyTorch's product adds it before it rounds.
            torch.addmm(bias.to(out.dtype), rows, b.detach(), out=out.detach())
            after = after._replace(bias=None) if after.act or after.p else None
        else:
            reference.tall_product(rows, b.detach(), out.detach(), add, ids)
        follow_up(out.detach(), after)
    else:
        kernels.tall_product(rows, plain(b), plain(out), add, ids, after)
    return out


def tall_gram(a: Tensor, b: Tensor, *, out: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
    """Compute ``a.t() @ b`` or ``a.t() @ b[ids]``, ``(height, width)`` sums over rows, without autograd.

    Args:
        a: ``(num_rows, height)``.
        b: ``(num_rows, width)`` of the same dtype.
        out: ``(height, width)``, written. If None, a new matrix.
        ids: ``(num_rows,)`` int64 rows of ``b`` to use, in any order. If None, all rows.
    """
    if out is None:
        out = a.new_empty(a.shape[1], b.shape[1])
    kernels_for(a, b, out).tall_gram(row_contiguous(plain(a)), row_contiguous(plain(b)), out, ids)
    return out


def transpose(a: Tensor, *, out: Tensor) -> Tensor:
    """Compute ``a.t()`` into ``out``, ``(width, num_rows)``, whose rows are contiguous; without autograd."""
    kernels_for(a, out).transpose(row_contiguous(plain(a)), plain(out))
    return out


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.t() + bias`` like ``torch.nn.functional.linear``, with these kernels if possible.

    Args:
        x: ``(num_rows, in_channels)``.
        weight: ``(out_channels, in_channels)``.
        bias: ``(out_channels,)`` or None.

    Raises:
        DataError: shapes or dtypes do not fit.
    """
    check_row_dtype(check_tensor(x, "x"), "x")
    check_tensor(weight, "weight", ndim=2)
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise DataError(
            f"weight must have a column per column of x; got {tuple(weight.shape)} for x of {tuple(x.shape)}"
        )
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise DataError(
            f"x and weight must have one dtype; got {x.dtype} and {weight.dtype}. Convert x with "
            "x.to(weight.dtype), or the model with model.to(x.dtype)"
        )
    if bias is not None:
        check_row_dtype(check_tensor(bias, "bias"), "bias")
        if bias.shape != weight.shape[:1]:
            raise DataError(
                f"bias must have shape ({weight.shape[0]},) for this weight; got {tuple(bias.shape)}"
            )
    if tracing() or kernels_for(x, weight) is reference or torch.is_autocast_enabled(x.device.type):
        return F.linear(x, weight, bias)
    out: Tensor = run(_Linear, x, weight, None, None, *_NO_EPILOGUE)
    return out if bias is None else out + bias


_FLOAT32 = torch.float32
_LEAST_SHARE = 256
"""Least rows of a share of a product: fewer take little memory, and each call takes some microseconds."""
_MOST_EDGES_AGAIN = 5
"""Most edges per row with which backward computes the sums again rather than keep them.

With 4 edges per row, that takes 1 to 8 % of a step (most for GIN 64). With more edges it takes longer, and it
saves little memory beside a row for each edge, which PyG holds.
"""


def rows_as(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows in a dtype: themselves, or a copy in the kernels' pool."""
    return rows if rows.dtype is dtype else new_rows(rows, rows.shape[0], rows.shape[1], dtype).copy_(rows)


def kernels_for(*matrices: Tensor) -> Any:
    """Return the compiled kernels if they can run on these matrices, else their twins."""
    for one in matrices:  # all(...) takes three times as long, which small batches feel
        if one.dtype is not _FLOAT32 or not one.is_cpu or one.ndim != 2:
            return reference
    return backend(matrices[0])


_NO_EPILOGUE: tuple[None, int, float, int] = None, 0, 0.0, 0


def _begin_epilogue(
    ctx: Any, num_rows: int, weight: Tensor, bias: Tensor | None, *how: int | float | AnySeed
) -> RowEpilogue | None:
    """Keep an epilogue for backward; return it as kernels take it for rows of a product, None if it is empty.

    The product has ``num_rows`` rows. ``how`` is the activation's code, the dropout probability and the seed.
    """
    if bias is not None:
        check_bias(bias, weight.shape[0], weight.device)
    act, p, seed = cast("tuple[int, float, AnySeed]", how)
    ctx.epilogue = None if bias is None and act == 0 and p == 0 else (act, LEAKY_SLOPE, p, seed)
    if ctx.epilogue is None:
        return None
    ctx.bias_dtype = None if bias is None else bias.dtype
    factors = None if bias is None else plain(bias).to(sum_dtype(weight.dtype)).contiguous()
    ctx.ids = row_ids(num_rows) if p > 0 else None
    return RowEpilogue(factors, act, LEAKY_SLOPE, p, seed, ctx.ids)


def _kept(out: Tensor, after: RowEpilogue | None) -> Tensor | None:
    """Return the result if backward reads it, which only activations need; else None."""
    return out if after is not None and after.act else None


def _end_epilogue(ctx: Any, grad: Tensor, out: Tensor | None, place: int) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the product and of the bias, the function's argument ``place``."""
    if ctx.epilogue is None:
        return grad, None
    needed = ctx.needs_input_grad[place]
    how: dict[str, bool] = {"needs_bias": needed, "overwrites": owns_gradient(ctx)}
    rows, of_bias = epilogue_gradients(grad, out, ctx.epilogue, ctx.ids, **how)
    return rows, None if of_bias is None else of_bias.to(ctx.bias_dtype)


def _last_product(ctx: Any, grad: Tensor, weight: Tensor) -> Tensor:
    """Compute ``grad @ weight`` where nothing reads ``grad`` afterwards: in its memory, if that is ours.

    Some rows at a time go through other memory. The bits are those of :func:`tall_product`.
    """
    is_ours = ctx.epilogue is not None or owns_gradient(ctx)
    step = max(_LEAST_SHARE, -(-len(grad) // 8))
    is_square = weight.shape[0] == weight.shape[1]
    if not (is_ours and is_square and step < len(grad)) or kernels_for(grad, weight) is reference:
        return tall_product(grad, weight)
    beside = new_rows(grad, step, grad.shape[1])
    for first in range(0, len(grad), step):
        part = grad[first : first + step]
        part.copy_(tall_product(part, weight, out=beside[: len(part)]))
    return grad


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        own: Tensor | None,
        own_weight: Tensor | None,
        bias: Tensor | None,
        act: int,
        p: float,
        seed: AnySeed,
    ) -> Tensor:
        x, own = rows_as(x, weight.dtype), None if own is None else rows_as(own, weight.dtype)
        # Detached, they stay what they are where a parameter gets other data before backward.
        weight, own_weight = weight.detach(), None if own_weight is None else own_weight.detach()
        after = _begin_epilogue(ctx, len(x), weight, bias, act, p, seed)
        begun = None if own is None or own_weight is None else tall_product(own, own_weight.t())
        out = tall_product(x, weight.t(), out=begun, add=begun is not None, after=after)
        of_x, of_weight, of_own, of_own_weight = ctx.needs_input_grad[:4]
        ctx.save_for_backward(
            *(x if of_weight else None, weight if of_x else None),
            *(own if of_own_weight else None, own_weight if of_own else None, _kept(out, after)),
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *saved, out = ctx.saved_tensors
        grad, grad_bias = _end_epilogue(ctx, grad, out, 4)
        del out
        found: list[Tensor | None] = []
        for place in (0, 2):
            of_rows, of_matrix = ctx.needs_input_grad[place : place + 2]
            of_weight = tall_gram(grad, saved[place]) if of_matrix else None
            saved[place] = None
            is_last = place == 2 or not any(ctx.needs_input_grad[2:4])
            product = partial(_last_product, ctx) if is_last else tall_product
            found += [product(grad, saved[place + 1]) if of_rows else None, of_weight]
        return *found, grad_bias, None, None, None


LinearFunction = _Linear
"""For callers that run it beside others as one autograd function."""


_RATES = Rates()


def aggregate_linear(
    how: Aggregation,
    x: Tensor | SparseFeatures,
    weight: Tensor,
    root_weight: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    act: str = "none",
    p: float = 0.0,
) -> Tensor:
    """Compute ``A x Wᵀ + x_dst W_rootᵀ`` for an aggregation ``A`` and the destinations' own rows ``x_dst``.

    A bias, an activation and dropout behind it are applied while the cache holds the rows.

    It runs as ``(A x) Wᵀ`` or ``A (x Wᵀ)``, whichever costs less (:func:`narrows`). The first form keeps
    the aggregated rows, and no copy of the own rows. Nothing is computed for inputs that need no gradient;
    both gradients of ``x`` are summed in the kernel.

    Args:
        how: the aggregation, whose destinations are a prefix of its sources.
        x: ``(num_src, in_channels)``; half-precision storage is summed and multiplied in ``weight``'s dtype.
            Sparse features are transformed first.
        weight: ``(out_channels, in_channels)``.
        root_weight: ``(out_channels, in_channels)``, or None.
        bias: ``(out_channels,)``, or None.
        act: a key of :data:`graphbraid.ops.epilogue.ACTIVATION_CODES`.
        p: probability of dropping an element.

    Returns:
        ``(num_dst, out_channels)`` in ``weight``'s dtype, or the autocast dtype.

    Raises:
        ConfigError: ``act`` is unknown or ``p`` not in [0, 1).
        DataError: ``x`` does not fit the graph, or a weight does not fit ``x``, or the bias the weight.
    """
    check_type(how, "how", Aggregation, "an Aggregation", error=ConfigError)
    check_row_dtype(check_tensor(weight, "weight", ndim=2), "weight")
    if not isinstance(x, SparseFeatures):
        check_rows(x, "x", how.csc.num_src, "source node")
    elif x.shape[0] != how.csc.num_src:
        raise DataError(f"x must have one row per source node ({how.csc.num_src}); got {x.shape[0]}")
    if weight.shape[1] != x.shape[1]:
        raise DataError(f"weight must be (out_channels, {x.shape[1]}) for this x; got {tuple(weight.shape)}")
    if root_weight is not None:
        check_tensor(root_weight, "root_weight")
        if root_weight.shape != weight.shape or root_weight.dtype != weight.dtype:
            raise DataError(
                f"root_weight must be {weight.dtype} of shape {tuple(weight.shape)} as weight is; "
                f"got {root_weight.dtype} of {tuple(root_weight.shape)}"
            )
    check_choice(act, "act", tuple(ACTIVATION_CODES))
    p = as_number(p, "p", least=0, below=1)
    if isinstance(x, SparseFeatures):
        return bias_act_dropout(_sparse_aggregate_linear(how, x, weight, root_weight), bias, act, p)
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
        root_weight = None if root_weight is None else root_weight.to(dtype)
    seed = seed_of_call() if p > 0 else 0
    if not torch.is_grad_enabled():  # which autograd functions cannot see
        x, weight = x.detach(), weight.detach()
    return _aggregate_linear(x, weight, root_weight, how, bias, ACTIVATION_CODES[act], p, seed, False)


def _sparse_aggregate_linear(
    how: Aggregation, x: SparseFeatures, weight: Tensor, root_weight: Tensor | None
) -> Tensor:
    if root_weight is None:
        return aggregate(how, sparse_linear(x, weight))
    # Both maps in one pass over the values.
    both, width = sparse_linear(x, torch.cat((weight, root_weight))), weight.shape[0]
    return aggregate(how, both[:, :width], addend=both[: how.csc.num_dst, width:])


def narrows(how: Aggregation, in_channels: int, out_channels: int, *, grad_x: bool, training: bool) -> bool:
    """Return whether transforming first is cheaper: fewer bytes to aggregate, but all sources to transform.

    Without ``grad_x`` the input needs no gradient, and aggregating first no aggregation backward; without
    ``training`` nothing needs one.
    """

    def seconds(width: int, rows: int, aggregations: int, products: int) -> float:
        multiplying = products * _RATES.multiply_seconds(rows, in_channels, out_channels)
        return multiplying + aggregations * _RATES.aggregate_seconds(how.csc.num_edges, width)

    products = 1 + training + grad_x
    first = seconds(out_channels, how.csc.num_src, 1 + training, products)
    last = seconds(in_channels, how.csc.num_dst, 1 + grad_x, products)
    return first < last


class _AggregateLinear(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        root_weight: Tensor | None,
        how: Aggregation,
        bias: Tensor | None,
        act: int,
        p: float,
        seed: AnySeed,
        wide: bool,
    ) -> Tensor:
        """Compute the rows; if ``wide``, the sums of bfloat16 rows stay in float32."""
        ctx.how, ctx.dtype, ctx.wide = how, x.dtype, wide
        # Detached for the same reason as in _Linear.
        weight, root_weight = weight.detach(), None if root_weight is None else root_weight.detach()
        needs = ctx.needs_input_grad
        ctx.transform_first = narrows(
            how, x.shape[1], weight.shape[0], grad_x=needs[0], training=needs[0] or needs[1]
        )
        after = _begin_epilogue(ctx, how.csc.num_dst, weight, bias, act, p, seed)
        if ctx.transform_first:
            return _transform_first(ctx, rows_as(x, weight.dtype), weight, root_weight, after)
        return _aggregate_first(ctx, x, weight, root_weight, after)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *saved, out = ctx.saved_tensors
        grad, grad_bias = _end_epilogue(ctx, grad, out, 4)
        saved.append(grad)
        del grad, out  # each matrix is freed after its last use where nobody else holds it
        backward = _transform_first_backward if ctx.transform_first else _aggregate_first_backward
        grad_x, grad_weight, grad_root = backward(ctx, saved)
        grad_x = None if grad_x is None else rows_as(grad_x, ctx.dtype)
        return grad_x, grad_weight, grad_root, None, grad_bias, None, None, None, None


_aggregate_linear = operator(
    "aggregate_linear",
    _AggregateLinear,
    lambda a: a.weight.new_empty(
        a.how.csc.num_dst, a.weight.shape[0], dtype=sum_dtype(a.weight.dtype) if a.wide else None
    ),
)


def _as_factor(ctx: Any, grad: Tensor) -> Tensor:
    """Return gradients in the dtype that rows of this operator are multiplied in."""
    return rows_as(grad, torch.bfloat16) if ctx.wide else grad


AggregateLinearFunction = _AggregateLinear
"""For callers that run it beside others as one autograd function."""


def _may_sum_again(ctx: Any, x: Tensor, rows: Tensor) -> bool:
    """Return whether backward may compute the sums ``rows`` of ``x`` again rather than keep them.

    Nothing more is then kept, as ``x`` is held in any case, and the kernel gives the same bits.
    """
    is_held = getattr(ctx, "holds_rows", False) and not x.is_inference()
    is_cheap = ctx.how.csc.num_edges <= _MOST_EDGES_AGAIN * len(rows)
    return is_held and is_cheap and x.dtype == rows.dtype


def _aggregate_first(
    ctx: Any, x: Tensor, weight: Tensor, root_weight: Tensor | None, after: RowEpilogue | None
) -> Tensor:
    how: Aggregation = ctx.how
    if x.dtype == weight.dtype or (x.dtype != torch.float64 and weight.dtype == torch.float32):
        rows = aggregated(how, x, out=new_rows(x, how.csc.num_dst, x.shape[1], weight.dtype))
    else:
        rows = rows_as(aggregated(how, x), weight.dtype)
    own = out = None
    if root_weight is not None:  # the rows themselves: a copy beside the sums would double them
        own = rows_as(x[: how.csc.num_dst], weight.dtype)
        out = tall_product(own, root_weight.t())
    out = tall_product(rows, weight.t(), out=out, add=out is not None, after=None if ctx.wide else after)
    if ctx.wide:
        out = rows_as(out, sum_dtype(out.dtype))
        follow_up(out, after)
    of_x, of_weight, of_root = ctx.needs_input_grad[:3]
    ctx.sums_again = _may_sum_again(ctx, x, rows)
    ctx.save_for_backward(
        *((x if ctx.sums_again else rows) if of_weight else None, weight if of_x else None),
        *(own if of_root else None, root_weight if of_x else None, _kept(out, after)),
    )
    return out


def _aggregate_first_backward(ctx: Any, saved: list[Tensor]) -> tuple[Tensor | None, ...]:
    rows, weight, own, root_weight, grad = saved
    saved.clear()
    grad = _as_factor(ctx, grad)
    grad_weight = None
    if ctx.needs_input_grad[1]:
        rows = aggregated(ctx.how, rows) if ctx.sums_again else rows
        grad_weight = tall_gram(grad, rows)
    grad_root = tall_gram(grad, own) if ctx.needs_input_grad[2] else None
    del rows, own
    grad_x = to_own = None
    if ctx.needs_input_grad[0]:
        csc: Csc = ctx.how.csc
        if root_weight is not None:  # the sums are added where the own rows' gradient stands
            grad_x = new_rows(grad, csc.num_src, weight.shape[1])
            to_own = tall_product(grad, root_weight, out=grad_x[: csc.num_dst])
        of_sums = _last_product(ctx, grad, weight)
        del grad
        grad_x = summed_back(ctx.how, of_sums, addend=to_own, out=grad_x)
    return grad_x, grad_weight, grad_root


def _transform_first(
    ctx: Any, x: Tensor, weight: Tensor, root_weight: Tensor | None, after: RowEpilogue | None
) -> Tensor:
    how: Aggregation = ctx.how
    root = None if root_weight is None else tall_product(x[: how.csc.num_dst], root_weight.t())
    begun = root
    if ctx.wide:
        dtype = sum_dtype(weight.dtype)
        root = None if root is None else rows_as(root, dtype)
        begun = new_rows(weight, how.csc.num_dst, weight.shape[0], dtype) if root is None else root
    out = aggregated(how, tall_product(x, weight.t()), addend=root, out=begun, after=after)
    of_x, of_weight, of_root = ctx.needs_input_grad[:3]
    read = (x if of_weight or of_root else None), (weight if of_x else None), (root_weight if of_x else None)
    ctx.save_for_backward(*read, _kept(out, after))
    return out


def _transform_first_backward(ctx: Any, saved: list[Tensor]) -> tuple[Tensor | None, ...]:
    x, weight, root_weight, grad = saved
    saved.clear()
    num_dst: int = ctx.how.csc.num_dst
    grad = row_contiguous(grad)
    grad_weight = grad_root = grad_x = None
    if ctx.needs_input_grad[2]:
        grad_root = tall_gram(_as_factor(ctx, grad), x[:num_dst])
    if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
        grad_rows = _as_factor(ctx, summed_back(ctx.how, grad))
        if ctx.needs_input_grad[1]:
            grad_weight = tall_gram(grad_rows, x)
        del x
        if ctx.needs_input_grad[0]:
            grad_x = tall_product(grad_rows, weight)
            if root_weight is not None:
                tall_product(_as_factor(ctx, grad), root_weight, out=grad_x[:num_dst], add=True)
    return grad_x, grad_weight, grad_root
