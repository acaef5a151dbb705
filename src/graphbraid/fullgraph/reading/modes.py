"""A model's lock, context managers for its modes, buffers and masks, and a module in its place."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.program import NotLoweredError, itself
from graphbraid.graph.scans import tracing
from graphbraid.ops.rng import draw_seed, keep_mask

_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_MAKING_LOCKS = threading.Lock()
TRACING = threading.RLock()
"""Serializes traces, since a trace patches ``torch.nn.Module`` while it runs."""


def lock_of(model: nn.Module) -> threading.RLock:
    """Return the lock shared by all engines of a model: its modes and buffers allow one call at a time."""
    with _MAKING_LOCKS:
        return _LOCKS.setdefault(model, threading.RLock())


def plain_tensors() -> AbstractContextManager[None]:
    """Leave inference mode, if it is on: later calls write again to the tensors that an engine stores."""
    return _without_inference() if torch.is_inference_mode_enabled() else nullcontext()


@contextmanager
def _without_inference() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


def unseen_by_hooks() -> AbstractContextManager[None]:
    """Return a context whose saved tensors are seen by no hooks outside.

    ``torch.utils.checkpoint`` compares the tensors that its two calls save. Only the first one reads a model.
    A result that is saved as it is would hold the graph that holds it, for ever.
    """
    return torch.autograd.graph.saved_tensors_hooks(Tensor.detach, itself)


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

    ``device`` is the type of its parameters' device. ``in_half`` says that its program would round as
    autocast does.
    """
    if torch.is_autocast_enabled(device) and not in_half:
        return NotLoweredError(
            "autocast", "operators run in the precision of the rows", "a call outside of it"
        )
    in_transform = peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    if in_transform or tracing() or torch._C._get_tracing_state() is not None:  # the last: by torch.jit.trace
        what = "torch.func, forward-mode differentiation and traces need PyTorch's own operations"
        return NotLoweredError("transform", what, "a call outside of them")
    if (mode := _mode_now(device)) is not None:
        return NotLoweredError("mode", f"{mode} sees PyTorch's own operations alone", "a call outside of it")
    return None


def _mode_now(device: str) -> str | None:
    """Return the class of a user's mode that may change what functions do; None if there is none.

    A default device is one, unless it is of the type ``device``. Lowered calls know graphbraid's own modes.
    """
    if torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack() == 0:
        return None
    functions: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [*functions, *_get_current_dispatch_mode_stack()]
    kinds = (type(one) for one in modes if not (type(one) is DeviceContext and one.device.type == device))
    return next((kind.__name__ for kind in kinds if not kind.__module__.startswith("graphbraid.")), None)


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


_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""The attributes in which a module keeps its parameters, buffers and submodules."""


class CompiledModule(nn.Module):
    """A module whose parameters, buffers and submodules are a model's own, under the model's names.

    The keys of ``state_dict`` are the model's, too, and so are all attributes that the engine does not have
    itself. Classes derived from it set their own attributes
    through ``vars(self)``: ``nn.Module`` would look for the name among the model's submodules.

    Args:
        model: any module.
    """

    model: nn.Module
    """The user's model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        vars(self).update({name: getattr(model, name) for name in _SHARED}, model=model)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the model, for which the engine stands."""
        if name.startswith("__") or "model" not in vars(self):
            return super().__getattr__(name)
        return getattr(self.model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the model, for which the engine stands.

        Raises:
            ConfigError: it is ``model``.
        """
        if self._is_own(name):
            super().__setattr__(name, value)
        else:
            setattr(self.model, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the model, for which the engine stands.

        Raises:
            ConfigError: it is ``model``.
        """
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(self.model, name)

    def _is_own(self, name: str) -> bool:
        if name == "model":
            raise ConfigError("an engine keeps its model; compile the other one: graphbraid.compile(model)")
        return "model" not in vars(self) or name in vars(self) or hasattr(type(self), name)

    @property
    def training(self) -> bool:
        """Whether the model is in training mode."""
        return self.model.training

    @training.setter
    def training(self, mode: bool) -> None:
        """Do nothing: the model's own mode counts, and ``nn.Module`` sets one before there is a model."""

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the model and of its modules."""
        self.model.train(mode)
        return self

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """Return the model's state, as its own ``state_dict`` gives it."""
        return self.model.state_dict(*args, **named)

    def load_state_dict(self, *args: Any, **named: Any) -> Any:
        """Load a state of the model, as its own ``load_state_dict`` does."""
        return self.model.load_state_dict(*args, **named)

    def _load_from_state_dict(self, *args: Any) -> None:
        """Load the model's own part of the state of a module that holds this one."""
        self.model._load_from_state_dict(*args)
