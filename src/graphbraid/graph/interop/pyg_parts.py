"""The parts of PyG's data and storages: edges, weights, features and masks, as a graph takes them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor, shown
from graphbraid.errors import DataError, MissingPackageError
from graphbraid.graph.interop.convert import as_tensor, plain
from graphbraid.graph.labelled import SPLITS
from graphbraid.graph.sparse_features import SparseFeatures

_HELD = ("x", "y", "edge_index", "adj_t", "num_nodes")
"""Attributes that every graph holds."""


def edge_features_of(data: Any) -> Tensor | None:
    """Return the ``edge_attr`` of PyG's data, in ``edge_index`` order, if it is a matrix of floats."""
    attr = data.get("edge_attr")
    is_matrix = isinstance(attr, Tensor) and attr.ndim == 2 and attr.layout == torch.strided
    if not is_matrix or not attr.dtype.is_floating_point or data.get("edge_index") is None:
        return None
    return plain(attr)


def is_hetero(data: Any) -> bool:
    """Return whether these are data of PyG with types."""
    return hasattr(data, "edge_types") and hasattr(data, "node_types")


def features_of(data: Any) -> Any:
    """Return ``x`` of PyG's data or storage; a ``SparseTensor`` as a sparse torch tensor."""
    x = data.get("x")
    if hasattr(x, "to_torch_sparse_csr_tensor"):  # torch_sparse.SparseTensor
        return x.to_torch_sparse_csr_tensor()
    return x


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


def weight_name(data: Any, weight_attr: str | None, weight: Tensor | None) -> str:
    """Return the name by which a model gets the weights: ``edge_attr`` only if "auto" took them from it."""
    is_feature = weight_attr == "auto" and weight is not None and weight is data.get("edge_attr")
    return "edge_attr" if is_feature else "edge_weight"


def left_out(data: Any, weight_attr: str | None, called: str, attr: Tensor | None) -> frozenset[str]:
    """Return the names of attributes of PyG's data, or of a storage, that a graph made of them does not hold.

    Args:
        data: the data or storage.
        weight_attr: the attribute chosen as weights.
        called: name of the weights that the graph has.
        attr: edge features that the graph has.
    """
    held = {*_HELD, *(f"{name}_mask" for name in SPLITS), called, "edge_weight", weight_attr}
    return frozenset(map(str, data.keys())) - held - ({"edge_attr"} if attr is not None else set())


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
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support is in beta|invariant checks)")
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
