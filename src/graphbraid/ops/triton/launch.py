"""Launches by name: a launcher has its twin's parameters, and a kernel gets each parameter by its name.

The signature of a kernel call stands once, at its twin in :mod:`graphbraid.ops.reference`. The parameters of
the kernel itself say what it reads beside these.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton.language as tl
from torch import Tensor


def like(twin: Callable[..., None]) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Decorate a launcher, which gets the arguments of its twin as the attributes of one object."""
    signature = inspect.signature(twin)
    names = tuple(signature.parameters)
    defaults = {
        name: one.default for name, one in signature.parameters.items() if one.default is not one.empty
    }

    def decorated(launcher: Callable[[Any], None]) -> Callable[..., None]:
        @functools.wraps(launcher)
        def call(*arguments: Any, **named: Any) -> None:
            launcher(SimpleNamespace(**{**defaults, **dict(zip(names, arguments, strict=False)), **named}))

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorated


def launch(kernel: Any, grid: tuple[int, ...], a: SimpleNamespace, **more: Any) -> None:
    """Launch a kernel on the device of its arguments; each of its parameters is found by name.

    Args:
        kernel: the kernel.
        grid: numbers of programs.
        a: arguments of the call. A parameter ``<name>_stride`` is the distance of the rows of ``<name>``, 0
            if that is None.
        more: other parameters, which come before arguments of the same name, and Triton's own options.
    """
    values = vars(a) | more
    for name in kernel.arg_names:
        if name in values:
            more[name] = values[name]
        else:
            assert name.endswith("_stride"), f"{kernel} gets no {name}"
            rows = values[name.removesuffix("_stride")]
            more[name] = 0 if rows is None else rows.stride(0)
    with on_device_of(next(value for value in values.values() if isinstance(value, Tensor))):
        kernel[grid](**more)


def kernel_dtype(dtype: torch.dtype) -> Any:
    """Return a dtype as Triton has it, by PyTorch's name; None if it has none."""
    return getattr(tl, str(dtype).removeprefix("torch."), None)


def on_device_of(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context that launches on ``tensor``'s device; Triton always takes the current device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
