"""Conversion of users' edge lists, features, labels and splits to the tensors a Graph holds.

Each function returns its input if it fits already, and copies only to change a dtype or a layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import as_count, as_flag, check_tensor
from graphbraid.errors import DataError, GraphbraidError
from graphbraid.graph.checks import check_edge_attr
from graphbraid.graph.csc import MOST_NODES, coo_to_csc
from graphbraid.graph.scaled_features import Features, ScaledFeatures
from graphbraid.graph.scans import ID_DTYPES, check_weight, first_where
from graphbraid.graph.sparse_features import FEATURE_DTYPES, SparseFeatures, as_shared

if TYPE_CHECKING:
    from graphbraid.graph import Graph, NodeSet


def as_tensor(values: Any, what: str, *, exact: bool = False) -> Tensor:
    """Return ``values`` as a tensor, which shares memory with a NumPy array if possible; lists are copied.

    With ``exact``, arrays of complex numbers and of unsigned integers keep their dtype.

    Raises:
        DataError: ``values`` does not hold real numbers.
    """
    if isinstance(values, Tensor):
        if values.is_complex():
            raise DataError(f"{what} must hold real numbers; got {values.dtype}")
        return _signed(check_tensor(plain(values).resolve_neg(), what), what)
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of unequal length
        raise DataError(f"{what} must be an array of numbers; {error}") from error
    if array.dtype.kind not in ("biufc" if exact else "biuf"):
        raise DataError(f"{what} must hold numbers; got dtype {array.dtype} of type {type(values).__name__}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)  # the widest that torch has
    if array.dtype == np.uint64:  # NumPy has two types of this name; torch knows only one
        array = array.view(np.uint64)
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.array(array, dtype=array.dtype.newbyteorder("="))
    made = as_shared(array)
    return made if exact else _signed(made, what)


def as_table(values: Tensor | np.ndarray, what: str) -> Tensor:
    """Return an attribute as a tensor that rows can be taken of, which keeps its dtype, class and gradient.

    torch takes no rows of a sparse matrix in CSR or CSC; it becomes COO.
    """
    if not isinstance(values, Tensor):
        return as_tensor(values, what, exact=True)
    has_rows = values.layout in (torch.strided, torch.sparse_coo)
    return values if has_rows else torch.Tensor.to_sparse(values, layout=torch.sparse_coo)


def _signed(values: Tensor, what: str) -> Tensor:
    """Convert unsigned integers of more than 8 bits, which torch cannot compute with, to int64."""
    if values.dtype not in (torch.uint16, torch.uint32, torch.uint64):
        return values
    if values.dtype != torch.uint64:
        return values.to(torch.int64)
    signed = values.view(torch.int64)
    position = first_where(signed.reshape(-1), lambda part: part < 0)
    if position >= 0:
        found = int(signed.reshape(-1)[position]) + (1 << 64)
        raise DataError(f"{what} must be below 2**63; number {position} is {found}")
    return signed


def plain(values: Tensor) -> Tensor:
    """Return a tensor subclass, such as PyG's ``EdgeIndex``, as a plain ``torch.Tensor`` of the same values.

    ``EdgeIndex`` wraps another tensor and has no storage of its own, so ``as_subclass`` alone would not do.
    """
    if type(values) is Tensor:
        return values
    unwrap = getattr(values, "as_tensor", None)
    unwrapped: Tensor = unwrap() if callable(unwrap) else values.as_subclass(Tensor)
    return unwrapped


def as_edge_index(edge_index: Any) -> tuple[Tensor, Tensor]:
    """Return sources and destinations of ``(2, num_edges)`` ids in int32 or int64, or raise DataError."""
    if isinstance(edge_index, (tuple, list)) and len(edge_index) == 2:
        src, dst = (as_tensor(ids, f"edge_index[{row}]") for row, ids in enumerate(edge_index))
        if src.shape != dst.shape or src.ndim != 1:
            raise DataError(
                "edge_index as a pair needs two 1-d arrays of one length; "
                f"got shapes {tuple(src.shape)} and {tuple(dst.shape)}"
            )
    else:
        both = as_tensor(edge_index, "edge_index")
        if both.ndim != 2 or both.shape[0] != 2:
            hint = "; pass edge_index.T if each row is an edge" if both.shape[1:] == (2,) else ""
            raise DataError(f"edge_index must have shape (2, num_edges); got {tuple(both.shape)}{hint}")
        src, dst = both[0], both[1]
    if not src.numel():  # the dtype of an empty list means nothing
        return src.long(), dst.long()
    for row, ids in enumerate((src, dst)):
        if ids.dtype.is_floating_point or ids.dtype == torch.bool:
            raise DataError(f"edge_index must hold integer node ids; edge_index[{row}] is {ids.dtype}")
    if src.dtype == dst.dtype and src.dtype in ID_DTYPES:
        return src, dst
    return src.long(), dst.long()


def as_num_nodes(num_nodes: Any) -> int:
    """Return a number of nodes as an int; DataError if it is no integer, negative or too large."""
    return as_count(num_nodes, "num_nodes", most=MOST_NODES, error=DataError)


def as_features(x: Any) -> Features | None:
    """Return features as a 2-d tensor, :class:`SparseFeatures` or :class:`ScaledFeatures`.

    A vector becomes one column; dtypes that a Graph does not hold become float32.

    Raises:
        DataError: ``x`` is neither a matrix nor a vector of numbers.
    """
    if isinstance(x, SparseFeatures | ScaledFeatures | None):
        return x
    if isinstance(x, Tensor) and x.layout != torch.strided:
        return features_from_torch_sparse(x)
    if hasattr(x, "tocsr"):
        return SparseFeatures.from_scipy(x)
    dense = as_tensor(x, "x")
    if dense.ndim not in (1, 2):
        raise DataError(f"x must have shape (num_nodes, num_features); got {tuple(dense.shape)}")
    dense = dense.unsqueeze(1) if dense.ndim == 1 else dense
    return dense if dense.dtype in FEATURE_DTYPES else dense.float()


def features_from_torch_sparse(x: Tensor) -> SparseFeatures:
    """Return a sparse matrix of torch as :class:`SparseFeatures`; DataError for other shapes."""
    if x.ndim != 2:
        raise DataError(f"x must have shape (num_nodes, num_features); got {tuple(x.shape)}")
    if x.layout == torch.sparse_csr:
        indptr, columns, values = x.crow_indices(), x.col_indices(), x.values()
    else:
        coo = torch.Tensor.to_sparse(x, layout=torch.sparse_coo).coalesce()
        (row, columns), values = coo.indices(), coo.values()
        indptr = torch.searchsorted(row.contiguous(), torch.arange(x.shape[0] + 1))
    values = values if values.dtype in FEATURE_DTYPES else values.float()
    return SparseFeatures(indptr=indptr.long(), indices=columns.int(), values=values, num_cols=x.shape[1])


def as_labels(y: Any) -> Tensor | None:
    """Return labels in one of the forms that a Graph holds.

    Integer classes become int64 ``(num_nodes,)``, also from ``(num_nodes, 1)``; wider integer or bool
    matrices are multi-hot and become float32; float targets keep their shape and become float32.

    Raises:
        DataError: ``y`` has more than two dimensions or does not hold numbers.
    """
    if y is None:
        return None
    labels = as_tensor(y, "y")
    if labels.ndim not in (1, 2):
        raise DataError(f"y must have one or two dimensions; got shape {tuple(labels.shape)}")
    if labels.dtype.is_floating_point:
        return labels.float()
    if labels.ndim == 2 and labels.shape[1] != 1:
        return labels.float()
    return (labels if labels.ndim == 1 else labels[:, 0]).long()


def as_splits(splits: Mapping[str, Any] | None, num_nodes: int) -> dict[str, Tensor]:
    """Return splits as int64 node ids, from ids or masks; DataError names the one that does not fit."""
    if splits is not None and not isinstance(splits, Mapping):
        raise DataError(
            f"splits must map names such as 'train' to node ids or masks; got {type(splits).__name__}"
        )
    return {name: as_node_ids(ids, num_nodes, f"splits[{name!r}]") for name, ids in (splits or {}).items()}


def as_node_ids(ids: Any, num_nodes: int, what: str) -> Tensor:
    """Return 1-d int64 node ids, from ids or from a bool mask over all nodes, or raise DataError."""
    tensor = as_tensor(ids, what)
    if tensor.ndim != 1:
        raise DataError(f"{what} must be 1-d node ids or a mask; got shape {tuple(tensor.shape)}")
    if tensor.dtype == torch.bool:
        if tensor.numel() != num_nodes:
            raise DataError(f"{what} is a mask of {tensor.numel()} nodes, but the graph has {num_nodes}")
        return tensor.nonzero().flatten()
    if tensor.dtype.is_floating_point and tensor.numel():
        raise DataError(f"{what} must hold integer node ids or be a bool mask; got {tensor.dtype}")
    refuse_mask_of_integers(tensor, num_nodes, what)
    return tensor.long()


def refuse_mask_of_integers(
    ids: Tensor, num_nodes: int, what: str, error: type[GraphbraidError] = DataError
) -> None:
    """Raise ``error`` for 0s and 1s, one per node: as ids, they name nodes 0 and 1 over and over."""
    if ids.numel() == num_nodes > 2 and 0 <= int(ids.min()) <= int(ids.max()) <= 1:
        raise error(
            f"{what} hold only 0 and 1, one for each of {num_nodes} nodes: as a mask give bools "
            "(mask.bool()), as ids name each node once"
        )


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
    """Make a graph from an edge list; copies the topology, shares features and labels if they fit.

    Args:
        made: Class of the graph.
        edge_index: ``(2, num_edges)`` integers (tensor, array or pair of arrays): sources, destinations.
        num_nodes: Number of nodes. If None, the rows of ``x`` or ``y``, else the largest id plus one.
        x: ``(num_nodes, num_features)`` tensor, array, SciPy matrix, :class:`SparseFeatures` or
            :class:`ScaledFeatures`; dtypes other than float32, float16 and bfloat16 become float32.
        y: Classes, multi-hot labels or targets, one row per node; -1 and -100 mark nodes without a class.
        splits: Node ids or bool masks by name.
        edge_weight: ``(num_edges,)`` numbers, kept as float32.
        edge_attr: ``(num_edges, num_edge_features)`` features of the edges, with the dtypes of ``x``;
            shared if the list is in the graph's order, else copied.
        name: Name of the graph in reports.
        keep_edge_id: Keep each edge's position in ``edge_index`` (8 bytes per edge).

    Raises:
        DataError: names the array and the first position that does not fit.
    """
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
    """Return edge features as floats with a row per edge, a vector as a column, or raise DataError."""
    if edge_attr is None:
        return None
    attr = as_tensor(edge_attr, "edge_attr")
    if attr.layout == torch.strided and attr.ndim == 1:
        attr = attr.unsqueeze(1)
    attr = attr if attr.dtype in FEATURE_DTYPES else attr.float()
    check_edge_attr(attr, num_edges)
    return attr


def as_weight(edge_weight: Any, num_edges: int) -> Tensor | None:
    """Return a finite float32 weight for each edge, also from a column, or raise DataError."""
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


def masks_of(nodes: Graph | NodeSet) -> dict[str, Tensor]:
    """Return the splits as bool masks, ``(num_nodes,)``, by PyG's and DGL's names."""
    masks = {}
    for name, ids in nodes.splits.items():
        masks[f"{name}_mask"] = torch.zeros(nodes.num_nodes, dtype=torch.bool)
        masks[f"{name}_mask"][ids] = True
    return masks
