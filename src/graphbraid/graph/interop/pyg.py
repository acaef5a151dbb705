"""Conversion of a Graph from and to ``torch_geometric.data.Data``."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor, shown
from graphbraid.errors import DataError, MissingPackageError
from graphbraid.graph import Graph
from graphbraid.graph.graph import SPLITS
from graphbraid.graph.interop.convert import as_features, as_labels, as_tensor, plain
from graphbraid.graph.interop.edge_list import graph_from_edge_index
from graphbraid.graph.sparse_features import FEATURE_DTYPES, SparseFeatures


def graph_from_pyg(
    data: Any,
    *,
    edge_weight: str | None = "auto",
    split: int = 0,
    name: str = "",
    edge_features: bool = True,
) -> Graph:
    """Implement :meth:`graphbraid.Graph.from_pyg`, which describes the arguments.

    With ``edge_features`` False, edge features are left out, which saves copying them to the graph's order.
    """
    if is_hetero(data):
        from graphbraid.graph.interop.hetero import graph_from_hetero_data

        return graph_from_hetero_data(data, edge_weight=edge_weight, split=split, name=name)
    edge_index, weight = edges_of(data)
    if edge_index is None:
        raise DataError("data holds no edges: neither edge_index nor adj_t is set")
    num_nodes = int(data.num_nodes)
    return graph_from_edge_index(
        edge_index,
        num_nodes,
        x=as_features(features_of(data)),
        y=as_labels(data.get("y")),
        splits=splits_of(data, num_nodes, split),
        edge_weight=weight_of(data, edge_weight) if weight is None else weight,
        edge_attr=edge_features_of(data) if edge_features and edge_weight != "edge_attr" else None,
        name=name,
    )


def edge_features_of(data: Any) -> Tensor | None:
    """Return the ``edge_attr`` of PyG's data, in ``edge_index`` order, if it is a matrix of floats."""
    attr = data.get("edge_attr")
    is_matrix = isinstance(attr, Tensor) and attr.ndim == 2 and attr.layout == torch.strided
    if not is_matrix or not attr.dtype.is_floating_point or data.get("edge_index") is None:
        return None
    return plain(attr)


def exact_graph_from_pyg(data: Any, *, edge_weight: str | None, known: Graph | None = None) -> Graph:
    """Make a graph from the parts of ``data`` that a Graph can hold unchanged; converts only the topology.

    Features and labels of other dtypes or shapes are left out, and so are masks without one row per node.
    Data without edges becomes a graph without edges.

    Args:
        data: homogeneous PyG data.
        edge_weight: name of the attribute that holds edge weights, or None.
        known: graph with the same edges and weights, whose topology is reused. If None, it is made.
    """
    _check_homogeneous(data)
    x, y, num_nodes = features_of(data), data.get("y"), int(data.num_nodes)
    held: dict[str, Any] = {
        "x": as_features(x) if _is_held(x, num_nodes) else None,
        "y": as_labels(y) if _is_held(y, num_nodes, labels=True) else None,
        "splits": splits_of(data, num_nodes, 0, exact=True),
    }
    if known is not None:
        return known.replace(**held)
    edge_index, weight = edges_of(data)
    return graph_from_edge_index(
        torch.zeros((2, 0), dtype=torch.int64) if edge_index is None else edge_index,
        num_nodes,
        edge_weight=weight_of(data, edge_weight) if weight is None else weight,
        **held,
    )


def is_hetero(data: Any) -> bool:
    """Return whether these are data of PyG with types."""
    return hasattr(data, "edge_types") and hasattr(data, "node_types")


def _check_homogeneous(data: Any) -> None:
    if hasattr(data, "edge_types"):
        raise DataError(
            f"a graph with one type of nodes and edges is needed; got {type(data).__name__} with edge types "
            f"{data.edge_types}. Convert it with data.to_homogeneous() first"
        )


def features_of(data: Any) -> Any:
    """Return ``x`` of PyG's data or storage; a ``SparseTensor`` as a sparse torch tensor."""
    x = data.get("x")
    if hasattr(x, "to_torch_sparse_csr_tensor"):  # torch_sparse.SparseTensor
        return x.to_torch_sparse_csr_tensor()
    return x


def graph_to_pyg(graph: Graph) -> Any:
    """Implement :meth:`graphbraid.Graph.to_pyg`."""
    if graph.types is not None:
        from graphbraid.graph.interop.hetero import graph_to_hetero_data

        return graph_to_hetero_data(graph)
    made = data_class()
    data = made(edge_index=graph.to_edge_index(original_order=True), num_nodes=graph.num_nodes)
    if graph.x is not None:
        data.x = to_torch_csr(graph.x) if isinstance(graph.x, SparseFeatures) else graph.dense_x()
    if graph.y is not None:
        data.y = graph.y
    if graph.csc.weight is not None:
        data.edge_weight = graph.in_original_order(graph.csc.weight)
    if graph.edge_attr is not None:
        data.edge_attr = graph.in_original_order(graph.edge_attr)
    for key, ids in graph.splits.items():
        mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
        mask[ids] = True
        data[f"{key}_mask"] = mask
    return data


