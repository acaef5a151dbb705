"""What the arrays of an ``.npz`` file say of nodes: their number, features and splits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphbraid.datasets.npy import Array
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph, Schema, SparseFeatures

CSR_KEYS = ("x_data", "x_indices", "x_indptr", "x_shape")
"""Keys of features in CSR."""
_SPLITS = ("train", "val", "test")


def num_nodes_of(file: Path, arrays: Mapping[str, Array]) -> int | None:
    """Return the number of nodes that the file says, if it does."""
    if "num_nodes" not in arrays:
        return None
    count = arrays["num_nodes"]
    if count.size != 1 or count.dtype.kind not in "iu" or int(count.reshape(-1)[0]) < 0:
        raise DataError(
            f"{file}: num_nodes must be one number, not negative; got {count.dtype} {count.tolist()}"
        )
    return int(count.reshape(-1)[0])


def features_of(file: Path, arrays: Mapping[str, Array]) -> Any:
    """Return the features, dense or CSR, or None."""
    present = [key for key in CSR_KEYS if key in arrays]
    if not present:
        return arrays.get("x")
    if len(present) < len(CSR_KEYS):
        missing = ", ".join(key for key in CSR_KEYS if key not in arrays)
        raise DataError(f"{file}: sparse features need {', '.join(CSR_KEYS)}; missing: {missing}")
    data, indices, indptr, shape = (arrays[key] for key in CSR_KEYS)
    _check_csr(file, arrays)
    rows, columns = (int(n) for n in shape)
    if len(indptr) != rows + 1:
        raise DataError(f"{file}: x_indptr has {len(indptr)} entries; {rows} rows need {rows + 1}")
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < columns:
        at = int(np.argmax((indices < 0) | (indices >= columns)))
        raise DataError(f"{file}: x_indices[{at}] is {indices[at]}; columns are in [0, {columns})")
    from scipy.sparse import csr_matrix

    try:
        return SparseFeatures.from_scipy(csr_matrix((data, indices, indptr), shape=(rows, columns)))
    except ValueError as error:
        raise DataError(f"{file}: the sparse features do not fit together: {error}") from error


def _check_csr(file: Path, arrays: Mapping[str, Array]) -> None:
    """Check the dtypes and lengths of the four arrays, and that ``x_indptr`` does not decrease."""
    for key in CSR_KEYS:
        array, kinds = arrays[key], "iuf" if key == "x_data" else "iu"
        if array.ndim != 1 or array.dtype.kind not in kinds + ("b" if key == "x_data" else ""):
            needed = "numbers" if key == "x_data" else "integers"
            raise DataError(f"{file}: {key} must be 1-d {needed}; got {array.dtype} of shape {array.shape}")
    data, indices, indptr, shape = (arrays[key] for key in CSR_KEYS)
    if shape.shape != (2,) or int(shape.min()) < 0 or int(shape.max()) >= 1 << 31:
        raise DataError(f"{file}: x_shape must be rows and columns below 2^31; got {shape.tolist()}")
    if len(data) != len(indices):
        raise DataError(f"{file}: x_data has {len(data)} entries and x_indices {len(indices)}")
    if len(indptr) and (indptr[0] != 0 or indptr[-1] != len(data) or (indptr[1:] < indptr[:-1]).any()):
        raise DataError(f"{file}: x_indptr must rise from 0 to {len(data)}, the number of values")


def with_class_names(file: Path, arrays: Mapping[str, Array], graph: Graph) -> Graph:
    """Return the graph with the names of its classes, if the file has ``class_names``."""
    if "class_names" not in arrays:
        return graph
    names = tuple(str(name) for name in arrays["class_names"].reshape(-1))
    labelled = [name for name in graph.node_types if graph.nodes_of(name).y is not None]
    count = max((graph.nodes_of(name).num_classes for name in labelled), default=0)
    if len(set(names)) < len(names) or len(names) < count:
        raise DataError(f"{file}: class_names must name {count} different classes; got {', '.join(names)}")
    return graph.replace(schema=Schema(class_names=dict.fromkeys(labelled, names)))


def splits_of(file: Path, arrays: Mapping[str, Array], index: int | None) -> dict[str, Array]:
    """Return the single stored split as ids or masks by name, or one of several by ``index``."""
    if index is not None:
        masks = {name: arrays[f"{name}_masks"] for name in _SPLITS if f"{name}_masks" in arrays}
        for name, mask in masks.items():
            if mask.ndim != 2 or mask.dtype.kind != "b":
                raise DataError(
                    f"{file}: {name}_masks must be a row of True and False per split; got {mask.dtype} of "
                    f"shape {mask.shape}"
                )
        count = min((len(mask) for mask in masks.values()), default=0)
        if not 0 <= index < count:
            raise ConfigError(
                f"split_index must be in [0, {count}) for {file}, which has {count} stored "
                f"splits; got {index}"
            )
        return {name: mask[index] for name, mask in masks.items()}
    splits = {}
    for name in _SPLITS:
        given = [key for key in (f"{name}_idx", f"{name}_mask") if key in arrays]
        if len(given) > 1:
            raise DataError(f"{file} has both {given[0]} and {given[1]}; keep one of them")
        if given:
            splits[name] = _split(file, given[0], arrays[given[0]])
    return splits


def _split(file: Path, key: str, array: Array) -> Array:
    if array.ndim != 1:
        hint = f"; choose one with split_index, stored as {key}s" if array.ndim == 2 else ""
        raise DataError(f"{file}: {key} must be 1-d; got shape {array.shape}{hint}")
    if key.endswith("_mask"):
        if array.dtype.kind in "iu" and ((array == 0) | (array == 1)).all():
            return array.astype(bool)
        if array.dtype.kind != "b":
            raise DataError(f"{file}: {key} must hold True and False; got {array.dtype}")
    elif array.dtype.kind not in "iu" and array.size:
        raise DataError(f"{file}: {key} must hold integer node ids; got {array.dtype}")
    return array
