"""Manifests of a partition's folder: what they hold, and writing and reading them with their checksums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter

from graphbraid.datasets.store.arrays import ArrayEntry, StoredArray, Words
from graphbraid.distributed.parts.identity import GraphIdentity
from graphbraid.errors import DataError, ResourceError
from graphbraid.files.checksums import sealed, unsealed
from graphbraid.files.opening import read_text
from graphbraid.files.schema import Count, checked
from graphbraid.files.writing import restore

MANIFEST, PART_MANIFEST = "partition.json", "part.json"
FORMAT = "graphbraid-partition"
VERSION = 2
"""Version 1 knew its graph by another checksum."""
_T = TypeVar("_T", bound=BaseModel)


class Manifest(BaseModel):
    """The content of ``partition.json``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    version: int
    graph: GraphIdentity
    options: dict[str, Any]
    report: dict[str, Any]
    part_of: ArrayEntry


class PartManifest(BaseModel):
    """The content of ``part.json``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    part: Count
    part_of_xxh3: str
    """Checksum of the ``part_of.npy`` that the part was cut by: parts of two partitions are told apart."""
    arrays: dict[str, ArrayEntry]


def write_manifest(path: Path, values: dict[str, Any]) -> None:
    """Write a manifest with a checksum of its own."""
    path.write_text(json.dumps(sealed(values), indent=1) + "\n", encoding="utf-8")


def array_of(folder: Path, entry: ArrayEntry, manifest: str) -> StoredArray:
    """Return the array that an entry of the folder's ``manifest`` describes.

    Raises:
        DataError: the entry names a file outside the folder.
    """
    if not entry.file or Path(entry.file).name != entry.file:
        raise DataError(f"{folder / manifest} names a file outside the partition: {entry.file!r}")
    return StoredArray(folder / entry.file, entry, Words("partition", manifest, "partition"))


def read_manifest(path: Path, model: type[_T]) -> _T:
    """Read a manifest, compare its checksum, and check that it is what ``model`` says.

    Raises:
        DataError: there is none, it is damaged, or a newer graphbraid wrote it.
        ResourceError: it cannot be read.
    """
    restore(path.parent)
    try:
        values = json.loads(read_text(path))
    except FileNotFoundError as error:
        what = "no such folder" if not path.parent.exists() else f"it has no {path.name}"
        raise DataError(f"{path.parent} is not a graphbraid partition: {what}") from error
    except OSError as error:
        raise ResourceError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); partition again") from error
    if model is Manifest:
        _check_version(values, path)
    refuse = f"{path} cannot be understood: {{}}; partition again"
    return checked(TypeAdapter(model), unsealed(values, path), lambda text: DataError(refuse.format(text)))


def _check_version(values: Any, path: Path) -> None:
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise DataError(
            f'{path.parent} is not a graphbraid partition: {MANIFEST} does not say "format": "{FORMAT}"'
        )
    version = values.get("version")
    if version != VERSION:
        raise DataError(
            f"{path.parent} has partition version {version}; this graphbraid reads version {VERSION}. "
            "Partition the graph again with this one, or take the graphbraid that wrote it."
        )
