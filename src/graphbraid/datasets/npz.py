"""Reader of graphs in one NumPy ``.npz`` file; docs/datasets.md lists the keys. Never loads pickles."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.scans import check_ids
from graphbraid.signatures import typed

_Array = npt.NDArray[Any]
_CSR_KEYS = ("x_data", "x_indices", "x_indptr", "x_shape")
_SPLITS = ("train", "val", "test")


@typed
def load_npz(path: str | os.PathLike[str], *, split_index: int | None = None) -> Graph:
    """Read a graph; edges stay as stored (directions, repeats, loops), see :func:`graphbraid.datasets.load`.

    Knowledge graphs and temporal graphs load as plain graphs: edge types and times are not kept, but
    ``edge_id`` says where in the file's edge list each edge stands, so that they can be looked up.

    Args:
        path: The file.
        split_index: Which of several stored splits (``train_masks``, ``val_masks``, ``test_masks``) to take;
            None takes the plain one.

    Raises:
        DataError: No such file, not a whole ``.npz``, keys missing, heterogeneous, or arrays that do not fit
            together; names the file.
        ConfigError: ``split_index`` names a split the file does not have.
    """
    file = Path(path)
    arrays = read_arrays(file)
    _refuse_heterogeneous(file, arrays)
    if "edge_index" not in arrays:
        raise DataError(f"{file} has no edge_index; its keys are {', '.join(sorted(arrays)) or 'none'}")
    try:
        graph = Graph.from_edge_index(
            arrays["edge_index"],
            _num_nodes(file, arrays),
            x=_features(file, arrays),
            y=arrays.get("y"),
            splits=_splits(file, arrays, split_index),
            edge_weight=arrays.get("edge_weight"),
            name=file.stem,
        )
        for split, ids in graph.splits.items():
            check_ids(ids, graph.num_nodes, f"ids of split {split!r}")
        return graph
    except DataError as error:
        raise DataError(f"{file}: {error}") from error


def read_arrays(file: Path) -> dict[str, _Array]:
    """All arrays of an ``.npz``.

    Raises:
        DataError: The file is missing, truncated, no ``.npz``, or holds pickled objects.
        ResourceError: It cannot be read.
    """
    name = "the file"
    try:
        with file.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{file} is a single .npy array; a graph needs an .npz with edge_index")
            arrays = {}
            for name in archive.files:
                arrays[name] = archive[name]
            return arrays
    except FileNotFoundError as error:
        raise DataError(f"there is no file {file}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{file} is truncated or damaged ({name}: {error}); copy or download it again"
        ) from error
    except ValueError as error:
        why = "holds Python objects, which are never loaded" if "allow_pickle" in str(error) else str(error)
        raise DataError(
            f"{file} is not a usable .npz ({name}: {why}); save plain arrays with numpy.savez"
        ) from error
    except OSError as error:
        raise ResourceError(f"{file} cannot be read: {error.strerror or error}") from error


def _refuse_heterogeneous(file: Path, arrays: Mapping[str, _Array]) -> None:
    if "node_type" in arrays:
        types = ", ".join(map(str, arrays.get("node_type_names", np.unique(arrays["node_type"]))))
        raise DataError(
            f"{file} is heterogeneous (node types: {types}); graphbraid trains homogeneous graphs. "
            "Keep one node type, or drop node_type to treat all nodes alike."
        )


def _num_nodes(file: Path, arrays: Mapping[str, _Array]) -> int | None:
    if "num_nodes" not in arrays:
        return None
    count = arrays["num_nodes"]
    if count.size != 1 or count.dtype.kind not in "iu" or int(count.reshape(-1)[0]) < 0:
        raise DataError(
            f"{file}: num_nodes must be one number, not negative; got {count.dtype} {count.tolist()}"
        )
    return int(count.reshape(-1)[0])


def _features(file: Path, arrays: Mapping[str, _Array]) -> Any:
    present = [key for key in _CSR_KEYS if key in arrays]
    if not present:
        return arrays.get("x")
    if len(present) < len(_CSR_KEYS):
        missing = ", ".join(key for key in _CSR_KEYS if key not in arrays)
        raise DataError(f"{file}: sparse features need {', '.join(_CSR_KEYS)}; missing: {missing}")
    data, indices, indptr, shape = (arrays[key] for key in _CSR_KEYS)
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


def _splits(file: Path, arrays: Mapping[str, _Array], index: int | None) -> dict[str, _Array]:
    if index is not None:
        masks = {name: arrays[f"{name}_masks"] for name in _SPLITS if f"{name}_masks" in arrays}
        count = min((len(mask) for mask in masks.values()), default=0)
        if not 0 <= index < count:
            raise ConfigError(
                f"split_index must be in [0, {count}) for {file}, which has {count} stored "
                f"splits; got {index}"
            )
        return {name: mask[index] for name, mask in masks.items()}
    splits = {name: arrays[f"{name}_idx"] for name in _SPLITS if f"{name}_idx" in arrays}
    return splits or {name: arrays[f"{name}_mask"] for name in _SPLITS if f"{name}_mask" in arrays}
