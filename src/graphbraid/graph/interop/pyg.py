"""Conversion of a Graph from and to ``torch_geometric.data.Data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph.interop.convert import as_features, as_labels, is_plain
from graphbraid.graph.interop.edge_list import graph_from_edge_index
from graphbraid.graph.interop.hetero import graph_from_hetero_data, graph_to_hetero_data
from graphbraid.graph.interop.pyg_parts import (
    data_class,
    edge_features_of,
    edges_of,
    features_of,
    is_hetero,
    left_out,
    splits_of,
    to_torch_csr,
    weight_name,
    weight_of,
)
from graphbraid.graph.sparse_features import FEATURE_DTYPES, SparseFeatures

if TYPE_CHECKING:
    from graphbraid.graph import Graph


def graph_from_pyg(
    made: type[Graph],
    data: Any,
    *,
    edge_weight: str | None = "auto",
    split: int = 0,
    name: str = "",
    edge_features: bool = True,
) -> Graph:
    """Implement :meth:`graphbraid.Graph.from_pyg`, which describes all but ``made``, its class.

    With ``edge_features`` False, edge features are left out, which saves copying them to the graph's order.
    """
    if is_hetero(data):
        return graph_from_hetero_data(made, data, edge_weight=edge_weight, split=split, name=name)
    edge_index, weight = edges_of(data)
    if edge_index is None:
        raise DataError("data holds no edges: neither edge_index nor adj_t is set")
    num_nodes = int(data.num_nodes)
    weight = weight_of(data, edge_weight) if weight is None else weight
    attr = None if edge_weight == "edge_attr" else edge_features_of(data)
    graph = graph_from_edge_index(
        made,
        edge_index,
        num_nodes,
        x=as_features(features_of(data)),
        y=as_labels(data.get("y")),
        splits=splits_of(data, num_nodes, split),
        edge_weight=weight,
        edge_attr=attr if edge_features else None,
        name=name,
    )
    called = weight_name(data, edge_weight, weight)
    return graph.replace(weight_name=called, left_out=left_out(data, edge_weight, called, attr))


def exact_graph_from_pyg(
    made: type[Graph], data: Any, *, edge_weight: str | None, known: Graph | None = None
) -> Graph:
    """Make a graph from the parts of ``data`` that a Graph can hold unchanged; converts only the topology.

    Features and labels of other dtypes or shapes are left out, and so are those that require gradients, are
    of a tensor subclass or in COO, and masks without one row per node.
    Data without edges becomes a graph without edges.

    Args:
        made: class of the graph.
        data: homogeneous PyG data.
        edge_weight: name of the attribute that holds edge weights, or None.
        known: graph with the same edges and weights, whose topology is reused. If None, it is made.
    """
    _check_homogeneous(data)
    x, y, num_nodes = features_of(data), data.get("y"), int(data.num_nodes)
    held: dict[str, Any] = {
        "x": as_features(x) if is_held(x, num_nodes) else None,
        "y": as_labels(y) if is_held(y, num_nodes, labels=True) else None,
        "splits": splits_of(data, num_nodes, 0, exact=True),
    }
    if known is not None:
        return known.replace(**held)
    edge_index, weight = edges_of(data)
    return graph_from_edge_index(
        made,
        torch.zeros((2, 0), dtype=torch.int64) if edge_index is None else edge_index,
        num_nodes,
        edge_weight=weight_of(data, edge_weight) if weight is None else weight,
        **held,
    )


def graph_to_pyg(graph: Graph) -> Any:
    """Implement :meth:`graphbraid.Graph.to_pyg`."""
    if graph.types is not None:
        return graph_to_hetero_data(graph)
    made = data_class()
    data = made(edge_index=graph.to_edge_index(original_order=True), num_nodes=graph.num_nodes)
    if graph.x is not None:
        data.x = to_torch_csr(graph.x) if isinstance(graph.x, SparseFeatures) else graph.dense_x()
    if graph.y is not None:
        data.y = graph.y
    if graph.csc.weight is not None:
        data[graph.weight_name] = graph.in_original_order(graph.csc.weight)
    if graph.edge_attr is not None:
        data.edge_attr = graph.in_original_order(graph.edge_attr)
    for key, ids in graph.splits.items():
        mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
        mask[ids] = True
        data[f"{key}_mask"] = mask
    return data


def _check_homogeneous(data: Any) -> None:
    if hasattr(data, "edge_types"):
        raise DataError(
            f"a graph with one type of nodes and edges is needed; got {type(data).__name__} with edge types "
            f"{data.edge_types}. Convert it with data.to_homogeneous() first"
        )


def is_held(values: Any, num_nodes: int, *, labels: bool = False) -> bool:
    """Return whether a Graph can hold these features or labels without changing their dtype or shape."""
    if isinstance(values, SparseFeatures):
        return not labels
    if isinstance(values, Tensor) and values.layout in (torch.sparse_csr, torch.sparse_csc):
        is_held = values.ndim == 2 and values.dtype in FEATURE_DTYPES and not values.requires_grad
        return is_held and not labels
    if not isinstance(values, Tensor) or not is_plain(values) or values.shape[:1] != (num_nodes,):
        return False
    if labels:
        return (values.ndim == 1 and values.dtype == torch.int64) or (
            values.ndim in (1, 2) and values.dtype == torch.float32
        )
    return values.ndim == 2 and values.dtype in FEATURE_DTYPES
