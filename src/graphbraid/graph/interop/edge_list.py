"""Conversion of a Graph from and to edge lists, tensors or NumPy arrays of shape ``(2, num_edges)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.arguments import as_flag
from graphbraid.errors import DataError
from graphbraid.graph.array_checks import check_edge_attr
from graphbraid.graph.csc import coo_to_csc
from graphbraid.graph.interop.convert import (
    as_edge_index,
    as_features,
    as_labels,
    as_num_nodes,
    as_splits,
    as_tensor,
)
from graphbraid.graph.scans import check_weight
from graphbraid.graph.sparse_features import FEATURE_DTYPES

if TYPE_CHECKING:
    from graphbraid.graph import Graph


def graph_from_edge_index(
    made: type[Graph],
    edge_index: Any,
    num_nodes: int | None = None,
    *,
    x: Any = None,
    y: Any = None,
    splits: Mapping[str, Any] | None = None,
    edge_weight: Any = None,
    edge_attr: Any = None,
    name: str = "",
    keep_edge_id: bool = True,
) -> Graph:
    """Implement :meth:`graphbraid.Graph.from_edge_index`, which describes all but ``made``, its class."""
    src, dst = as_edge_index(edge_index)
    features, labels = as_features(x), as_labels(y)
    if num_nodes is None:
        num_nodes = _count_nodes(src, dst, features, labels)
    num_nodes = as_num_nodes(num_nodes)
    weight, attr = as_weight(edge_weight, src.numel()), as_edge_attr(edge_attr, src.numel())
    needs_perm = as_flag(keep_edge_id, "keep_edge_id") or weight is not None or attr is not None
    csc, perm = coo_to_csc(src, dst, num_nodes, num_nodes, keep_perm=needs_perm)
    if weight is not None:
        csc.weight = weight if perm is None else weight[perm]
    return made(
        csc=csc,
        edge_id=perm if keep_edge_id else None,
        edge_attr=attr if attr is None or perm is None else attr.index_select(0, perm),
        x=features,
        y=labels,
        splits=as_splits(splits, num_nodes),
        name=name,
    )


def edge_index_of(graph: Graph, *, original_order: bool = False) -> Tensor:
    """Implement :meth:`graphbraid.Graph.to_edge_index`."""
    csc = graph.csc
    edge_index = torch.empty(2, csc.num_edges, dtype=torch.int64)
    place = original_positions(graph) if original_order else None
    if place is None:
        edge_index[0], edge_index[1] = csc.indices, csc.destinations()
    else:
        edge_index[0, place] = csc.indices.long()
        edge_index[1, place] = csc.destinations().long()
    return edge_index


def original_positions(graph: Graph) -> Tensor | None:
    """Return ``graph.edge_id`` if it names each edge once, so that the original order is known, else None."""
    ids = graph.edge_id
    if ids is None or not ids.numel() or int(ids.min()) < 0 or int(ids.max()) >= ids.numel():
        return None
    seen = torch.zeros(ids.numel(), dtype=torch.bool)
    seen[ids] = True
    return ids if bool(seen.all()) else None


def _count_nodes(src: Tensor, dst: Tensor, x: Any, y: Tensor | None) -> int:
    """Return the number of rows of the features or labels, else the largest id plus one."""
    if x is not None:
        return int(x.shape[0])
    if y is not None:
        return y.shape[0]
    return 1 + max(int(src.max()), int(dst.max())) if src.numel() else 0


def as_edge_attr(edge_attr: Any, num_edges: int) -> Tensor | None:
    """Return edge features as a matrix of floats; a vector of one number per edge becomes a column.

    Raises:
        DataError: they cannot be such a matrix, or do not have one row per edge.
    """
    if edge_attr is None:
        return None
    attr = as_tensor(edge_attr, "edge_attr")
    if attr.layout == torch.strided and attr.ndim == 1:
        attr = attr.unsqueeze(1)
    attr = attr if attr.dtype in FEATURE_DTYPES else attr.float()
    check_edge_attr(attr, num_edges)
    return attr


def as_weight(edge_weight: Any, num_edges: int) -> Tensor | None:
    """Return edge weights as float32; a column of one number per edge becomes a vector.

    Raises:
        DataError: they are not one finite number per edge.
    """
    if edge_weight is None:
        return None
    weight = as_tensor(edge_weight, "edge_weight")
    if weight.ndim == 2 and weight.shape[1] == 1:
        weight = weight[:, 0]
    if weight.shape != (num_edges,):
        raise DataError(f"edge_weight must have shape ({num_edges},); got {tuple(weight.shape)}")
    found = weight.float().contiguous()
    check_weight(found, num_edges, "edge_weight", "edge_weight")
    return found
