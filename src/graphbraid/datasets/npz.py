"""Graphs in NumPy ``.npz`` files, with node types and relations or without; docs/datasets.md lists the keys.

Pickles are never loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.datasets.npy import Array, read_npz
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import EdgeType, Graph, Schema, SparseFeatures
from graphbraid.graph.scans import check_ids
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.signatures import typed

CSR_KEYS = ("x_data", "x_indices", "x_indptr", "x_shape")
"""Keys of features in CSR."""
_SPLITS = ("train", "val", "test")


def num_nodes_of(arrays: Mapping[str, Array]) -> int | None:
    """Return the number of nodes that the file says, if it does."""
    if "num_nodes" not in arrays:
        return None
    count = arrays["num_nodes"]
    if count.size != 1 or count.dtype.kind not in "iu" or int(count.reshape(-1)[0]) < 0:
        raise DataError(f"num_nodes must be one number, not negative; got {count.dtype} {count.tolist()}")
    return int(count.reshape(-1)[0])


def features_of(arrays: Mapping[str, Array]) -> Any:
    """Return the features, dense or CSR, or None."""
    present = [key for key in CSR_KEYS if key in arrays]
    if not present:
        return arrays.get("x")
    if len(present) < len(CSR_KEYS):
        missing = ", ".join(key for key in CSR_KEYS if key not in arrays)
        raise DataError(f"sparse features need {', '.join(CSR_KEYS)}; missing: {missing}")
    data, indices, indptr, shape = (arrays[key] for key in CSR_KEYS)
    _check_csr(arrays)
    rows, columns = (int(n) for n in shape)
    if len(indptr) != rows + 1:
        raise DataError(f"x_indptr has {len(indptr)} entries; {rows} rows need {rows + 1}")
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < columns:
        at = int(np.argmax((indices < 0) | (indices >= columns)))
        raise DataError(f"x_indices[{at}] is {indices[at]}; columns are in [0, {columns})")
    from scipy.sparse import csr_matrix

    try:
        return SparseFeatures.from_scipy(csr_matrix((data, indices, indptr), shape=(rows, columns)))
    except ValueError as error:
        raise DataError(f"the sparse features do not fit together: {error}") from error


def _check_csr(arrays: Mapping[str, Array]) -> None:
    """Check the dtypes and lengths of the four arrays, and that ``x_indptr`` does not decrease."""
    for key in CSR_KEYS:
        array, kinds = arrays[key], "iuf" if key == "x_data" else "iu"
        if array.ndim != 1 or array.dtype.kind not in kinds + ("b" if key == "x_data" else ""):
            needed = "numbers" if key == "x_data" else "integers"
            raise DataError(f"{key} must be 1-d {needed}; got {array.dtype} of shape {array.shape}")
    data, indices, indptr, shape = (arrays[key] for key in CSR_KEYS)
    if shape.shape != (2,) or int(shape.min()) < 0 or int(shape.max()) >= 1 << 31:
        raise DataError(f"x_shape must be rows and columns below 2^31; got {shape.tolist()}")
    if len(data) != len(indices):
        raise DataError(f"x_data has {len(data)} entries and x_indices {len(indices)}")
    if len(indptr) and (indptr[0] != 0 or indptr[-1] != len(data) or (indptr[1:] < indptr[:-1]).any()):
        raise DataError(f"x_indptr must rise from 0 to {len(data)}, the number of values")


def with_class_names(arrays: Mapping[str, Array], graph: Graph) -> Graph:
    """Return the graph with the names of its classes, if the file has ``class_names``."""
    if "class_names" not in arrays:
        return graph
    names = tuple(str(name) for name in arrays["class_names"].reshape(-1))
    labelled = [name for name in graph.node_types if graph.nodes_of(name).y is not None]
    count = max((graph.nodes_of(name).num_classes for name in labelled), default=0)
    if len(set(names)) < len(names) or len(names) < count:
        raise DataError(f"class_names must name {count} different classes; got {', '.join(names)}")
    return graph.replace(schema=Schema(class_names=dict.fromkeys(labelled, names)))


def splits_of(arrays: Mapping[str, Array], index: int | None) -> dict[str, Array]:
    """Return the stored split as ids or masks by name; of several stored splits, the one at ``index``."""
    if index is not None:
        masks = {name: arrays[f"{name}_masks"] for name in _SPLITS if f"{name}_masks" in arrays}
        for name, mask in masks.items():
            if mask.ndim != 2 or mask.dtype.kind != "b":
                raise DataError(
                    f"{name}_masks must be a row of True and False per split; got {mask.dtype} of "
                    f"shape {mask.shape}"
                )
        count = min((len(mask) for mask in masks.values()), default=0)
        if not 0 <= index < count:
            raise ConfigError(
                f"split_index must be in [0, {count}) as the file has {count} stored splits; got {index}"
            )
        return {name: mask[index] for name, mask in masks.items()}
    splits = {}
    for name in _SPLITS:
        given = [key for key in (f"{name}_idx", f"{name}_mask") if key in arrays]
        if len(given) > 1:
            raise DataError(f"it has both {given[0]} and {given[1]}; keep one of them")
        if given:
            splits[name] = _split(given[0], arrays[given[0]])
    return splits


def _split(key: str, array: Array) -> Array:
    if array.ndim != 1:
        hint = f"; choose one with split_index, stored as {key}s" if array.ndim == 2 else ""
        raise DataError(f"{key} must be 1-d; got shape {array.shape}{hint}")
    if key.endswith("_mask"):
        if array.dtype.kind in "iu" and ((array == 0) | (array == 1)).all():
            return array.astype(bool)
        if array.dtype.kind != "b":
            raise DataError(f"{key} must hold True and False; got {array.dtype}")
    elif array.dtype.kind not in "iu" and array.size:
        raise DataError(f"{key} must hold integer node ids; got {array.dtype}")
    return array


I64 = npt.NDArray[np.int64]


def typed_graph(arrays: Mapping[str, Array], split_index: int | None, name: str) -> Graph:
    """Make a graph from arrays with types, whose ids count through all nodes; DataError if one is unfit."""
    edge_index = _integers(arrays, "edge_index", ndim=2)
    first = _first_ids(arrays, edge_index)
    names = _names(arrays, "node_type_names", len(first) - 1, alone=ONLY_NODE_TYPE)
    unread = [key for key in ("x", *CSR_KEYS) if key in arrays and names != [ONLY_NODE_TYPE]]
    if unread:
        raise DataError(
            f"it has node types, so an array of features needs the name of its type: x_{names[0]}"
            f"{unread[0][1:]}, not {unread[0]}"
        )
    ends, places = {}, {}
    for edge_type, place in _relations(arrays, edge_index, first, names):
        source, destination = names.index(edge_type[0]), names.index(edge_type[2])
        shift = np.array([[first[source]], [first[destination]]])
        ends[edge_type], places[edge_type] = edge_index[:, place] - shift, place
    nodes = {name: slice(first[t], first[t + 1]) for t, name in enumerate(names)}
    return Graph.from_relations(
        ends,
        {name: part.stop - part.start for name, part in nodes.items()},
        x={name: _features(arrays, name) for name in names},
        y={name: _labels(arrays, part) for name, part in nodes.items()},
        splits=_splits(splits_of(arrays, split_index), nodes),
        edge_weight=_by_edge(arrays, "edge_weight", places),
        edge_attr=_by_edge(arrays, "edge_attr", places),
        edge_time=_by_edge(arrays, "edge_time", places),
        edge_splits=_edge_splits(arrays, places),
        name=name,
    )


def _integers(arrays: Mapping[str, Array], key: str, *, ndim: int = 1) -> I64:
    array = arrays[key]
    if array.ndim != ndim or (array.size and array.dtype.kind not in "iu"):
        raise DataError(f"{key} must be {ndim}-d integers; got {array.dtype} of shape {array.shape}")
    if ndim == 2 and len(array) != 2:
        raise DataError(f"{key} must have shape (2, num_edges); got {array.shape}")
    return array.astype(np.int64, copy=False)


def _first_ids(arrays: Mapping[str, Array], edge_index: I64) -> list[int]:
    """Return the first id of each node type, and at the end the number of nodes."""
    if "node_type" not in arrays:
        num_nodes = num_nodes_of(arrays)
        return [0, int(edge_index.max(initial=-1)) + 1 if num_nodes is None else num_nodes]
    types = _integers(arrays, "node_type")
    falls = np.flatnonzero(types[1:] < types[:-1])
    if falls.size or types.min(initial=0) < 0:
        at = int(falls[0]) + 1 if falls.size else int(types.argmin())
        raise DataError(
            "node_type must not be negative nor fall, so that each type has ids without gaps; "
            f"node_type[{at}] is {types[at]}"
        )
    num_nodes = num_nodes_of(arrays)
    if num_nodes is not None and num_nodes != len(types):
        raise DataError(f"node_type has {len(types)} entries; num_nodes is {num_nodes}")
    least = len(arrays["node_type_names"]) if "node_type_names" in arrays else 0
    return [0, *np.cumsum(np.bincount(types, minlength=least)).tolist()]


def _names(arrays: Mapping[str, Array], key: str, count: int, alone: str | None = None) -> list[str]:
    if key not in arrays:
        return [alone] if alone is not None and count == 1 else [str(number) for number in range(count)]
    names = [str(name) for name in arrays[key].reshape(-1)]
    if len(names) != count or len(set(names)) != count:
        raise DataError(f"{key} must be {count} different names; got {', '.join(names)}")
    return names


def _relations(
    arrays: Mapping[str, Array], edge_index: I64, first: list[int], names: list[str]
) -> Iterator[tuple[EdgeType, I64]]:
    """Yield each relation with the positions of its edges in the file's list."""
    outside = (edge_index < 0) | (edge_index >= first[-1])
    if outside.any():
        row, at = (int(i) for i in np.argwhere(outside)[0])
        raise DataError(
            f"edge_index must hold node ids in [0, {first[-1]}); edge_index[{row}, {at}] is "
            f"{edge_index[row, at]}"
        )
    types = np.searchsorted(first, edge_index, side="right") - 1
    if "edge_type" in arrays:
        numbers = _integers(arrays, "edge_type")
    else:
        numbers = types[0] * len(names) + types[1]
        numbers = np.unique(numbers, return_inverse=True)[1].reshape(-1)
    if len(numbers) != edge_index.shape[1] or numbers.min(initial=0) < 0:
        raise DataError(
            f"edge_type must have a number from 0 for each of {edge_index.shape[1]} edges; got "
            f"{len(numbers)} from {numbers.min(initial=0)}"
        )
    count = max(_count(arrays), int(numbers.max(initial=-1)) + 1)
    titles = _names(arrays, "edge_type_names", count) if "edge_type_names" in arrays else [""] * count
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(count + 1))
    for number, title in enumerate(titles):
        place = order[ends[number] : ends[number + 1]]
        yield _edge_type(number, title, types[:, place], names), place


