"""TensorProxy: what a trace hands to a forward, which takes it for the tensor that it stands for."""

from __future__ import annotations

import builtins
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from graphbraid.fullgraph.program.reached import package_of

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

    A property ``__class__`` would not do: torch's C++ goes by it, too, and would read a tensor.
    For all other objects, and in libraries, both stay what they are, so other threads do not notice.
    ``type``, which may be compared with itself, is replaced only for ``functions``, those of the forward.
    """
    plain = builtins.isinstance
    by_id = {id(function.__globals__): function.__globals__ for function in functions}
    globals_of_forward = [names for names in by_id.values() if "type" not in names]
    builtins.isinstance = _answering(plain)
    for names in globals_of_forward:
        names["type"] = _Type
    try:
        yield
    finally:
        builtins.isinstance = plain
        for names in globals_of_forward:
            del names["type"]


def _answering(plain: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return ``isinstance`` as a forward is to find it."""

    def answer(value: Any, of: Any) -> bool:
        found = plain(value, of)
        if found or type(value) is not TensorProxy:
            return found
        asks = sys._getframe(1)
        if package_of(asks.f_globals) in _LIBRARIES and asks.f_code is not torch.is_tensor.__code__:
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


__all__ = ["TensorProxy", "as_tensors"]
