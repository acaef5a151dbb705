"""Blocks of a graph's rows: of one in memory as views, of a store's read from its files, not mapped.

Pages of a mapping count as a process's memory until the system takes them back; what is read into a buffer of
fixed size does not grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphbraid.errors import DataError, ResourceError
from graphbraid.files import mapped
from graphbraid.graph.csc import Csc

ROW_BYTES = 96
"""Bytes of a row in a block: its place in ``indptr``, and what is computed of it meanwhile, rounded up."""


@dataclass(frozen=True, eq=False, slots=True)
class RowBlock:
    """Consecutive nodes with their in-edges."""

    first: int
    """The first of the nodes."""
    indptr: Tensor
    """``(num_rows + 1,)`` int64, from 0 on."""
    indices: Tensor
    """``(num_edges,)`` sources."""


def row_blocks(csc: Csc, block_bytes: int) -> Iterator[RowBlock]:
    """Yield the rows of a graph in their order, in blocks of about ``block_bytes`` or of a single node.

    Raises:
        DataError: the file that the graph is mapped from is another by now, or shorter.
        ResourceError: it cannot be read.
    """
    rows, columns = _Array(csc.indptr), _Array(csc.indices)
    most_rows = max(1, block_bytes // (2 * ROW_BYTES))
    most_edges = max(1, block_bytes // (2 * csc.indices.element_size()))
    first = 0
    while first < csc.num_dst:
        indptr = rows.read(first, min(first + most_rows, csc.num_dst) + 1)
        fitting = int(torch.searchsorted(indptr, int(indptr[0]) + most_edges, right=True)) - 1
        indptr = indptr[: max(fitting, 1) + 1]
        yield RowBlock(first, indptr - indptr[0], columns.read(int(indptr[0]), int(indptr[-1])))
        first += indptr.numel() - 1


class _Array:
    """A 1-d tensor, read in ranges: from its file if it is mapped from one."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._mapped = mapped.find(values.data_ptr(), values.nbytes) if values.nbytes else None

    def read(self, begin: int, end: int) -> Tensor:
        if self._mapped is None:
            return self._values[begin:end]
        path, size = self._mapped.path, self._values.element_size()
        dtype = torch.empty(0, dtype=self._values.dtype).numpy().dtype
        try:
            if mapped.file_id_of(path) != self._mapped.file_id:
                raise DataError(f"{path} is another file than the one that was opened; open the store again")
            found = np.fromfile(path, dtype, end - begin, offset=self._mapped.offset + begin * size)
        except OSError as error:
            raise ResourceError(f"{path} cannot be read: {error.strerror}") from error
        return _whole(torch.from_numpy(found), end - begin, path)


def _whole(found: Tensor, count: int, path: Path) -> Tensor:
    if found.numel() != count:
        raise DataError(f"{path} has become shorter since it was opened; store the graph again")
    return found