def _count(arrays: Mapping[str, Array]) -> int:
    """Return how many relations the file says it has; some may have no edge."""
    if "edge_type_names" in arrays:
        return len(arrays["edge_type_names"])
    return int(_integers(arrays, "num_edge_types", ndim=0)) if "num_edge_types" in arrays else 0


def _edge_type(number: int, title: str, ends: I64, names: list[str]) -> EdgeType:
    """Return types and name of a relation. A title "source--destination" has the types, others the name."""
    source, _, destination = title.partition("--")
    if source in names and destination in names:
        said = names.index(source), names.index(destination)
    elif ends.shape[1] or len(names) == 1:
        said = (int(ends[0, 0]), int(ends[1, 0])) if ends.shape[1] else (0, 0)
    else:
        raise DataError(f"the relation {title or number} has no edge that would say what types it joins")
    wrong = np.flatnonzero((ends != np.array(said)[:, None]).any(0))
    if wrong.size:
        source, destination = (names[int(end)] for end in ends[:, wrong[0]])
        raise DataError(
            f"the relation {title or number} joins {names[said[0]]} to {names[said[1]]}; one of its "
            f"edges joins {source} to {destination}"
        )
    name = "to" if f"{names[said[0]]}--{names[said[1]]}" == title else title or f"r{number}"
    return names[said[0]], name, names[said[1]]


