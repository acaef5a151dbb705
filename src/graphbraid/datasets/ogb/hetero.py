"""OGB node datasets with types, such as ogbn-mag: folders as the ``ogb`` package writes them.

These files of a folder are read:

    raw/num-node-dict.csv.gz            a header of node types, and their numbers of nodes
    raw/triplet-type-list.csv.gz        relations: source type, name, destination type
    raw/relations/SOURCE___NAME___DESTINATION/edge.csv.gz, num-edge-list.csv.gz
    raw/node-feat/TYPE/node-feat.csv.gz, node_year.csv.gz
    raw/node-label/TYPE/node-label.csv.gz
    split/NAME/TYPE/{train,valid,test}.csv.gz

A node type may lack features, years, labels and splits.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.datasets.ogb.files import read_gzipped_csv, read_gzipped_names
from graphbraid.datasets.ogb.schema import FoundValues, OgbContents, checked_contents
from graphbraid.errors import DataError
from graphbraid.graph import EdgeType, Graph

_Array = npt.NDArray[Any]

TRIPLETS, COUNTS = "triplet-type-list.csv.gz", "num-node-dict.csv.gz"
_SPLITS = {"train": "train", "val": "valid", "test": "test"}
_YEARS = "node_year.csv.gz"


def is_hetero_folder(folder: Path) -> bool:
    """Return whether an OGB folder has node types and relations."""
    return os.path.lexists(folder / "raw" / TRIPLETS)


def load_ogb_hetero(folder: Path, split: Path | None, labels_of: Any) -> Graph:
    """Read a dataset with types from its folder.

    Args:
        folder: The folder that holds ``raw``.
        split: Folder of the split, which has one for each node type with labels; None for no split.
        labels_of: Function that converts the labels of a file.

    Raises:
        DataError: A file is missing, broken, or does not fit the others; names it.
    """
    raw = folder / "raw"
    counts = _counts(raw / COUNTS)
    edges = {edge_type: _edges(raw, edge_type, counts) for edge_type in _relations(raw / TRIPLETS, counts)}
    nodes = {name: _nodes(raw, split, name, count) for name, count in counts.items()}
    years = {name: _years(raw / "node-feat" / name / _YEARS, count) for name, count in counts.items()}
    try:
        return Graph.from_relations(
            edges,
            counts,
            x={name: one.node_feat for name, one in nodes.items()},
            y={name: labels_of(one.y) for name, one in nodes.items()},
            splits={name: one.splits for name, one in nodes.items()},
            node_time={name: one for name, one in years.items() if one is not None},
            name=folder.name,
        )
    except DataError as error:
        raise DataError(f"{folder}: {error}") from error


def _counts(file: Path) -> dict[str, int]:
    """Return the numbers of nodes by type, in the order of the file."""
    rows = read_gzipped_names(file)
    if len(rows) != 2 or len(rows[0]) != len(rows[1]) or len(set(rows[0])) < len(rows[0]):
        raise DataError(
            f"{file} must have a row of different node types and a row of their numbers of nodes; it has "
            f"{len(rows)} rows"
        )
    counts = {}
    for name, text in zip(*rows, strict=True):
        if not text.isdecimal():
            raise DataError(f"{file}: the number of nodes of type {name!r} is {text!r}")
        counts[name] = int(text)
    return counts


def _relations(file: Path, counts: dict[str, int]) -> list[EdgeType]:
    """Return the relations, in the order of the file."""
    found: list[EdgeType] = []
    for line, row in enumerate(read_gzipped_names(file), start=1):
        if len(row) != 3 or not all(row):
            raise DataError(f"{file}, line {line}: source type, name and destination type are needed")
        edge_type = row[0], row[1], row[2]
        for end in (row[0], row[2]):
            if end not in counts:
                raise DataError(
                    f"{file}, line {line}: {COUNTS} has no node type {end!r}; it has {', '.join(counts)}"
                )
        if edge_type in found:
            raise DataError(f"{file}, line {line}: the relation {edge_type} stands there twice")
        found.append(edge_type)
    return found


def _edges(raw: Path, edge_type: EdgeType, counts: dict[str, int]) -> _Array:
    folder = raw / "relations" / "___".join(edge_type)
    file, told = folder / "edge.csv.gz", folder / "num-edge-list.csv.gz"
    edges = read_gzipped_csv(file, np.int64).T
    if len(edges) != 2:
        raise DataError(f"{file} has {len(edges)} columns; an edge list has 2: source and destination")
    if told.is_file() and (number := read_gzipped_csv(told, np.int64)).tolist() != [[edges.shape[1]]]:
        raise DataError(f"{file} has {edges.shape[1]} edges; {told.name} says {number.reshape(-1).tolist()}")
    for ids, end in zip(edges, (edge_type[0], edge_type[2]), strict=True):
        if (outside := np.flatnonzero((ids < 0) | (ids >= counts[end]))).size:
            at = int(outside[0])
            raise DataError(
                f"{file}, line {at + 1}: there are {counts[end]} nodes of type {end!r}; got the id {ids[at]}"
            )
    return edges


def _nodes(raw: Path, split: Path | None, node_type: str, count: int) -> OgbContents:
    """Return features, labels and splits of a node type, checked as those of a dataset without types."""
    found: FoundValues = {
        "num_nodes": (str(raw / COUNTS), np.array([count])),
        "edge_index": (str(raw), np.empty((2, 0), np.int64)),
    }
    for field, dtype, file in (
        ("node_feat", np.float32, raw / "node-feat" / node_type / "node-feat.csv.gz"),
        ("y", np.float64, raw / "node-label" / node_type / "node-label.csv.gz"),
    ):
        if os.path.lexists(file):
            found[field] = str(file), read_gzipped_csv(file, dtype)
    own = None if split is None else split / node_type
    if own is not None and own.is_dir():
        for ours, theirs in _SPLITS.items():
            file = own / f"{theirs}.csv.gz"
            found[ours] = str(file), read_gzipped_csv(file, np.int64)
        if "y" not in found:
            raise DataError(f"{own} splits nodes of type {node_type!r}, which have no labels")
    return checked_contents(found)


def _years(file: Path, count: int) -> _Array | None:
    if not os.path.lexists(file):
        return None
    years = read_gzipped_csv(file, np.int64).reshape(-1)
    if len(years) != count:
        raise DataError(f"{file} has {len(years)} rows; its type has {count} nodes")
    return years
