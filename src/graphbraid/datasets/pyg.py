"""PyTorch Geometric's datasets: conversion of a node-level dataset object of one graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphbraid.errors import DataError
from graphbraid.graph import Graph
from graphbraid.signatures import typed


@typed
def from_pyg_dataset(dataset: Any, *, split_index: int = 0) -> Graph:
    """Make a graph from a ``torch_geometric`` dataset of one graph, such as ``Planetoid`` or ``Amazon``.

    Args:
        dataset: The dataset, already downloaded by PyG; ``dataset[0]`` is read.
        split_index: Column to use of masks of shape ``(num_nodes, num_splits)``.

    Raises:
        DataError: It holds no graph, several graphs or a heterogeneous one.
    """
    title = f"{type(dataset).__name__}({getattr(dataset, 'name', '') or ''})"
    is_list = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not is_list or isinstance(dataset, Mapping):
        raise DataError(f"{title} is no PyG dataset; for one Data object use Graph.from_pyg")
    if len(dataset) != 1:
        raise DataError(f"{title} holds {len(dataset)} graphs; graphbraid trains on one graph at a time")
    data = dataset[0]
    if hasattr(data, "node_types"):
        types = ", ".join(map(str, data.node_types))
        raise DataError(
            f"{title} is heterogeneous (node types: {types}); graphbraid trains homogeneous graphs"
        )
    name = str(getattr(dataset, "name", None) or type(dataset).__name__)
    return Graph.from_pyg(data, split=split_index, name=name)
