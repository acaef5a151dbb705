"""Sums of a file's blocks, by which a few rows are checked without reading the rest of the file.

The sum of a block of 4096 bytes is its XXH64; the last block may be shorter. Sums take 8 bytes a block, 0.2 %
of the file.
"""

from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from graphbraid.files.opening import open_file

BLOCK_BYTES = 4096
"""csrc/disk/disk_reader.h reads whole blocks of this size."""
_CHUNK = 1 << 24

Sums = npt.NDArray[np.int64]


class BlockSums:
    """The sums of bytes given one part after the other."""

    def __init__(self) -> None:
        self._sums = array("Q")
        self._rest = b""

    def add(self, part: bytes | bytearray | memoryview) -> None:
        """Take in the next bytes."""
        view = memoryview(part)
        if self._rest:
            wanted = BLOCK_BYTES - len(self._rest)
            self._rest += bytes(view[:wanted])
            view = view[wanted:]
            if len(self._rest) < BLOCK_BYTES:
                return
            self._sums.append(sum_of(self._rest))
        whole = len(view) - len(view) % BLOCK_BYTES
        self._sums.extend(sum_of(view[at : at + BLOCK_BYTES]) for at in range(0, whole, BLOCK_BYTES))
        self._rest = bytes(view[whole:])

    def all(self) -> Sums:
        """``(num_blocks,)`` int64, the bits of each sum; nothing is added after this."""
        if self._rest:
            self._sums.append(sum_of(self._rest))
            self._rest = b""
        return np.array(self._sums, np.uint64).view(np.int64)


def sum_of(block: bytes | memoryview) -> int:
    """The sum of one block, in ``[0, 2**64)``."""
    return xxhash.xxh64_intdigest(block)


def of_file(path: Path) -> Sums:
    """The sums of a whole file."""
    sums = BlockSums()
    with open_file(path) as file:
        while part := file.read(_CHUNK):
            sums.add(part)
    return sums.all()
