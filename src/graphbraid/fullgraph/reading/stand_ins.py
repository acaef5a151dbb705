"""What a forward finds in a trace in the place of tensors, of ``isinstance`` and ``type``, and of factories.

A proxy records what is done with the tensor that it stands for, and the forward takes it for that tensor.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from graphbraid.fullgraph.reading.reached import package_of

_LIBRARIES = ("torch", "torch_geometric")


class TensorProxy(fx.Proxy):
    """A proxy that a forward takes for the tensor it stands for, as far as it asks.

    It has that tensor's attributes and, in :func:`as_tensors`, its class; and it records in-place operators,
    which ``fx`` would otherwise record as new values.
    """

    kind: type = Tensor
    __array_priority__ = Tensor.__array_priority__  # NumPy's scalars leave an operator to it

    def __getattr__(self, k: str) -> Any:
        if not hasattr(self.kind, k):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {k!r}")
        return super().__getattr__(k)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


def _in_place(name: str) -> Any:
    target = getattr(operator, name)

    def record(self: fx.Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", target, (self, other), {})

    return record


for _name in (
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "imatmul",
    "iand",
    "ior",
    "ixor",
):
    setattr(TensorProxy, f"__{_name}__", _in_place(_name))


@contextmanager
def as_tensors(functions: Iterable[types.FunctionType]) -> Iterator[None]:
    """Answer ``isinstance`` and ``type`` of a proxy, where a forward asks, by what it stands for.

    Functions that make tensors are recorded if they take a size that is computed.
    A property ``__class__`` would not do: torch's C++ goes by it, too, and would read a tensor.
    For all other objects, and in libraries, both stay what they are, so other threads do not notice.
    ``type``, which may be compared with itself, is replaced only for ``functions``, those of the forward.
    """
    plain, factories = builtins.isinstance, {name: getattr(torch, name) for name in _FACTORIES}
    by_id = {id(function.__globals__): function.__globals__ for function in functions}
    globals_of_forward = [names for names in by_id.values() if "type" not in names]
    builtins.isinstance = _answering(plain)
    for name, factory in factories.items():
        setattr(torch, name, recording(factory))
    for names in globals_of_forward:
        names["type"] = _Type
    try:
        yield
    finally:
        builtins.isinstance = plain
        for name, factory in factories.items():
            setattr(torch, name, factory)
        for names in globals_of_forward:
            del names["type"]


_FACTORIES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")


def recording(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that a trace records as one call if it gets proxies, alone or in a list."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        parts = [part for one in given for part in (one if type(one) in (tuple, list) else (one,))]
        proxy = next((part for part in parts if isinstance(part, fx.Proxy)), None)
        if proxy is None:
            return factory(*args, **kwargs)
        return proxy.tracer.create_proxy("call_function", factory, args, kwargs)

    return make


def _answering(plain: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return ``isinstance`` as a forward is to find it."""

    def answer(value: Any, of: Any) -> bool:
        found = plain(value, of)
        if found or type(value) is not TensorProxy:
            return found
        asks = sys._getframe(1)
        in_layer = str(asks.f_globals.get("__name__", "")).startswith("torch_geometric.nn.")
        in_library = package_of(asks.f_globals) in _LIBRARIES and not in_layer
        if in_library and asks.f_code is not torch.is_tensor.__code__:
            return False
        return plain(of, type | tuple | types.UnionType) and issubclass(value.kind, of)

    return answer


class _Asked(type):
    """The class of :class:`_Type`, which is called and asked as ``type`` is."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and type(args[0]) is TensorProxy:
            return args[0].kind
        return type(*args, **options)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type)


class _Type(metaclass=_Asked):
    """``type`` as a forward finds it while it is traced."""
