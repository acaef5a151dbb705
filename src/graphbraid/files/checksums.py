"""Checksums of graphbraid's files: 128-bit xxh3, computed at the speed of memory.

They detect damage (a flipped bit, a truncated file, another file's bytes), not tampering: whoever can write a
file can also write its checksum.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from graphbraid.errors import DataError
from graphbraid.files.opening import open_file
from graphbraid.files.progress import stage

FIELD = "checksum"
"""Name of the field at the top level of a JSON file that holds its checksum."""

_CHUNK = 1 << 22  # bytes read at a time, few enough to stay in the processor's cache
_COMMENT = b"graphbraid xxh3 "
_COMMENT_BYTES = len(_COMMENT) + 32
_ZIP_END = b"PK\x05\x06"  # signature of a zip file's last record: 22 bytes, ending in the comment's length
_ZIP_END_BYTES = 22


def of_file(path: str | os.PathLike[str], num_bytes: int | None = None) -> str:
    """Return the checksum of a file's first ``num_bytes`` bytes. If None, of the whole file."""
    with open_file(path) as file:
        return _of_stream(file, path, num_bytes)


def _of_stream(file: BinaryIO, path: str | os.PathLike[str], num_bytes: int | None) -> str:
    checksum, buffer = xxhash.xxh3_128(), memoryview(bytearray(_CHUNK))
    left = num_bytes
    total = os.fstat(file.fileno()).st_size if num_bytes is None else num_bytes
    with stage(f"checking {Path(path).name}", total) as advance:
        while left is None or left > 0:
            count = file.readinto(buffer if left is None else buffer[:left])  # type: ignore[attr-defined]
            if not count:
                break
            checksum.update(buffer[:count])
            left = None if left is None else left - count
            advance(count)
    return checksum.hexdigest()


# ---- JSON


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values``, which JSON must be able to hold, with their checksum as an additional field."""
    return {**values, FIELD: _of_values(values)}


def unsealed(values: Any, path: str | os.PathLike[str]) -> Any:
    """Return ``values`` without the checksum of :func:`sealed`, checking it if it is there.

    Raises:
        DataError: the checksum does not match the values; names the file.
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
    """Return the checksum of the content, so that whitespace and the order of fields do not matter."""
    as_read = json.loads(json.dumps(values))
    text = json.dumps(as_read, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())


# ---- zip files


def seal_zip(path: Path) -> None:
    """Write a zip file's checksum into its comment, the very end of the file, which other readers ignore."""
    with path.open("r+b", buffering=0) as file:
        end = file.seek(-_ZIP_END_BYTES, os.SEEK_END)
        record = file.read(_ZIP_END_BYTES)
        assert record[:4] == _ZIP_END, "the zip file has a comment already"
        assert record[-2:] == b"\0\0", "the zip file has a comment already"
        file.seek(end + _ZIP_END_BYTES - 2)
        file.write(_COMMENT_BYTES.to_bytes(2, "little"))
        file.seek(0)
        checksum = _of_stream(file, path, None)
        file.seek(0, os.SEEK_END)
        file.write(_COMMENT + checksum.encode())


def check_zip(path: Path) -> bool:
    """Check a zip file's checksum and return whether it carries one; DataError if it differs."""
    size = path.stat().st_size
    if size < _COMMENT_BYTES:
        return False
    with open_file(path) as file:
        file.seek(size - _COMMENT_BYTES)
        comment = file.read(_COMMENT_BYTES)
        if not comment.startswith(_COMMENT):
            return False
        file.seek(0)
        if _of_stream(file, path, size - _COMMENT_BYTES).encode() != comment[len(_COMMENT) :]:
            raise DataError(f"{path} is damaged: it has changed since it was written (its checksum differs).")
    return True
