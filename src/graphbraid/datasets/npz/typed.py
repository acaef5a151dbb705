"""Graphs of several node types or relations from the arrays of an ``.npz`` file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.datasets.npy import Array
from graphbraid.datasets.npz.arrays import CSR_KEYS, features_of, num_nodes_of, splits_of
from graphbraid.errors import DataError
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.types import ONLY_NODE_TYPE

I64 = npt.NDArray[np.int64]
_EDGE_SPLITS = ("train", "val", "test")


def typed_graph(file: Path, arrays: Mapping[str, Array], split_index: int | None) -> Graph:
    """Make a graph from arrays with ``node_type``, ``edge_type`` or both, whose ids count through all nodes.

    Raises:
        DataError: types and ids contradict each other, or an array does not fit its type.
    """
    edge_index = _integers(file, arrays, "edge_index", ndim=2)
    first = _first_ids(file, arrays, edge_index)
    names = _names(file, arrays, "node_type_names", len(first) - 1, alone=ONLY_NODE_TYPE)
    unread = [key for key in ("x", *CSR_KEYS) if key in arrays and names != [ONLY_NODE_TYPE]]
    if unread:
        raise DataError(
            f"{file} has node types, so an array of features needs the name of its type: x_{names[0]}"
            f"{unread[0][1:]}, not {unread[0]}"
        )
    ends, places = {}, {}
    for edge_type, place in _relations(file, arrays, edge_index, first, names):
        source, destination = names.index(edge_type[0]), names.index(edge_type[2])
        shift = np.array([[first[source]], [first[destination]]])
        ends[edge_type], places[edge_type] = edge_index[:, place] - shift, place
    nodes = {name: slice(first[t], first[t + 1]) for t, name in enumerate(names)}
    return Graph.from_relations(
        ends,
        {name: part.stop - part.start for name, part in nodes.items()},
        x={name: _features(file, arrays, name) for name in names},
        y={name: _labels(arrays, part) for name, part in nodes.items()},
        splits=_splits(splits_of(file, arrays, split_index), nodes),
        edge_weight=_by_edge(file, arrays, "edge_weight", places),
        edge_attr=_by_edge(file, arrays, "edge_attr", places),
        edge_time=_by_edge(file, arrays, "edge_time", places),
        edge_splits=_edge_splits(file, arrays, places),
        name=file.stem,
    )


def _integers(file: Path, arrays: Mapping[str, Array], key: str, *, ndim: int = 1) -> I64:
    array = arrays[key]
    if array.ndim != ndim or (array.size and array.dtype.kind not in "iu"):
        raise DataError(f"{file}: {key} must be {ndim}-d integers; got {array.dtype} of shape {array.shape}")
    if ndim == 2 and len(array) != 2:
        raise DataError(f"{file}: {key} must have shape (2, num_edges); got {array.shape}")
    return array.astype(np.int64, copy=False)


def _first_ids(file: Path, arrays: Mapping[str, Array], edge_index: I64) -> list[int]:
    """Return the first id of each node type, and at the end the number of nodes."""
    if "node_type" not in arrays:
        num_nodes = num_nodes_of(file, arrays)
        return [0, int(edge_index.max(initial=-1)) + 1 if num_nodes is None else num_nodes]
    types = _integers(file, arrays, "node_type")
    falls = np.flatnonzero(types[1:] < types[:-1])
    if falls.size or types.min(initial=0) < 0:
        at = int(falls[0]) + 1 if falls.size else int(types.argmin())
        raise DataError(
            f"{file}: node_type must not be negative nor fall, so that each type has ids without gaps; "
            f"node_type[{at}] is {types[at]}"
        )
    num_nodes = num_nodes_of(file, arrays)
    if num_nodes is not None and num_nodes != len(types):
        raise DataError(f"{file}: node_type has {len(types)} entries; num_nodes is {num_nodes}")
    least = len(arrays["node_type_names"]) if "node_type_names" in arrays else 0
    return [0, *np.cumsum(np.bincount(types, minlength=least)).tolist()]


def _names(
    file: Path, arrays: Mapping[str, Array], key: str, count: int, alone: str | None = None
) -> list[str]:
    if key not in arrays:
        return [alone] if alone is not None and count == 1 else [str(number) for number in range(count)]
    names = [str(name) for name in arrays[key].reshape(-1)]
    if len(names) != count or len(set(names)) != count:
        raise DataError(f"{file}: {key} must be {count} different names; got {', '.join(names)}")
    return names


def _relations(
    file: Path, arrays: Mapping[str, Array], edge_index: I64, first: list[int], names: list[str]
) -> Iterator[tuple[EdgeType, I64]]:
    """Yield each relation with the positions of its edges in the file's list."""
    outside = (edge_index < 0) | (edge_index >= first[-1])
    if outside.any():
        row, at = (int(i) for i in np.argwhere(outside)[0])
        raise DataError(
            f"{file}: edge_index must hold node ids in [0, {first[-1]}); edge_index[{row}, {at}] is "
            f"{edge_index[row, at]}"
        )
    types = np.searchsorted(first, edge_index, side="right") - 1
    if "edge_type" in arrays:
        numbers = _integers(file, arrays, "edge_type")
    else:
        numbers = types[0] * len(names) + types[1]
        numbers = np.unique(numbers, return_inverse=True)[1].reshape(-1)
    if len(numbers) != edge_index.shape[1] or numbers.min(initial=0) < 0:
        raise DataError(
            f"{file}: edge_type must have a number from 0 for each of {edge_index.shape[1]} edges; got "
            f"{len(numbers)} from {numbers.min(initial=0)}"
        )
    count = max(_count(file, arrays), int(numbers.max(initial=-1)) + 1)
    titles = _names(file, arrays, "edge_type_names", count) if "edge_type_names" in arrays else [""] * count
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(count + 1))
    for number, title in enumerate(titles):
        place = order[ends[number] : ends[number + 1]]
        yield _edge_type(file, number, title, types[:, place], names), place


