"""Checks, at the entry of a public call, that each argument is of the class its annotation names.

An object of a wrong class would fail somewhere further in with an unrelated error, or not at all; here it is
refused and named. NumPy numbers and 0-d tensors become Python numbers, so that no count wraps around in eight
bits. A tensor's lazy negation and conjugation, which the kernels cannot see, are carried out.
"""

import collections.abc
import functools
import inspect
import math
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError, DataError

T = TypeVar("T", bound=Callable[..., Any])

_Check = Callable[[Any], Any]
_LONGEST_NAME = 255  # bytes in a file name, the limit of every common file system
_MOST_LOOKED_AT = 1000
_DATA = ("Tensor", "Csc", "Graph", "SparseFeatures", "ScaledFeatures")


class _WrongError(Exception):
    """The value does not fit its annotation; the message, if any, says what is wrong beside its class."""


def typed(function: T) -> T:
    """Make a function check the classes of its arguments; for a class, those of its constructor.

    Raises:
        DataError: raised by the call, if an argument that holds data is not of its annotated class.
        ConfigError: raised by the call, if any other argument is not.
    """
    if isinstance(function, type):
        function.__init__ = typed(function.__init__)  # type: ignore[misc]
        return function
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # it cannot follow the annotations
            return function(*args, **options)
        checks = _checks_of(function)
        given = [_checked(name, value, checks) for name, value in zip(names, args, strict=False)]
        named = {name: _checked(name, value, checks) for name, value in options.items()}
        return function(*given, *args[len(given) :], **named)

    return typing.cast("T", checked)


def _checked(name: str, value: Any, checks: dict[str, tuple[_Check, str]]) -> Any:
    if name not in checks:
        return value
    check, wanted = checks[name]
    try:
        return check(value)
    except _WrongError as error:
        got = str(error) or shown(value)
        hint = ""
        if "Tensor" in wanted and isinstance(value, list | tuple | np.ndarray):
            hint = "; torch.as_tensor makes one"
        kind = DataError if any(data in wanted for data in _DATA) else ConfigError
        raise kind(f"{name} must be {wanted.replace(' | ', ' or ')}; got {got}{hint}") from None


@functools.cache
def _checks_of(function: Callable[..., Any]) -> dict[str, tuple[_Check, str]]:
    """Return the check and the annotation of each parameter that can be checked; read at the first call."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        text = parameter.annotation
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or text is parameter.empty:
            continue
        hint = _resolved(text, function)
        check = _check_for(hint)
        if check is not None:
            found[name] = check, _in_words(text, hint)
    return found


def _in_words(text: Any, hint: Any) -> str:
    """Return an annotation as messages show it, with an alias of several classes spelled out."""
    if isinstance(hint, types.UnionType) and str(text).isidentifier():
        return " | ".join(getattr(part, "__name__", str(part)) for part in typing.get_args(hint))
    return (text if isinstance(text, str) else getattr(text, "__name__", str(text))).strip("'\"")


def _resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return what an annotation stands for, or Any if its names exist only for the type checker."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(
            annotation, dict(getattr(inspect.unwrap(function), "__globals__", {}))
        )  # the text comes from our source code, never from a user
    except (NameError, AttributeError, TypeError):
        return Any


def _check_for(hint: Any) -> _Check | None:
    """Return the check for one annotation, or None if it says nothing that can be checked."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    check: _Check | None = None
    if origin is typing.Annotated:
        check = _check_for(inner[0])
    elif origin in (Union, types.UnionType):
        check = _one_of(inner)
    elif origin is Literal:
        check = _instance(*{type(value) for value in inner})
    elif origin is not None:
        check = _container(origin, inner)
    elif hint in _SIMPLE:
        check = _SIMPLE[hint]
    elif isinstance(hint, type) and hint not in (object, Any):
        check = _path if issubclass(hint, os.PathLike) else _instance(hint)
    return check


