"""Neighbour partitions: slices of a node's list of neighbours, each the work of one warp (MGG)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.graph.csc import Csc
from graphbraid.signatures import typed


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class NeighborPartitions:
    """The rows of an adjacency in slices of equal size, row by row."""

    row: Tensor
    """``(num_slices,)`` destination of each slice, never falling, in the dtype of the columns."""
    indptr: Tensor
    """``(num_slices + 1,)`` int64: slice i holds edges ``[indptr[i], indptr[i + 1])``, at least one."""
    first: Tensor
    """``(num_rows + 1,)`` int64: row v has slices ``[first[v], first[v + 1])``, none where it has no edge."""
    size: int
    """Number of edges of each slice but a row's last."""

    @property
    def num_slices(self) -> int:
        """Number of slices."""
        return self.row.numel()


@typed
def neighbor_partitions(csc: Csc, size: int) -> NeighborPartitions:
    """Cut each row of an adjacency into slices of ``size`` edges, its last one as many as are left.

    The workload-aware neighbour split of Wang et al., "MGG": a hub is the work of many warps. No slice holds
    edges of two rows, so that a slice has one partial sum.

    Args:
        csc: A local or a remote graph.
        size: Edges of a slice, at least 1.

    Raises:
        ConfigError: ``size`` is less than 1.
    """
    as_count(size, "size", least=1)
    degrees = csc.degrees()
    first = torch.zeros(csc.num_dst + 1, dtype=torch.int64)
    torch.cumsum((degrees + size - 1) // size, 0, out=first[1:])
    counts = first.diff()
    row = torch.arange(csc.num_dst, dtype=csc.indices.dtype).repeat_interleave(counts)
    number = torch.arange(row.numel()) - first[:-1].repeat_interleave(counts)
    begin = csc.indptr[:-1].repeat_interleave(counts) + number * size
    indptr = torch.cat([begin, csc.indptr[-1:]])
    return NeighborPartitions(row=row, indptr=indptr, first=first, size=size)
