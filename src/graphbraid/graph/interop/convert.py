"""What users hand over, as the tensors a Graph holds: edge lists, features, labels, splits.

Each function gives its input back where it fits already, and copies only to change a dtype or a layout.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import MOST_NODES
from graphbraid.graph.scans import first_where
from graphbraid.graph.sparse_features import FEATURE_DTYPES, SparseFeatures

ID_DTYPES = (torch.int32, torch.int64)


def as_tensor(values: Any, what: str) -> Tensor:
    """A tensor sharing memory with a NumPy array where that can be; lists are copied.

    Raises:
        DataError: ``values`` holds no numbers.
    """
    if isinstance(values, Tensor):
        if values.is_complex():
            raise DataError(f"{what} must hold real numbers; got {values.dtype}")
        return _signed(check_tensor(plain(values).resolve_neg(), what), what)
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of unequal length
        raise DataError(f"{what} must be an array of numbers; {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} must hold numbers; got dtype {array.dtype} of type {type(values).__name__}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)  # torch has no wider one
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.array(array, dtype=array.dtype.newbyteorder("="))
    with warnings.catch_warnings():  # a read-only memory map is shared on purpose: nothing here writes
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return _signed(torch.from_numpy(array), what)


def _signed(values: Tensor, what: str) -> Tensor:
    """Unsigned integers of more than 8 bits, which torch does not compute with, as int64."""
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
    """A tensor of torch's own class with the same values, such as of PyG's ``EdgeIndex``.

    That one wraps another tensor and has no memory of its own, so ``as_subclass`` would give one of nothing.
    """
    if type(values) is Tensor:
        return values
    unwrap = getattr(values, "as_tensor", None)
    unwrapped: Tensor = unwrap() if callable(unwrap) else values.as_subclass(Tensor)
    return unwrapped


def as_edge_index(edge_index: Any) -> tuple[Tensor, Tensor]:
    """Sources and destinations of a ``(2, num_edges)`` edge list, both int32 or both int64.

    Raises:
        DataError: another shape, or ids that are not integers.
    """
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
    if not src.numel():  # an empty list carries no dtype on purpose
        return src.long(), dst.long()
    for row, ids in enumerate((src, dst)):
        if ids.dtype.is_floating_point or ids.dtype == torch.bool:
            raise DataError(f"edge_index must hold integer node ids; edge_index[{row}] is {ids.dtype}")
    if src.dtype == dst.dtype and src.dtype in ID_DTYPES:
        return src, dst
    return src.long(), dst.long()


def as_num_nodes(num_nodes: Any) -> int:
    """A number of nodes.

    Raises:
        DataError: not an integer, or negative.
    """
    return as_count(num_nodes, "num_nodes", most=MOST_NODES, error=DataError)


def as_features(x: Any) -> Tensor | SparseFeatures | None:
    """Features as a 2-d tensor or :class:`SparseFeatures`; 1-d features become one column, others float32.

    Raises:
        DataError: neither a matrix nor a vector of numbers.
    """
    if x is None or isinstance(x, SparseFeatures):
        return x
    if isinstance(x, Tensor) and x.layout != torch.strided:
        return _features_from_torch_sparse(x)
    if hasattr(x, "tocsr"):
        return SparseFeatures.from_scipy(x)
    dense = as_tensor(x, "x")
    if dense.ndim not in (1, 2):
        raise DataError(f"x must have shape (num_nodes, num_features); got {tuple(dense.shape)}")
    dense = dense.unsqueeze(1) if dense.ndim == 1 else dense
    return dense if dense.dtype in FEATURE_DTYPES else dense.float()


def _features_from_torch_sparse(x: Tensor) -> SparseFeatures:
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
    """Labels in one of the forms a Graph takes.

    Integer classes become int64 ``(num_nodes,)``, also from ``(num_nodes, 1)``; wider integer or bool
    matrices are multi-hot and become float32; float targets keep their shape and become float32.

    Raises:
        DataError: more than two dimensions or no numbers.
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
    """Each split as int64 node ids; bool masks of ``num_nodes`` become the ids they mark, in rising order.

    Raises:
        DataError: not a mapping from names to ids or masks, or one does not fit.
    """
    if splits is not None and not isinstance(splits, Mapping):
        raise DataError(
            f"splits must map names such as 'train' to node ids or masks; got {type(splits).__name__}"
        )
    return {name: as_node_ids(ids, num_nodes, f"splits[{name!r}]") for name, ids in (splits or {}).items()}


def as_node_ids(ids: Any, num_nodes: int, what: str) -> Tensor:
    """Node ids as 1-d int64, from ids or from a bool mask over all nodes.

    Raises:
        DataError: a mask of another length, not 1-d, or not integers.
    """
    tensor = as_tensor(ids, what)
    if tensor.ndim != 1:
        raise DataError(f"{what} must be 1-d node ids or a mask; got shape {tuple(tensor.shape)}")
    if tensor.dtype == torch.bool:
        if tensor.numel() != num_nodes:
            raise DataError(f"{what} is a mask of {tensor.numel()} nodes, but the graph has {num_nodes}")
        return tensor.nonzero().flatten()
    if tensor.dtype.is_floating_point and tensor.numel():
        raise DataError(f"{what} must hold integer node ids or be a bool mask; got {tensor.dtype}")
    return tensor.long()