def _features(arrays: Mapping[str, Array], name: str) -> Any:
    keys = {key: f"x_{name}{key[1:]}" for key in ("x", *CSR_KEYS)}
    held = {key: arrays[stored] for key, stored in keys.items() if stored in arrays}
    return features_of(held if held or name != ONLY_NODE_TYPE else arrays)


def _labels(arrays: Mapping[str, Array], part: slice) -> Array | None:
    """Return the labels of one type; None if none of its nodes has one."""
    if "y" not in arrays:
        return None
    y = arrays["y"][part]
    return None if y.dtype.kind in "iu" and (y < 0).all() else y


def _splits(splits: Mapping[str, Array], nodes: Mapping[str, slice]) -> dict[str, dict[str, Array]]:
    found: dict[str, dict[str, Array]] = {name: {} for name in nodes}
    total = max((part.stop for part in nodes.values()), default=0)
    for split, given in splits.items():
        ids = np.flatnonzero(given) if given.dtype.kind == "b" else given
        outside = np.flatnonzero((ids < 0) | (ids >= total))
        if outside.size:
            at = int(outside[0])
            raise DataError(f"split {split!r} must hold node ids in [0, {total}); {split}[{at}] is {ids[at]}")
        for name, part in nodes.items():
            own = ids[(ids >= part.start) & (ids < part.stop)] - part.start
            if own.size:
                found[name][split] = own
    return found