def _one_of(hints: tuple[Any, ...]) -> _Check | None:
    classes = [kind for hint in hints if isinstance(kind := typing.get_origin(hint) or hint, type)]
    is_path = any(issubclass(kind, os.PathLike) for kind in classes)
    checks = [_path if is_path and hint is str else _check_for(hint) for hint in hints]
    if any(check is None for check in checks):
        return None

    def check(value: Any) -> Any:
        if value is None and type(None) in hints:  # without an error for each class before it
            return None
        said = ""
        for one in checks:
            try:
                return typing.cast("_Check", one)(value)
            except _WrongError as error:
                said = said or str(error)
        raise _WrongError(said)

    return check


def _container(origin: Any, inner: tuple[Any, ...]) -> _Check | None:
    if origin is collections.abc.Callable:
        return _callable
    if not isinstance(origin, type):
        return None
    if issubclass(origin, os.PathLike):
        return _path
    of_each = _check_for(inner[0]) if len(inner) == 1 or (len(inner) == 2 and inner[1] is Ellipsis) else None
    is_abstract = issubclass(list, origin) and origin is not list

    def check(value: Any) -> Any:
        if is_abstract and isinstance(value, np.ndarray | Tensor) and value.ndim >= 1:
            return value
        is_list = origin is tuple and isinstance(value, list)
        if isinstance(value, str | bytes) or not (is_list or isinstance(value, origin)):
            raise _WrongError
        if (
            of_each is not None
            and isinstance(value, collections.abc.Sequence)
            and len(value) <= _MOST_LOOKED_AT
        ):
            for place, item in enumerate(value):
                try:
                    of_each(item)
                except _WrongError as error:
                    raise _WrongError(f"{str(error) or shown(item)} at [{place}]") from None
        return value

    return check


def _instance(*classes: type) -> _Check:
    def check(value: Any) -> Any:
        if isinstance(value, classes) or _is_traced(value):
            return value
        raise _WrongError

    return check


def _is_traced(value: Any) -> bool:
    """Return whether torch.fx is tracing the call, so that ``value`` is a proxy."""
    return isinstance(value, torch.fx.Proxy)


def _tensor(value: Any) -> Any:
    if not isinstance(value, Tensor):
        if _is_traced(value):
            return value
        raise _WrongError
    if value.is_nested:
        raise _WrongError("a nested tensor")
    if value.layout != torch.strided:
        raise _WrongError(f"one of layout {value.layout}; to_dense() makes a plain one")
    if value.is_quantized:
        raise _WrongError("a quantized one; dequantize() makes a plain one")
    return value.resolve_conj().resolve_neg() if value.is_neg() or value.is_conj() else value


def _whole(value: Any) -> Any:
    if type(value) is int or _is_traced(value):
        return value
    if isinstance(value, bool | np.bool_) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        raise _WrongError
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):
        raise _WrongError from None


def _real(value: Any) -> Any:
    if type(value) is float or _is_traced(value):
        return value
    is_number = isinstance(value, numbers.Real | np.integer | np.floating)
    is_number = is_number or (isinstance(value, Tensor | np.ndarray) and value.ndim == 0)
    if isinstance(value, bool | np.bool_) or not is_number:
        raise _WrongError
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)
    except (TypeError, ValueError, RuntimeError):
        raise _WrongError from None


def _flag(value: Any) -> Any:
    if isinstance(value, bool) or _is_traced(value):
        return value
    if isinstance(value, np.bool_) or (isinstance(value, numbers.Integral) and value in (0, 1)):
        return bool(value)
    raise _WrongError


def _callable(value: Any) -> Any:
    if not callable(value):
        raise _WrongError
    return value


def _path(value: Any) -> Any:
    if not isinstance(value, str | os.PathLike):
        raise _WrongError
    text = os.fspath(value)
    if isinstance(text, str) and "\0" in text:
        raise _WrongError(f"{text!r}, which holds a NUL character")
    if isinstance(text, str) and any(len(os.fsencode(part)) > _LONGEST_NAME for part in Path(text).parts):
        raise _WrongError(f"a name of more than {_LONGEST_NAME} bytes: {shown(text)}")
    return value


_SIMPLE: dict[Any, _Check] = {Tensor: _tensor, int: _whole, float: _real, bool: _flag}
