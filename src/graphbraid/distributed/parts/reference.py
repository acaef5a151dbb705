"""Plain-PyTorch twins, with the same arguments, of the kernels in ``csrc/graph/partition.cpp`` that cut."""

# ruff: noqa: PLR0917, ARG001 - the kernels take their arguments by position

from __future__ import annotations

import torch
from torch import Tensor


def count_split(
    indptr: Tensor,
    indices: Tensor,
    part_of: Tensor,
    rows: Tensor,
    part: int,
    local_indptr: Tensor,
    remote_indptr: Tensor,
    is_halo: Tensor,
) -> None:
    """Count the in-edges of a part's nodes that come from its own nodes and from others'.

    Args:
        indptr: ``(num_nodes + 1,)`` int64, of a CSC.
        indices: ``(num_edges,)`` int32 or int64, in ``[0, num_nodes)``.
        part_of: ``(num_nodes,)`` int32.
        rows: ``(num_rows,)`` int64, the nodes of the part.
        part: Its number.
        local_indptr: ``(num_rows + 1,)`` int64, overwritten.
        remote_indptr: ``(num_rows + 1,)`` int64, overwritten.
        is_halo: ``(num_nodes,)`` uint8, set to 1 for each source of another part.
    """
    edges, row = _edges_of(indptr, rows)
    sources = indices[edges].long()
    is_local = part_of[sources] == part
    is_halo[sources[~is_local]] = 1
    for ends, counted in ((local_indptr, is_local), (remote_indptr, ~is_local)):
        ends[0] = 0
        torch.cumsum(torch.bincount(row[counted], minlength=rows.numel()), 0, out=ends[1:])


def write_split(
    indptr: Tensor,
    indices: Tensor,
    part_of: Tensor,
    rows: Tensor,
    part: int,
    column: Tensor,
    local_indptr: Tensor,
    remote_indptr: Tensor,
    local: Tensor,
    remote: Tensor,
    local_edge: Tensor | None,
    remote_edge: Tensor | None,
) -> None:
    """Write a part's local and remote edges.

    Args:
        indptr: ``(num_nodes + 1,)`` int64, of a CSC.
        indices: ``(num_edges,)`` int32 or int64, in ``[0, num_nodes)``.
        part_of: ``(num_nodes,)`` int32.
        rows: ``(num_rows,)`` int64, the nodes of the part.
        part: Its number.
        column: ``(num_nodes,)``, the local row of each of these, the halo row of each of their sources of
            another part; in the dtype of ``indices``.
        local_indptr: ``(num_rows + 1,)`` int64, as :func:`count_split` writes it.
        remote_indptr: ``(num_rows + 1,)`` int64.
        local: ``(local_indptr[-1],)`` in the dtype of ``indices``, overwritten.
        remote: ``(remote_indptr[-1],)``, overwritten.
        local_edge: ``(local_indptr[-1],)`` int64, overwritten, or None.
        remote_edge: ``(remote_indptr[-1],)`` int64, overwritten, or None.
    """
    edges, _ = _edges_of(indptr, rows)
    is_local = part_of[indices[edges].long()] == part
    for kept, columns, positions in ((is_local, local, local_edge), (~is_local, remote, remote_edge)):
        columns.copy_(column[indices[edges[kept]].long()])
        if positions is not None:
            positions.copy_(edges[kept])


def _edges_of(indptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the rows' edges, and the row of each."""
    counts = indptr.diff()[rows]
    row = torch.arange(rows.numel()).repeat_interleave(counts)
    before = counts.cumsum(0) - counts
    return torch.arange(row.numel()) - before[row] + indptr[rows][row], row
