"""Functions of each row without parameters, by PyTorch's kernels, which write into the arena."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
Arguments = tuple[float | str, ...]


@dataclass(frozen=True, slots=True)
class RowFunctionKernels:
    """One function, as forward and backward calls that allocate nothing."""

    forward: Callable[[Tensor, Arguments, Tensor], object]
    """Called as ``forward(x, arguments, out)``."""
    backward: Callable[[Tensor, Tensor, Arguments, Tensor], object]
    """Called as ``backward(grad, kept, arguments, grad_x)``; ``kept`` is the input or the result."""
    reads_result: bool = False
    """Whether backward reads the result rather than the input, which may then be overwritten."""


def _pointwise(name: str, *, reads_result: bool = False) -> RowFunctionKernels:
    """Make a function of PyTorch's ``name.out`` and ``name_backward.grad_input``; arguments come last."""
    forward, backward = getattr(_aten, name).out, getattr(_aten, f"{name}_backward").grad_input
    return RowFunctionKernels(
        lambda x, arguments, out: forward(x, *arguments, out=out),
        lambda grad, kept, arguments, grad_x: backward(grad, kept, *arguments, grad_input=grad_x),
        reads_result,
    )


def _softmax(name: str, result: str) -> RowFunctionKernels:
    forward, backward = getattr(_aten, name).out, getattr(_aten, f"{name}_backward_data").out
    return RowFunctionKernels(
        lambda x, _, out: forward(x, 1, False, out=out),
        lambda grad, kept, _, grad_x: backward(grad, kept, 1, grad.dtype, **{result: grad_x}),
        reads_result=True,
    )


def _gelu_backward(grad: Tensor, kept: Tensor, arguments: Arguments, grad_x: Tensor) -> Any:
    return _aten.gelu_backward.grad_input(grad, kept, approximate=arguments[0], grad_input=grad_x)


def _elu_backward(grad: Tensor, kept: Tensor, arguments: Arguments, grad_x: Tensor) -> Any:
    return _aten.elu_backward.grad_input(grad, *arguments, False, kept, grad_input=grad_x)


def _leaky_backward(grad: Tensor, kept: Tensor, arguments: Arguments, grad_x: Tensor) -> Any:
    return _aten.leaky_relu_backward.grad_input(grad, kept, *arguments, False, grad_input=grad_x)


def _by_factor(
    forward: Any,
    backward: Callable[[Tensor, Tensor, Arguments, Tensor], object],
    *,
    reads_result: bool = False,
) -> RowFunctionKernels:
    """Make a function of PyTorch's ``forward(x, ..., out=)``, and of a rule for its gradient."""
    return RowFunctionKernels(
        lambda x, arguments, out: forward(x, *arguments, out=out), backward, reads_result
    )


def _abs_backward(grad: Tensor, kept: Tensor, _: Arguments, grad_x: Tensor) -> Any:
    return torch.sign(kept, out=grad_x).mul_(grad)


def _clamp_backward(grad: Tensor, kept: Tensor, arguments: Arguments, grad_x: Tensor) -> Any:
    least, largest = map(float, arguments)
    return torch.mul(grad, (kept >= least) & (kept <= largest), out=grad_x)


def _pow_backward(grad: Tensor, kept: Tensor, arguments: Arguments, grad_x: Tensor) -> Any:
    (exponent,) = arguments
    return torch.pow(kept, float(exponent) - 1, out=grad_x).mul_(grad).mul_(float(exponent))


FUNCTIONS: dict[str, RowFunctionKernels] = {
    "tanh": _pointwise("tanh", reads_result=True),
    "sigmoid": _pointwise("sigmoid", reads_result=True),
    "silu": _pointwise("silu"),
    "softplus": _pointwise("softplus"),
    "hardtanh": _pointwise("hardtanh"),
    "gelu": RowFunctionKernels(
        lambda x, arguments, out: _aten.gelu.out(x, approximate=arguments[0], out=out), _gelu_backward
    ),
    "elu": RowFunctionKernels(lambda x, arguments, out: _aten.elu.out(x, *arguments, out=out), _elu_backward),
    "leaky_relu": RowFunctionKernels(
        lambda x, arguments, out: _aten.leaky_relu.out(x, *arguments, out=out), _leaky_backward
    ),
    "softmax": _softmax("_softmax", "grad_input"),
    "log_softmax": _softmax("_log_softmax", "out"),
    "plus": _by_factor(torch.add, lambda grad, _, __, grad_x: grad_x.copy_(grad), reads_result=True),
    "abs": _by_factor(torch.abs, _abs_backward),
    "clamp": _by_factor(torch.clamp, _clamp_backward),
    "pow": _by_factor(torch.pow, _pow_backward),
    "exp": _by_factor(
        torch.exp, lambda grad, kept, _, grad_x: torch.mul(grad, kept, out=grad_x), reads_result=True
    ),
    "log": _by_factor(torch.log, lambda grad, kept, _, grad_x: torch.div(grad, kept, out=grad_x)),
    "sqrt": _by_factor(
        torch.sqrt,
        lambda grad, kept, _, grad_x: torch.div(grad, kept, out=grad_x).mul_(0.5),
        reads_result=True,
    ),
    "reciprocal": _by_factor(
        torch.reciprocal,
        lambda grad, kept, _, grad_x: torch.mul(kept, kept, out=grad_x).mul_(grad).neg_(),
        reads_result=True,
    ),
}
"""Functions by name. Their arguments are GELU's approximation; ELU's alpha, scale and input scale; leaky
ReLU's slope; softplus's beta and threshold; the least and largest value of hardtanh and clamp, which differ
in the gradient of a value at either end; what plus adds; and pow's exponent."""
