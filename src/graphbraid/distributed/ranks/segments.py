"""Segments: memory of one rank that others on its machine read."""

from __future__ import annotations

import mmap
import os

import torch
from torch import Tensor

from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes

_LEAST_BYTES = 1 << 12


class Segment:
    """Memory that belongs to no file, of one rank, which others open by its descriptor.

    Args:
        number: by which it is called.
        nbytes: its size.

    Raises:
        OSError: the system gives none.
    """

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        """The number by which its rank calls it."""
        self.descriptor = os.memfd_create("graphbraid", os.MFD_CLOEXEC)
        """What opens it."""
        os.ftruncate(self.descriptor, nbytes)
        self.memory = mapped(self.descriptor)
        """All of it, ``(nbytes,)`` uint8."""
        self.readers: set[int] = set()
        """Ranks that have not read yet what lies in it."""
        self.known_to: set[int] = set()
        """Ranks that have its descriptor."""

    def close(self) -> None:
        """Let go of the descriptor; the memory goes with the last tensor."""
        os.close(self.descriptor)


class Segments:
    """The segments of a rank, each of which is used again once all have read what was in it."""

    def __init__(self) -> None:
        self._all: list[Segment] = []

    def take(self, nbytes: int) -> Segment:
        """Return a segment of ``nbytes`` at least that nobody reads; a new one if there is none.

        Raises:
            ResourceError: there is no memory for it.
        """
        free = [s for s in self._all if not s.readers and s.memory.numel() >= nbytes]
        if free:
            return min(free, key=lambda s: s.memory.numel())
        size = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())  # sizes of batches differ: few segments
        try:
            self._all.append(Segment(len(self._all), size))
        except OSError as error:
            raise ResourceError(
                f"a rank has no {format_bytes(size)} of memory to share with the others on its machine: "
                f"{error}. Start the ranks with GRAPHBRAID_RANK_MEMORY=0, so that they send what they share."
            ) from error
        return self._all[-1]

    def was_read(self, number: int, reader: int) -> None:
        """Note that a rank has read what lay in a segment."""
        self._all[number].readers.discard(reader)

    def close(self) -> None:
        """Let go of all."""
        for segment in self._all:
            segment.close()
        self._all.clear()


def mapped(descriptor: int) -> Tensor:
    """Return the memory of a descriptor as ``(nbytes,)`` uint8.

    Raises:
        OSError: it cannot be mapped.
    """
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)