def _count(file: Path, arrays: Mapping[str, Array]) -> int:
    """Return how many relations the file says it has; some may have no edge."""
    if "edge_type_names" in arrays:
        return len(arrays["edge_type_names"])
    return int(_integers(file, arrays, "num_edge_types", ndim=0)) if "num_edge_types" in arrays else 0


def _edge_type(file: Path, number: int, title: str, ends: I64, names: list[str]) -> EdgeType:
    """Name a relation: "source--destination" says its types, any other title is its name between them."""
    source, _, destination = title.partition("--")
    if source in names and destination in names:
        said = names.index(source), names.index(destination)
    elif ends.shape[1] or len(names) == 1:
        said = (int(ends[0, 0]), int(ends[1, 0])) if ends.shape[1] else (0, 0)
    else:
        raise DataError(
            f"{file}: the relation {title or number} has no edge that would say what types it joins"
        )
    wrong = np.flatnonzero((ends != np.array(said)[:, None]).any(0))
    if wrong.size:
        source, destination = (names[int(end)] for end in ends[:, wrong[0]])
        raise DataError(
            f"{file}: the relation {title or number} joins {names[said[0]]} to {names[said[1]]}; one of its "
            f"edges joins {source} to {destination}"
        )
    name = "to" if f"{names[said[0]]}--{names[said[1]]}" == title else title or f"r{number}"
    return names[said[0]], name, names[said[1]]


def _features(file: Path, arrays: Mapping[str, Array], name: str) -> Any:
    keys = {key: f"x_{name}{key[1:]}" for key in ("x", *CSR_KEYS)}
    held = {key: arrays[stored] for key, stored in keys.items() if stored in arrays}
    if not held and name == ONLY_NODE_TYPE:
        return features_of(file, arrays)
    return features_of(file, held)


def _labels(arrays: Mapping[str, Array], part: slice) -> Array | None:
    """Return the labels of one type; None if none of its nodes has one."""
    if "y" not in arrays:
        return None
    y = arrays["y"][part]
    return None if y.dtype.kind in "iu" and (y < 0).all() else y


def _splits(splits: Mapping[str, Array], nodes: Mapping[str, slice]) -> dict[str, dict[str, Array]]:
    """Return each split's ids by node type."""
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


def _by_edge(
    file: Path, arrays: Mapping[str, Array], key: str, places: Mapping[EdgeType, I64]
) -> dict[EdgeType, Array]:
    if key not in arrays:
        return {}
    values, num_edges = arrays[key], sum(map(len, places.values()))
    if values.ndim < 1 or len(values) != num_edges:
        raise DataError(f"{file}: {key} must have a row for each of {num_edges} edges; got {values.shape}")
    return {edge_type: values[place] for edge_type, place in places.items()}


def _edge_splits(
    file: Path, arrays: Mapping[str, Array], places: Mapping[EdgeType, I64]
) -> dict[EdgeType, dict[str, I64]]:
    """Return the positions, in each relation's list, of the edges to train on, to choose by and to test."""
    if "edge_split_ptr" not in arrays:
        return {}
    ends, num_edges = _integers(file, arrays, "edge_split_ptr"), sum(map(len, places.values()))
    if len(ends) != 4 or ends[0] != 0 or ends[-1] != num_edges or (np.diff(ends) < 0).any():
        raise DataError(
            f"{file}: edge_split_ptr must be four numbers that rise from 0 to {num_edges}; got "
            f"{ends.tolist()}"
        )
    return {
        edge_type: {
            name: np.flatnonzero((place >= ends[i]) & (place < ends[i + 1]))
            for i, name in enumerate(_EDGE_SPLITS)
        }
        for edge_type, place in places.items()
    }
