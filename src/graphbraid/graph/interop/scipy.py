"""Conversion of a Graph from and to ``scipy.sparse``: entry (u, v) of the matrix is the edge u -> v."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc, narrowed
from graphbraid.graph.interop.convert import (
    as_features,
    as_labels,
    as_splits,
    as_tensor,
    graph_from_edge_index,
)
from graphbraid.graph.sparse_features import as_shared, keep_shared, read_only
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph import Graph


@typed
def graph_from_scipy(
    made: type[Graph],
    matrix: Any,
    *,
    x: Any = None,
    y: Any = None,
    splits: Mapping[str, Any] | None = None,
    weighted: bool | None = None,
    name: str = "",
) -> Graph:
    """Make a graph from a square ``scipy.sparse`` matrix, whose stored entry (u, v) is the edge u -> v.

    A CSC matrix with sorted columns shares its indices and float32 values; others are converted, and
    ``edge_id`` then holds positions in ``matrix.tocoo()`` (in ``matrix.data`` for a CSC matrix). What is
    shared becomes read-only, also for the matrix: kernels read by it.

    Args:
        made: Class of the graph.
        matrix: Sparse real matrix; duplicates and explicit zeros are edges too.
        x: As in :meth:`from_edge_index`.
        y: As in :meth:`from_edge_index`.
        splits: As in :meth:`from_edge_index`.
        weighted: Whether the values are edge weights. If None, they are unless bool or all 1.
        name: Name of the graph in reports.

    Raises:
        DataError: the matrix is not square or not real, or names the array that does not fit.
    """
    if not hasattr(matrix, "tocoo") or isinstance(matrix, type):
        raise DataError(f"matrix must be a scipy.sparse matrix; got {shown(matrix)}")
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"an adjacency matrix must be square; got shape {tuple(matrix.shape)}")
    num_nodes = int(matrix.shape[0])
    if matrix.format != "csc":
        coo = matrix.tocoo()
        return graph_from_edge_index(
            made,
            (coo.row, coo.col),
            num_nodes,
            x=x,
            y=y,
            splits=splits,
            edge_weight=_weight_of(coo.data, weighted),
            name=name,
        )
    csc = Csc(
        as_shared(matrix.indptr.astype(np.int64, copy=False)),
        as_tensor(matrix.indices, "indices"),
        num_nodes,
        _weight_of(matrix.data, weighted),
    )
    csc, edge_id = narrowed(csc).sort_rows()
    keep_shared(matrix, csc.indptr, csc.indices, csc.weight)
    features, labels = as_features(x), as_labels(y)
    return made(
        csc=csc, edge_id=edge_id, x=features, y=labels, splits=as_splits(splits, num_nodes), name=name
    )


def graph_to_scipy(graph: Graph) -> Any:
    """Implement :meth:`graphbraid.Graph.to_scipy`."""
    from scipy.sparse import csc_matrix

    csc, num_nodes = graph.csc, graph.num_nodes
    weight = torch.ones(csc.num_edges) if csc.weight is None else csc.weight
    parts = read_only(weight), read_only(csc.indices), read_only(csc.indptr)
    return csc_matrix(parts, shape=(num_nodes, num_nodes))


def _weight_of(data: Any, weighted: bool | None) -> Tensor | None:
    """Return values as float32 weights; by default only if they are numbers and not all 1."""
    if data.dtype.kind not in "fiub":
        raise DataError(f"an adjacency matrix must hold real numbers; got {data.dtype}")
    if weighted is None:
        weighted = data.dtype.kind != "b" and not bool(np.all(data == 1))
    return as_tensor(data, "weights").float() if weighted else None
