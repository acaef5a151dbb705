"""Which file, and which byte of it, memory is mapped from: for those who read the file itself instead.

An array that is mapped need not travel to another process: there it is mapped again (:func:`sent`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.errors import DataError


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
        mapping: whose end is that of the memory.
        address: of the file's first byte.
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
    for begin, mapping in list(_MAPPINGS.items()):
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
        """Map it; changes to it stay in this process.

        Raises:
            DataError: the file is not there any more, or another has its name.
        """
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
