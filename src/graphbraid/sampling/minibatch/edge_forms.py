"""Conversion of a sample's edges to the forms that models take: ``edge_index`` and ``adj_t``."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from graphbraid.sampling.sample import SampledEdges


def edge_index_of(edges: SampledEdges) -> Tensor:
    """Return the edges as ``(2, num_edges)`` int64 local ids: sources in row 0, destinations in row 1."""
    rows = torch.arange(edges.indptr.numel() - 1, device=edges.indptr.device)
    out = torch.empty((2, edges.indices.numel()), dtype=torch.int64, device=rows.device)
    out[0] = edges.indices
    out[1] = torch.repeat_interleave(rows, edges.indptr.diff(), output_size=out.shape[1])
    return out


def adj_t_of(like: Any, edge_index: Tensor, values: Tensor | None, num_nodes: int) -> Any:
    """Return the transposed adjacency matrix of a sample: a row per destination, a column per source.

    Args:
        like: the matrix of the whole graph, whose kind the result has: a torch sparse tensor in layout CSR,
            CSC or COO, or a ``torch_sparse.SparseTensor``; or one of these layouts, with ``values``.
        edge_index: ``(2, num_edges)`` int64, sorted by destination.
        values: ``(num_edges,)`` values. If None, all are 1, or the matrix has none if its kind allows that.
        num_nodes: number of nodes of the sample.
    """
    src, dst = edge_index
    layout = like if isinstance(like, torch.layout) else getattr(like, "layout", None)
    if layout is None:
        sizes = (num_nodes, num_nodes)
        return type(like)(
            row=dst, col=src, value=values, sparse_sizes=sizes, is_sorted=False, trust_data=True
        )
    if values is None:
        stored = like._values() if layout == torch.sparse_coo else like.values()
        values = stored.new_ones(src.numel())
    size = (num_nodes, num_nodes)
    if layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(edge_index.flip(0), values, size, check_invariants=False)
    by_row = layout == torch.sparse_csr
    outer, inner = (dst, src) if by_row else (src, dst)
    order = torch.argsort(outer * num_nodes + inner, stable=True)
    ends = torch.zeros(num_nodes + 1, dtype=torch.int64, device=src.device)
    torch.cumsum(torch.bincount(outer, minlength=num_nodes), 0, out=ends[1:])
    make = torch.sparse_csr_tensor if by_row else torch.sparse_csc_tensor
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CS. tensor support is in beta state")
        return make(ends, inner[order], values[order], size, check_invariants=False)
