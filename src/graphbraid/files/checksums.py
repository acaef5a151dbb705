"""Checksums of what graphbraid writes: xxh3 of 128 bits, made at the speed of memory.

They find damage (a flipped bit, a file cut off, another file's bytes), not ill will: who can write a file can
also write its checksum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from graphbraid.errors import DataError

FIELD = "checksum"
"""Of a JSON file's top level."""

_CHUNK = 1 << 22  # bytes read at a time: they stay in the cache while they are summed
_COMMENT = b"graphbraid xxh3 "
_COMMENT_BYTES = len(_COMMENT) + 32
_ZIP_END = b"PK\x05\x06"  # the last record of a zip file: 22 bytes, the last two count those of the comment
_ZIP_END_BYTES = 22


class Checksum:
    """The checksum of bytes given one part after the other."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def add(self, part: bytes | bytearray | memoryview) -> None:
        """Take in the next bytes."""
        self._state.update(part)

    @property
    def text(self) -> str:
        """32 hexadecimal digits."""
        return self._state.hexdigest()


def of_file(path: str | os.PathLike[str], num_bytes: int | None = None) -> str:
    """The checksum of a file's first ``num_bytes``, or of all of it."""
    with Path(path).open("rb", buffering=0) as file:
        return _of_stream(file, num_bytes)


def _of_stream(file: BinaryIO, num_bytes: int | None) -> str:
    checksum, buffer = Checksum(), memoryview(bytearray(_CHUNK))
    left = num_bytes
    while left is None or left > 0:
        count = file.readinto(buffer if left is None else buffer[:left])  # type: ignore[attr-defined]
        if not count:
            break
        checksum.add(buffer[:count])
        left = None if left is None else left - count
    return checksum.text


# ---- JSON


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values``, which JSON can hold, with their checksum as one more field."""
    return {**values, FIELD: _of_values(values)}


def unsealed(values: Any, path: str | os.PathLike[str]) -> Any:
    """What :func:`sealed` was given, as JSON reads it back; without a checksum, ``values`` as they are.

    Raises:
        DataError: the checksum is not that of the values; names the file.
    """
    if not isinstance(values, dict) or FIELD not in values:
        return values
    rest = {name: value for name, value in values.items() if name != FIELD}
    if values[FIELD] != _of_values(rest):
        raise DataError(
            f"{path} has changed since it was written: its checksum is not that of its content. Write it "
            f"again, or, if you changed it by hand, take its field {FIELD!r} out."
        )
    return rest


def _of_values(values: Mapping[str, Any]) -> str:
    """By content: spaces and the order of fields do not matter."""
    as_read = json.loads(json.dumps(values))
    text = json.dumps(as_read, sort_keys=True, separators=(",", ":"))
    checksum = Checksum()
    checksum.add(text.encode())
    return checksum.text


# ---- zip files


def seal_zip(path: Path) -> None:
    """Put the checksum of a zip file into its comment, the file's very end, which other readers pass over."""
    with path.open("r+b", buffering=0) as file:
        end = file.seek(-_ZIP_END_BYTES, os.SEEK_END)
        record = file.read(_ZIP_END_BYTES)
        assert record[:4] == _ZIP_END, "the zip file has a comment already"
        assert record[-2:] == b"\0\0", "the zip file has a comment already"
        file.seek(end + _ZIP_END_BYTES - 2)
        file.write(_COMMENT_BYTES.to_bytes(2, "little"))
        file.seek(0)
        checksum = _of_stream(file, None)
        file.seek(0, os.SEEK_END)
        file.write(_COMMENT + checksum.encode())


def check_zip(path: Path) -> bool:
    """Whether a zip file carries a checksum, which then is right.

    Raises:
        DataError: the checksum is not that of the file; names it.
    """
    size = path.stat().st_size
    if size < _COMMENT_BYTES:
        return False
    with path.open("rb", buffering=0) as file:
        file.seek(size - _COMMENT_BYTES)
        comment = file.read(_COMMENT_BYTES)
        if not comment.startswith(_COMMENT):
            return False
        file.seek(0)
        if _of_stream(file, size - _COMMENT_BYTES).encode() != comment[len(_COMMENT) :]:
            raise DataError(f"{path} is damaged: it has changed since it was written (its checksum differs).")
    return True