def edges_of(data: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return the edge list and the weights of an ``adj_t`` with values; its rows are the destinations."""
    if not callable(getattr(data, "get", None)) or not callable(getattr(data, "keys", None)):
        raise DataError(f"data must be a PyG Data; got {shown(data)}")
    edge_index, adj_t = data.get("edge_index"), data.get("adj_t")
    if edge_index is not None:
        return as_tensor(edge_index, "edge_index"), None
    if adj_t is None:
        return None, None
    if not isinstance(adj_t, Tensor):
        dst, src, values = adj_t.coo()  # torch_sparse.SparseTensor
        return torch.stack([src, dst]), values
    dst, src, values = entries_of(adj_t, "adj_t")
    return torch.stack([src, dst]), None if bool((values == 1).all()) else values


def entries_of(matrix: Tensor, what: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, columns and values of a sparse torch matrix as stored; repeated entries are not summed.

    Raises:
        DataError: the matrix is dense or stored in blocks.
    """
    if matrix.ndim == 2 and matrix.layout in (torch.sparse_csr, torch.sparse_csc):
        by_row = matrix.layout == torch.sparse_csr
        ends, inner = (
            (matrix.crow_indices(), matrix.col_indices())
            if by_row
            else (matrix.ccol_indices(), matrix.row_indices())
        )
        outer = torch.arange(ends.numel() - 1, dtype=inner.dtype).repeat_interleave(ends.diff())
        rows, columns = (outer, inner) if by_row else (inner, outer)
        return rows, columns, matrix.values()
    if matrix.ndim == 2 and matrix.layout == torch.sparse_coo:
        rows, columns = matrix._indices()  # `indices()` requires a matrix whose repeated entries are summed
        return rows, columns, matrix._values()
    raise DataError(
        f"{what} must be a sparse matrix in layout CSR, CSC or COO; got {matrix.layout} of shape "
        f"{tuple(matrix.shape)}"
    )


def weight_of(data: Any, weight_attr: str | None) -> Tensor | None:
    """Return edge weights by the name of the attribute, None for none, or "auto" for what may be weights."""
    if weight_attr is None:
        return None
    if weight_attr != "auto":
        if weight_attr not in data:
            raise DataError(
                f"data has no attribute {weight_attr!r} to take weights from; it has {data.keys()}"
            )
        return as_tensor(data[weight_attr], weight_attr)
    if data.get("edge_weight") is not None:
        return as_tensor(data.edge_weight, "edge_weight")
    attr = data.get("edge_attr")
    is_weight = isinstance(attr, Tensor) and attr.ndim == 1 and attr.dtype.is_floating_point
    return attr if is_weight else None


def _is_held(values: Any, num_nodes: int, *, labels: bool = False) -> bool:
    """Return whether a Graph can hold these features or labels without changing their dtype or shape."""
    if isinstance(values, SparseFeatures) or (isinstance(values, Tensor) and values.layout != torch.strided):
        return not labels
    if not isinstance(values, Tensor) or not values.ndim or values.shape[0] != num_nodes:
        return False
    if labels:
        return (values.ndim == 1 and values.dtype == torch.int64) or (
            values.ndim in (1, 2) and values.dtype == torch.float32
        )
    return values.ndim == 2 and values.dtype in FEATURE_DTYPES


def splits_of(data: Any, num_nodes: int, column: int, *, exact: bool = False) -> dict[str, Tensor]:
    """Return the masks as node ids; ``column`` selects one of masks of shape ``(num_nodes, num_splits)``."""
    splits = {}
    for name in SPLITS:
        key = f"{name}_mask"
        mask = data.get(key)
        if mask is None or (exact and (not isinstance(mask, Tensor) or mask.shape[:1] != (num_nodes,))):
            continue
        mask = check_tensor(mask, key)
        if mask.ndim == 2:
            if not 0 <= column < mask.shape[1]:
                raise DataError(f"{key} holds {mask.shape[1]} splits; split={column} is none of them")
            mask = mask[:, column]
        if mask.shape != (num_nodes,):
            raise DataError(f"{key} must mark {num_nodes} nodes; got shape {tuple(mask.shape)}")
        splits[name] = mask.bool().nonzero().flatten()
    return splits


def to_torch_csr(x: SparseFeatures) -> Tensor:
    """Return sparse features as a ``torch.sparse_csr`` tensor."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        # torch wants one dtype for both index arrays, so the columns are copied to int64
        return torch.sparse_csr_tensor(
            x.indptr, x.indices.long(), x.values, size=x.shape, check_invariants=False
        )


def data_class(name: str = "Data") -> Any:
    """Return a class of ``torch_geometric.data`` by name.

    Raises:
        MissingPackageError: PyTorch Geometric is not installed.
    """
    try:
        import torch_geometric.data
    except ImportError as error:
        raise MissingPackageError(
            "to_pyg needs PyTorch Geometric; install it with: pip install torch-geometric"
        ) from error
    return getattr(torch_geometric.data, name)
