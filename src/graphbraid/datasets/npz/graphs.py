"""Reader of graphs in a NumPy ``.npz`` file; docs/datasets.md lists the keys. Pickles are never loaded."""

from __future__ import annotations

import os
from pathlib import Path

from graphbraid.datasets.npy import read_npz
from graphbraid.datasets.npz.arrays import features_of, num_nodes_of, splits_of, with_class_names
from graphbraid.datasets.npz.typed import typed_graph
from graphbraid.errors import DataError
from graphbraid.graph import Graph
from graphbraid.graph.scans import check_ids
from graphbraid.signatures import typed

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
            return with_class_names(file, arrays, typed_graph(file, arrays, split_index))
        graph = Graph.from_edge_index(
            arrays["edge_index"],
            num_nodes_of(file, arrays),
            x=features_of(file, arrays),
            y=arrays.get("y"),
            splits=splits_of(file, arrays, split_index),
            edge_weight=arrays.get("edge_weight"),
            edge_attr=arrays.get("edge_attr"),
            name=file.stem,
        )
        for split, ids in graph.splits.items():
            check_ids(ids, graph.num_nodes, f"ids of split {split!r}")
        return with_class_names(file, arrays, graph)
    except DataError as error:  # of the file, which names it, or of what the arrays make together
        says = str(error)
        raise DataError(says if says.startswith(str(file)) else f"{file}: {says}") from error
