"""Arrays in files: headers of ``.npy`` files, and the file and the byte that memory is mapped from.

An array that is mapped need not travel to another process: there it is mapped again (:func:`sent`).
"""

import io
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from graphbraid.errors import DataError

Header = TypeVar("Header")

_NPY_PREFIX = 10  # magic, version, and two bytes for the length of what follows up to the values
_LONGEST_HEADER = 512  # bytes of it without the spaces at its end
_alone = threading.Lock()


def read_alone(read: Callable[[IO[bytes]], Header], stream: IO[bytes]) -> Header:
    """Return ``read(stream)``, with a reader of ``numpy.lib.format`` and a seekable stream.

    NumPy parses headers as Python, and Python 3.11 may lose count of its depth and raise SystemError where
    several threads parse at once: ours take turns, and beside another library's it is tried again.
    """
    begin = stream.tell()
    with _alone:
        for _ in range(3):
            try:
                return read(stream)
            except SystemError:
                stream.seek(begin)
        return read(stream)


def header_bytes(header: dict[str, Any], least: int) -> bytes:
    """The header of a ``.npy`` file of format 1.0, with spaces before its end up to ``least`` bytes."""
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, header)
    content = made.getvalue()
    missing = max(least - len(content), 0)
    length = (len(content) - _NPY_PREFIX + missing).to_bytes(2, "little")
    return content[: _NPY_PREFIX - 2] + length + content[_NPY_PREFIX:-1] + b" " * missing + b"\n"


def without_padding(file: io.BufferedReader) -> io.BytesIO:
    """The header's length and text from where ``file`` stands, without the spaces that fill a block.

    If something else were among the spaces, NumPy's parser would take seconds to refuse it.

    Raises:
        ValueError: the text is longer than any array's.
    """
    text = file.read(int.from_bytes(file.read(2), "little")).rstrip(b" \n")
    if len(text) > _LONGEST_HEADER:
        raise ValueError(f"{len(text)} bytes before the spaces at its end")
    return io.BytesIO((len(text) + 1).to_bytes(2, "little") + text + b"\n")


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the dtype for the ``.npy`` header; bfloat16, which NumPy lacks, is stored as int16."""
    if dtype == torch.bfloat16:
        return np.dtype("<i2")
    return np.dtype(str(dtype).removeprefix("torch.")).newbyteorder("<")


@dataclass(frozen=True, slots=True)
class Mapped:
    """A part of a file that is mapped."""

    path: Path
    offset: int
    """Place of the part's first byte in the file."""
    file_id: tuple[int, int]
    """Device and inode of the file that is mapped; another may have its name by now."""
    sums: Callable[[], Any] | None = None
    """Gives the sums of the file's blocks (:mod:`.block_sums`); None where it has none."""


@dataclass(frozen=True, slots=True)
class _Mapping:
    num_bytes: int
    path: Path
    file_id: tuple[int, int]
    sums: Callable[[], Any] | None


_MAPPINGS: dict[int, _Mapping] = {}
"""The mappings by the address of their first byte."""


def remember(
    mapping: object, address: int, num_bytes: int, path: Path, sums: Callable[[], Any] | None = None
) -> None:
    """Note that ``num_bytes`` from ``address`` on are a file's, from its first byte, while ``mapping`` lives.

    Args:
        mapping: object that keeps the memory mapped; with it the note ends.
        address: address of the file's first byte.
        num_bytes: mapped from there on.
        path: the file.
        sums: gives the sums of its blocks, if it has some.
    """
    _MAPPINGS[address] = _Mapping(num_bytes, path.absolute(), file_id_of(path), sums)
    weakref.finalize(mapping, _MAPPINGS.pop, address, None)


def file_id_of(path: Path) -> tuple[int, int]:
    """Device and inode of the file that has this name."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def find(address: int, num_bytes: int) -> Mapped | None:
    """The file's part that lies in ``num_bytes`` from ``address`` on; None where no file was mapped there."""
    for begin, mapping in _MAPPINGS.copy().items():  # one step: collecting garbage may remove mappings
        offset = address - begin
        if offset >= 0 and offset + num_bytes <= mapping.num_bytes:
            return Mapped(mapping.path, offset, mapping.file_id, mapping.sums)
    return None


@dataclass(frozen=True, slots=True)
class Sent:
    """An array that another process maps from its file."""

    path: Path
    offset: int
    file_id: tuple[int, int]
    shape: tuple[int, ...]
    dtype: torch.dtype

    def received(self) -> Tensor:
        """Map it; changes to it stay in this process; DataError if the file is gone or another one."""
        try:
            is_same = file_id_of(self.path) == self.file_id
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({error.strerror})") from error
        if not is_same:
            raise DataError(f"{self.path} was replaced since it was mapped; open the store again")
        numbers = torch.empty(0, dtype=self.dtype).numpy().dtype
        return torch.from_numpy(np.memmap(self.path, numbers, "c", self.offset, self.shape))


def sent(array: Tensor) -> Tensor | Sent:
    """Return an array's form for another process: the file that it is mapped from, or itself."""
    found = find(array.data_ptr(), array.nbytes) if array.numel() and array.is_contiguous() else None
    if found is None or array._version or array.dtype == torch.bfloat16:  # which NumPy lacks
        return array
    return Sent(found.path, found.offset, found.file_id, tuple(array.shape), array.dtype)


def received(array: Tensor | Sent) -> Tensor:
    """The array that :func:`sent` gave, in the process that got it."""
    return array.received() if isinstance(array, Sent) else array