def _by_edge(arrays: Mapping[str, Array], key: str, places: Mapping[EdgeType, I64]) -> dict[EdgeType, Array]:
    if key not in arrays:
        return {}
    values, num_edges = arrays[key], sum(map(len, places.values()))
    if values.ndim < 1 or len(values) != num_edges:
        raise DataError(f"{key} must have a row for each of {num_edges} edges; got {values.shape}")
    return {edge_type: values[place] for edge_type, place in places.items()}


def _edge_splits(
    arrays: Mapping[str, Array], places: Mapping[EdgeType, I64]
) -> dict[EdgeType, dict[str, I64]]:
    """Return the positions of the training, validation and test edges in each relation's list."""
    if "edge_split_ptr" not in arrays:
        return {}
    ends, num_edges = _integers(arrays, "edge_split_ptr"), sum(map(len, places.values()))
    if len(ends) != 4 or ends[0] != 0 or ends[-1] != num_edges or (np.diff(ends) < 0).any():
        raise DataError(
            f"edge_split_ptr must be four numbers that rise from 0 to {num_edges}; got {ends.tolist()}"
        )
    return {
        edge_type: {
            name: np.flatnonzero((place >= ends[i]) & (place < ends[i + 1])) for i, name in enumerate(_SPLITS)
        }
        for edge_type, place in places.items()
    }


_OF_TYPES = ("node_type", "edge_type", "edge_time", "edge_split_ptr")
"""Arrays that only a graph with types can hold."""


@typed
def load_npz(
    path: str | os.PathLike[str], *, split_index: int | None = None, with_types: bool | None = None
) -> Graph:
    """Read a graph from an ``.npz`` file, keeping its edges (directions, repeats, loops) as they are stored.

    A file with ``node_type``, ``edge_type``, ``edge_time`` or ``edge_split_ptr`` becomes a graph with types,
    since a plain graph cannot hold these. Each type of edge is a relation, with its times and splits.

    Args:
        path: The file.
        split_index: Index of one of several stored splits (``train_masks``, ``val_masks``, ``test_masks``).
            If None, the single stored split.
        with_types: Whether the graph has types. If None, it has types if the file has one of the arrays
            above. If False, these arrays are left out, ids count through all nodes, and ``edge_id`` gives the
            position of each edge in the file.

    Raises:
        DataError: The file is missing or damaged, lacks keys, or its arrays do not fit together;
            names the file.
        ConfigError: ``split_index`` names a split the file does not have.
    """
    file = Path(path)
    arrays = read_npz(file)
    if "edge_index" not in arrays:
        raise DataError(f"{file} has no edge_index; its keys are {', '.join(sorted(arrays)) or 'none'}")
    try:
        if any(key in arrays for key in _OF_TYPES) if with_types is None else with_types:
            return with_class_names(arrays, typed_graph(arrays, split_index, file.stem))
        graph = Graph.from_edge_index(
            arrays["edge_index"],
            num_nodes_of(arrays),
            x=features_of(arrays),
            y=arrays.get("y"),
            splits=splits_of(arrays, split_index),
            edge_weight=arrays.get("edge_weight"),
            edge_attr=arrays.get("edge_attr"),
            name=file.stem,
        )
        for split, ids in graph.splits.items():
            check_ids(ids, graph.num_nodes, f"ids of split {split!r}")
        return with_class_names(arrays, graph)
    except DataError as error:
        raise DataError(f"{file}: {error}") from error
