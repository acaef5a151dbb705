"""NumPy's reading of a header of an ``.npy`` file, from one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import IO, TypeVar

Header = TypeVar("Header")

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
