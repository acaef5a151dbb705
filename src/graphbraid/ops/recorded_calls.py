"""Records of the kernels' calls, from which a planned step binds them or a program is written."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

Calls = list[tuple[str, tuple[Any, ...]]]
"""Recorded kernel calls: each kernel's name and positional arguments, then a dict of the others."""
_WATCHED = threading.local()
_P = ParamSpec("_P")
_R = TypeVar("_R")


def watching() -> Calls | None:
    """Return the record that this thread's calls go to now, if there is one."""
    found: Calls | None = getattr(_WATCHED, "calls", None)
    return found


@contextlib.contextmanager
def watched() -> Iterator[Calls]:
    """Record the calls of compiled kernels that this thread's operators make inside the ``with`` block."""
    calls: Calls = []
    _WATCHED.calls = calls
    try:
        yield calls
    finally:
        _WATCHED.calls = None


def recorded_whole(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a record of calls show a function as one call of its name, its results behind its arguments.

    What it calls itself is not recorded.
    """
    name = getattr(function, "__name__", "").lstrip("_")

    @functools.wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _R:
        calls = watching()
        if calls is None:
            return function(*arguments, **named)
        _WATCHED.calls = None
        try:
            result = function(*arguments, **named)
        finally:
            _WATCHED.calls = calls
        results = result if isinstance(result, tuple) else () if result is None else (result,)
        calls.append((name, (*arguments, *named.values(), *results)))
        return result

    return call


class Watched:
    """The compiled kernels, with a record of each call."""

    def __init__(self, kernels: Any, calls: Calls) -> None:
        self._native, self._calls = kernels, calls

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            self._calls.append((name, (*arguments, named) if named else arguments))
            getattr(self._native, name)(*arguments, **named)

        return call


__all__ = ["Calls", "Watched", "recorded_whole", "watched", "watching"]
