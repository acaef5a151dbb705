"""Frozen records kept as JSON files: written in one step, read with every field checked.

They carry a checksum; what a person writes or changes by hand has none.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ConfigDict, TypeAdapter

from graphbraid.errors import DataError
from graphbraid.files.checksums import sealed, unsealed
from graphbraid.files.schema import checked
from graphbraid.files.writing import atomic_write

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

STRICT = ConfigDict(extra="forbid")
"""Of every record read from a file: an unknown field is a mistake."""

Record = TypeVar("Record", bound="DataclassInstance")


def save_record(record: DataclassInstance, kind: str, path: str | os.PathLike[str]) -> None:
    """Write a record as JSON.

    Args:
        record: a dataclass of plain values, tuples and dataclasses.
        kind: what it is, such as ``"plan"``; :func:`load_record` asks for it again.
        path: the file; an earlier one is replaced.

    Raises:
        ResourceError: the file cannot be written.
    """
    text = json.dumps(sealed({"graphbraid": kind, **dataclasses.asdict(record)}), indent=1)
    with atomic_write(path) as aside:
        aside.write_text(text + "\n", encoding="utf-8")


def load_record(record: type[Record], kind: str, path: str | os.PathLike[str]) -> Record:
    """Read a record that :func:`save_record` wrote.

    Raises:
        DataError: there is no such file, it is not JSON, holds another kind of record, or a field of it is
            missing, unknown or cannot be meant, or it has changed since it was written.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read the {kind} {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no {kind}: it is not JSON ({error})") from None
    values = unsealed(values, path)
    found = values.pop("graphbraid", None) if isinstance(values, dict) else None
    if found != kind:
        holds = f"it holds a {found}" if isinstance(found, str) else "it has no field 'graphbraid'"
        raise DataError(f"{path} is no {kind}: {holds}; a {kind} is written by its save()")
    return _checked(record, kind, values, path)


def _checked(record: type[Record], kind: str, values: dict[str, Any], path: str | os.PathLike[str]) -> Record:
    return checked(TypeAdapter(record), values, lambda text: DataError(f"{path} is no sound {kind}: {text}"))
