"""Plain-PyTorch references of the list kernels in ``csrc/graph/reorder.cpp``, with the same arguments."""

# ruff: noqa: PLR0917 - the kernels take their arguments by position
from __future__ import annotations

import torch
from torch import Tensor


def count_lists(indptr: Tensor, rows: Tensor, out_indptr: Tensor) -> None:
    """Write the ``indptr`` of the lists of ``rows``, one after another.

    Args:
        indptr: ``(num_nodes + 1,)`` int64, of the lists as stored.
        rows: ``(num_rows,)`` int32 or int64, the nodes whose lists are joined.
        out_indptr: ``(num_rows + 1,)`` int64, overwritten.
    """
    out_indptr[0] = 0
    torch.cumsum(indptr.diff()[rows.long()], 0, out=out_indptr[1:])


def rename_lists(
    indptr: Tensor,
    indices: Tensor,
    rank: Tensor,
    rows: Tensor,
    out_indptr: Tensor,
    out: Tensor,
    rising: bool,
) -> None:
    """Write the sources of nodes' in-edges by their new ids.

    Args:
        indptr: ``(num_nodes + 1,)`` int64, of a CSC.
        indices: ``(num_edges,)`` int32 or int64, in ``[0, num_nodes)``.
        rank: ``(num_nodes,)`` int32 or int64, the new id of each node.
        rows: ``(num_rows,)`` the nodes.
        out_indptr: ``(num_rows + 1,)`` int64, as written by :func:`count_lists`.
        out: ``(out_indptr[-1],)`` in the dtype of ``indices``, overwritten.
        rising: Whether to sort each list, instead of keeping the stored order.
    """
    by_rank = (indices, rank) if rising else (None, None)
    out.copy_(rank[indices[_places(indptr, rows, out_indptr, *by_rank)].long()])


def move_lists(
    indptr: Tensor,
    values: Tensor,
    rows: Tensor,
    out_indptr: Tensor,
    out: Tensor,
    indices: Tensor | None,
    rank: Tensor | None,
) -> None:
    """Write the values of the list entries of nodes.

    Args:
        indptr: ``(num_nodes + 1,)`` int64.
        values: ``(num_values, width)``, one row for each entry of the lists.
        rows: ``(num_rows,)`` the nodes.
        out_indptr: ``(num_rows + 1,)`` int64, as written by :func:`count_lists`.
        out: ``(out_indptr[-1], width)`` overwritten.
        indices: ``(num_values,)`` sources of the edges if the lists were sorted by new id, else None.
        rank: ``(num_nodes,)`` the new id of each node; given together with ``indices``.
    """
    torch.index_select(values, 0, _places(indptr, rows, out_indptr, indices, rank), out=out)


def _places(
    indptr: Tensor, rows: Tensor, out_indptr: Tensor, indices: Tensor | None, rank: Tensor | None
) -> Tensor:
    """Return the position in the stored lists of each output entry."""
    counts = out_indptr.diff()
    places = torch.repeat_interleave(indptr[rows.long()] - out_indptr[:-1], counts)
    places += torch.arange(places.numel(), device=places.device)
    if indices is None or rank is None:
        return places
    by_id = rank[indices[places].long()].argsort(stable=True)
    row = torch.repeat_interleave(torch.arange(rows.numel(), device=rows.device), counts)
    return places[by_id[row[by_id].argsort(stable=True)]]
