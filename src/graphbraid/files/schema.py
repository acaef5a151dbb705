"""Checking what a file holds before anything uses it: an error that names the file and the field."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from graphbraid.errors import DataError

T = TypeVar("T")


def checked(kind: TypeAdapter[T], values: Any, refuse: Callable[[str], Exception] = DataError) -> T:
    """``values`` as ``kind`` wants them.

    Args:
        kind: what they must be.
        values: what was read.
        refuse: makes the error of a text such as ``arrays.x.bytes: Input should be ...; got 'many'``.

    Raises:
        DataError: they are something else (or whatever ``refuse`` makes).
    """
    try:
        return kind.validate_python(values)
    except ValidationError as error:
        raise refuse(first_mistake(error)) from None


def first_mistake(error: ValidationError) -> str:
    """Where it stands, what is needed there, and what was found."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    text = f"{place}: " if place else ""
    text += first["msg"].removeprefix("Value error, ")
    if first["type"] not in ("value_error", "missing"):  # a check of our own says what it got
        text += f"; got {_short.repr(first['input'])}"
    return text


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80
