"""bias_act_dropout: the bias, activation and dropout after a layer's product, in one pass over its rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.arguments import as_number, check_choice, check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.scans import tracing
from graphbraid.ops.kernels import backend, check_row_dtype, new_rows, plain, row_contiguous, sum_dtype
from graphbraid.ops.library import AnySeed, once_differentiable, operator
from graphbraid.ops.rng import row_ids, seed_of_call
from graphbraid.signatures import typed

# The numbers are those of epilogue.cpp. GELU's slope does not follow from its output, so it runs in PyTorch.
ACTIVATION_CODES = {"none": 0, "relu": 1, "leaky_relu": 2, "elu": 3}
ACTIVATIONS = (*ACTIVATION_CODES, "gelu")
LEAKY_SLOPE = 0.01


@typed
def bias_act_dropout(
    x: Tensor, bias: Tensor | None = None, act: str = "relu", p: float = 0.0, *, inplace: bool = False
) -> Tensor:
    """Compute ``dropout(act(x + bias), p)`` in one pass; the backward pass reads only the output.

    With ``act="none"`` it does not read that either, so the caller may write over it.
    The mask comes from a counter-based generator seeded by torch's, so it does not depend on the number of
    threads.

    Args:
        x: ``(num_rows, channels)``.
        bias: ``(channels,)`` or None.
        act: one of ``none``, ``relu``, ``leaky_relu`` (slope 0.01), ``elu``, ``gelu``.
        p: probability of dropping an element; pass 0 when not training.
        inplace: whether to overwrite ``x``, which nothing else may then read.

    Returns:
        ``(num_rows, channels)`` of ``x``'s dtype.

    Raises:
        ConfigError: ``act`` is unknown or ``p`` not in [0, 1).
        DataError: ``x`` is not a matrix of floating-point numbers, or ``bias`` does not fit it.
    """
    check_choice(act, "act", ACTIVATIONS)
    p = as_number(p, "p", least=0, below=1)
    check_row_dtype(check_tensor(x, "x", ndim=2), "x")
    if bias is not None:
        check_bias(bias, x.shape[1], x.device)
    if act == "gelu":
        x, bias, act, inplace = F.gelu(x if bias is None else x + bias), None, "none", False
    if bias is None and act == "none" and p == 0:
        return x
    seed = seed_of_call() if p > 0 else 0
    inplace = inplace and not tracing()
    return _epilogue(x, bias, ACTIVATION_CODES[act], p, seed, inplace)


def check_bias(bias: Tensor, width: int, device: torch.device) -> None:
    """Raise DataError unless a bias fits rows of ``width`` columns on ``device``."""
    check_tensor(bias, "bias", floating=True)
    if bias.shape != (width,) or bias.device != device:
        raise DataError(
            f"bias must have shape ({width},) on {device}; got {tuple(bias.shape)} on {bias.device}"
        )


def epilogue_gradients(
    grad: Tensor,
    out: Tensor | None,
    how: tuple[int, float, float, AnySeed],
    ids: Tensor | None,
    *,
    needs_bias: bool,
    overwrites: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of an epilogue's rows and, if needed, of its bias in the dtype of the sums.

    Args:
        grad: gradient of ``out``.
        out: ``(num_rows, width)`` results of the epilogue. None without an activation: the caller may have
            written over them.
        how: activation code, slope, dropout probability and seed.
        ids: ``(num_rows,)`` int64 row numbers that the rows' masks were drawn for; None for their own.
        needs_bias: whether the bias's gradient is computed.
        overwrites: whether the gradient of the rows may be written over ``grad``.
    """
    grad = row_contiguous(grad.contiguous() if out is None else grad.to(out.dtype).contiguous())
    out = grad if out is None else out  # without an activation, its values are not read
    grad_x = grad if overwrites else new_rows(out, *out.shape)
    grad_bias = grad_x.new_empty(out.shape[1], dtype=sum_dtype(out.dtype)) if needs_bias else None
    backend(out).epilogue_backward(grad, plain(out), *how, grad_x, grad_bias, ids)
    return grad_x, grad_bias


def owns_gradient(ctx: Any) -> bool:
    """Return whether nothing but this autograd function reads its incoming gradient."""
    return bool(getattr(ctx, "owns_gradient", False))


class _Epilogue(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, x: Tensor, bias: Tensor | None, act: int, p: float, seed: AnySeed, inplace: bool
    ) -> Tensor:
        ctx.how, ctx.ids = (act, LEAKY_SLOPE, p, seed), row_ids(len(x)) if p > 0 else None
        ctx.bias_dtype = None if bias is None else bias.dtype
        if inplace and x.is_contiguous():
            out = x
            ctx.mark_dirty(x)
        else:
            x = x.contiguous()
            out = new_rows(x, *x.shape)
        factors = None if bias is None else bias.detach().to(sum_dtype(x.dtype)).contiguous()
        backend(x).epilogue(x.detach(), factors, *ctx.how, out.detach(), ctx.ids)
        ctx.save_for_backward(out if act else None)  # without an activation, the caller may write over it
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        grad_x, grad_bias = epilogue_gradients(
            grad, out, ctx.how, ctx.ids, needs_bias=ctx.needs_input_grad[1], overwrites=owns_gradient(ctx)
        )
        return grad_x, None if grad_bias is None else grad_bias.to(ctx.bias_dtype), None, None, None, None


_epilogue = operator("bias_act_dropout", _Epilogue, lambda a: a.x.new_empty(a.x.shape))

EpilogueFunction = _Epilogue
"""For callers that run it beside others as one autograd function."""
