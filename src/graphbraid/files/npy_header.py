"""Headers of ``.npy`` files: written to fill a block, and read by NumPy from one thread at a time."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import IO, Any, TypeVar

import numpy as np
import torch

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

    With something else among them NumPy's parser would take seconds to refuse it.

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
