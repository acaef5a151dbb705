"""Activations: the rows of one layer for all nodes, in memory or in a temporary file."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes, resource_error

_MAPPED_BYTES = 8 << 20
"""Most bytes of the file that are mapped at a time."""
_FAULT_BYTES = 64 << 10
"""Bytes that Linux maps around a page that is read for the first time (``fault_around_bytes``)."""


class Activations:
    """A ``(num_nodes, width)`` float32 matrix that is written and gathered by chunks of rows."""

    def __init__(self, num_nodes: int, width: int, *, in_memory: bool, folder: Path | None) -> None:
        """Allocate the rows.

        Args:
            num_nodes: number of rows.
            width: number of columns.
            in_memory: whether to keep them in memory; otherwise they are in an unnamed file that is deleted
                when the process ends.
            folder: folder of that file. If None, the system's folder for temporary files.

        Raises:
            ResourceError: the disk has no room for the file.
        """
        self.shape = (num_nodes, width)
        self.memory_bytes = num_nodes * width * 4 if in_memory else 0
        self._map: mmap.mmap | None = None
        if in_memory:
            self._rows = torch.empty(self.shape)
        else:
            self._map = _map_new_file(num_nodes * width * 4, folder)
            rows = np.frombuffer(self._map, dtype=np.float32, count=num_nodes * width)
            self._rows = torch.from_numpy(rows.reshape(self.shape))

    def write(self, start: int, rows: Tensor) -> None:
        """Write ``rows`` from row ``start`` on."""
        for part in torch.split(rows, max(1, _MAPPED_BYTES // (self.shape[1] * 4))):
            self._rows[start : start + part.shape[0]] = part
            start += part.shape[0]
            self._leave_to_disk()

    def gather(self, nodes: Tensor) -> Tensor:
        """Return a copy of the rows of ``nodes``."""
        if self._map is None:
            return self._rows.index_select(0, nodes)
        rows = torch.empty(nodes.numel(), self.shape[1])
        step = _MAPPED_BYTES // _FAULT_BYTES
        for start in range(0, nodes.numel(), step):
            part = nodes[start : start + step]
            torch.index_select(self._rows, 0, part, out=rows[start : start + part.numel()])
            self._leave_to_disk()
        return rows

    def _leave_to_disk(self) -> None:
        """Unmap the pages, which count as this process's memory for as long as they are mapped."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _map_new_file(num_bytes: int, folder: Path | None) -> mmap.mmap:
    place = Path(tempfile.gettempdir() if folder is None else folder)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            # Reserved now, since a page that finds no room on the disk later kills the process with SIGBUS.
            os.posix_fallocate(file.fileno(), 0, max(num_bytes, 1))
            return mmap.mmap(file.fileno(), max(num_bytes, 1))
    except OSError as error:
        clear = resource_error(error, place / "activations")
        raise ResourceError(
            f"exact inference needs a temporary file of {format_bytes(num_bytes)} in {place}: "
            f"{clear or error}. Set TMPDIR to a folder on a larger disk, or raise memory_budget_bytes so "
            "that no file is needed."
        ) from error
