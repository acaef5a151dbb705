"""A model's lock, and context managers for its modes, buffers and masks, and torch's own modes."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.graph.scans import tracing
from graphbraid.ops.dropout import draw_seed, keep_mask

_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_MAKING_LOCKS = threading.Lock()


def lock_of(model: nn.Module) -> threading.RLock:
    """Return the lock shared by all engines of a model: its modes and buffers allow one call at a time."""
    with _MAKING_LOCKS:
        return _LOCKS.setdefault(model, threading.RLock())


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a model in training or evaluation mode, and afterwards each module back into its own mode."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Leave inference mode, if it is on: later calls write again to the tensors that an engine stores."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Give all buffers their values back afterwards."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # without a new version, which a pending backward pass would refuse


def why_not_now(device: str, *, in_half: bool = False) -> NotLoweredError | None:
    """Return why no model can run by a program at this moment; None if it can.

    Args:
        device: type of the device of its parameters.
        in_half: whether its program would round as autocast does.
    """
    if torch.is_autocast_enabled(device) and not in_half:
        return NotLoweredError(
            "autocast", "operators run in the precision of the rows", "a call outside of it"
        )
    if peek_interpreter_stack() is not None or forward_ad._current_level >= 0 or tracing():
        what = "torch.func, forward-mode differentiation and traces need PyTorch's own operations"
        return NotLoweredError("transform", what, "a call outside of them")
    return None


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that does not import torch's compiler, which takes 150 MB and a second.

    PyTorch wraps ``__torch_dispatch__`` so that the compiler passes it over, and the wrapper imports it. A
    compiler that nobody has imported compiles nothing.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        passed_over, plain = cls.__torch_dispatch__, inspect.unwrap(cls.__torch_dispatch__)

        def dispatch(*args: Any, **kwargs: Any) -> Any:
            return (passed_over if "torch._dynamo" in sys.modules else plain)(*args, **kwargs)

        cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign]


class CountedMasks(TorchFunctionMode):
    """Makes PyTorch's dropout of node rows draw the masks that a lowered program draws."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` or its replacement."""
        if func is F.dropout:
            return _dropped(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _dropped(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
    if not training or p == 0 or input.ndim != 2:
        return F.dropout(input, p, training, inplace)
    rows = torch.arange(input.shape[0], device=input.device)
    kept = keep_mask(rows, input.shape[1], p, draw_seed()).to(input.dtype) / (1 - p)
    return input.mul_(kept) if inplace else input * kept
