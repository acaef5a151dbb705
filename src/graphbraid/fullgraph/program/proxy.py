"""TensorProxy: what a trace hands to a forward, which takes it for the tensor that it stands for."""

from __future__ import annotations

import builtins
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

_LIBRARIES = ("torch", "torch_geometric")
_NOT_USERS = {*_LIBRARIES, *sys.stdlib_module_names}


class TensorProxy(fx.Proxy):
    """A proxy that a forward takes for the tensor it stands for, as far as it asks.

    It has that tensor's attributes and, in :func:`as_tensors`, its class; and it records in-place operators,
    which ``fx`` would otherwise record as new values.
    """

    kind: type = Tensor

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
def as_tensors(model: nn.Module) -> Iterator[None]:
    """Answer ``isinstance`` and ``type`` of a proxy, where a forward asks, by what it stands for.

    A property ``__class__`` would not do: torch's C++ goes by it, too, and would read a tensor.
    For all other objects, and in libraries, both stay what they are, so other threads do not notice.
    ``type``, which may be compared with itself, is replaced only for the functions that the classes of the
    model's modules have and for those that these call by name.
    """
    plain = builtins.isinstance
    globals_of_forward = [names for names in _globals_of(model) if "type" not in names]
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
        if _package(asks.f_globals) in _LIBRARIES and asks.f_code is not torch.is_tensor.__code__:
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


def _globals_of(model: nn.Module) -> list[dict[str, Any]]:
    """Return the globals of the functions that the model's classes have, and of those called by name."""
    classes = {kind for module in model.modules() for kind in type(module).__mro__}
    waiting = [value for kind in classes for value in vars(kind).values()]
    found: dict[int, dict[str, Any]] = {}
    seen: set[types.CodeType] = set()
    while waiting:
        function = _function_of(waiting.pop())
        if function is None or function.__code__ in seen or _package(function.__globals__) in _NOT_USERS:
            continue
        seen.add(function.__code__)
        found[id(function.__globals__)] = function.__globals__
        waiting += [function.__globals__.get(name) for name in _names_in(function.__code__)]
    return list(found.values())


def _function_of(value: Any) -> types.FunctionType | None:
    """Return the function in a method, a property or a decorated function; None if there is none."""
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    plain = inspect.unwrap(value) if isinstance(value, types.FunctionType) else None
    return plain if isinstance(plain, types.FunctionType) else None


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code and the functions in it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _package(names: dict[str, Any]) -> str:
    """Return the outermost package of the module that has these globals."""
    return str(names.get("__name__", "")).split(".")[0]


__all__ = ["TensorProxy", "as_tensors"]
