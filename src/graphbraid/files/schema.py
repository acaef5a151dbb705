"""Validation of what a file holds before anything uses it; errors name the file and the field."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from graphbraid.errors import DataError

T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""A number of things in a file: an int64, and not negative."""


def checked(kind: TypeAdapter[T], values: Any, refuse: Callable[[str], Exception] = DataError) -> T:
    """Return ``values`` validated as a ``kind``.

    Args:
        kind: type to validate against.
        values: what was read from the file.
        refuse: makes the error from a text such as ``arrays.x.bytes: Input should be ...; got 'many'``.

    Raises:
        DataError: ``values`` are not valid (or the error that ``refuse`` makes).
    """
    try:
        return kind.validate_python(values)
    except ValidationError as error:
        raise refuse(first_mistake(error)) from None


def first_mistake(error: ValidationError) -> str:
    """Describe the first mistake: its place, what is needed there and what was found."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    text = f"{place}: " if place else ""
    text += first["msg"].removeprefix("Value error, ")
    if first["type"] not in ("value_error", "missing"):  # our own checks already say what they got
        text += f"; got {_short.repr(first['input'])}"
    return text


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80
