"""Checks of files' contents against a schema, and frozen records kept as JSON files."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import reprlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from graphbraid.errors import ConfigError, DataError
from graphbraid.files.checksums import sealed, unsealed
from graphbraid.files.opening import read_text
from graphbraid.files.writing import atomic_write

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""A number of things in a file: an int64, and not negative."""


def checked(kind: TypeAdapter[T], values: Any, refuse: Callable[[str], Exception] = DataError) -> T:
    """Return ``values`` validated as a ``kind``; the error of ``refuse`` if they are none.

    Args:
        kind: type to validate against.
        values: the content of the file.
        refuse: makes the error from a text such as ``arrays.x.bytes: Input should be ...; got 'many'``.
    """
    try:
        return kind.validate_python(values)
    except ValidationError as error:
        raise refuse(first_mistake(error)) from None


def first_mistake(error: ValidationError) -> str:
    """Describe the first mistake: its place, the needed value and the found one."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    text = f"{place}: " if place else ""
    text += first["msg"].removeprefix("Value error, ")
    if first["type"] not in ("value_error", "missing"):  # our own checks already say what they got
        text += f"; got {_short.repr(first['input'])}"
    return text


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


class FileModel(BaseModel):
    """Base of the models that files are read as: unknown fields and other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


def check_numbers(record: object, names: Iterable[str], *, positive: bool = False) -> None:
    """Check that the fields of these names are None, or finite numbers of 0 or more, or above 0.

    Raises:
        ConfigError: one is not.
    """
    for name in names:
        value = getattr(record, name)
        if value is not None and not (math.isfinite(value) and (value > 0 if positive else value >= 0)):
            wanted = "a positive number" if positive else "0 or more"
            raise ConfigError(f"{name} must be {wanted}; got {value!r}")


class StrictRecord:
    """Base of the dataclasses that are read from files: unknown fields are errors."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class SavedRecord(StrictRecord):
    """Base of the frozen dataclasses of plain values, tuples and dataclasses that are kept as JSON files."""

    __slots__ = ()
    KIND: ClassVar[str]
    """Name of the kind of record, such as ``"plan"``: the file's field ``graphbraid``."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to a JSON file; an existing file is replaced; ResourceError without room."""
        values = dataclasses.asdict(cast("DataclassInstance", self))
        text = json.dumps(sealed({"graphbraid": self.KIND, **values}), indent=1)
        with atomic_write(path) as aside:
            aside.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a record that :meth:`save` wrote, or a file ``{"graphbraid": KIND, ...}`` written by hand.

        Fields that have a default may be left out.

        Raises:
            DataError: the file does not exist, is not JSON, holds another kind of record, has a field
                missing, unknown or out of range, or was changed since it was written.
        """
        kind = cls.KIND
        try:
            values = json.loads(read_text(path))
        except OSError as error:
            raise DataError(f"cannot read the {kind} {path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is no {kind}: it is not JSON ({error})") from None
        values = unsealed(values, path)
        found = values.pop("graphbraid", None) if isinstance(values, dict) else None
        if found != kind:
            holds = f"it holds a {found}" if isinstance(found, str) else "it has no field 'graphbraid'"
            raise DataError(f"{path} is no {kind}: {holds}; a {kind} is written by its save()")
        return checked(TypeAdapter(cls), values, lambda text: DataError(f"{path} is no sound {kind}: {text}"))
