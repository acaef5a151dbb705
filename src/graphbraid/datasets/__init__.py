"""Datasets: embedded generated graphs, readers for common file formats, and the on-disk store.

:func:`load` takes a name or a path and detects what it is; docs/datasets.md describes every format.
"""

from typing import TYPE_CHECKING

from graphbraid.lazy import names_of

if TYPE_CHECKING:
    from graphbraid.datasets.ids import NodeIds
    from graphbraid.datasets.npz import load_npz
    from graphbraid.datasets.ogb import from_ogb, load_ogb
    from graphbraid.datasets.pyg import from_pyg_dataset
    from graphbraid.datasets.registry import load, prepare
    from graphbraid.datasets.splits import (
        random_share_split,
        random_split,
        split_edges,
        split_graphs,
        split_nodes,
    )
    from graphbraid.datasets.store.changed import Narrowing, Rounding
    from graphbraid.datasets.store.manifest import StoreNames
    from graphbraid.datasets.store.on_disk import is_store, open_names, open_store, save_store
    from graphbraid.datasets.synthetic import DEFAULT, EMBEDDED, load_embedded
    from graphbraid.datasets.tables.file import CsvOptions
    from graphbraid.datasets.tables.reading import TableGraph, from_tables
    from graphbraid.datasets.tables.typed_tables import TypedTableGraph, from_frames, from_typed_tables

__all__ = [
    "DEFAULT",
    "EMBEDDED",
    "CsvOptions",
    "Narrowing",
    "NodeIds",
    "Rounding",
    "StoreNames",
    "TableGraph",
    "TypedTableGraph",
    "from_frames",
    "from_ogb",
    "from_pyg_dataset",
    "from_tables",
    "from_typed_tables",
    "is_store",
    "load",
    "load_embedded",
    "load_npz",
    "load_ogb",
    "open_names",
    "open_store",
    "prepare",
    "random_share_split",
    "random_split",
    "save_store",
    "split_edges",
    "split_graphs",
    "split_nodes",
]

__getattr__ = names_of(
    __name__,
    {
        "ids": "NodeIds",
        "npz": "load_npz",
        "ogb": "from_ogb load_ogb",
        "pyg": "from_pyg_dataset",
        "registry": "load prepare",
        "splits": "random_share_split random_split split_edges split_graphs split_nodes",
        "store.changed": "Narrowing Rounding",
        "store.manifest": "StoreNames",
        "store.on_disk": "is_store open_names open_store save_store",
        "synthetic": "DEFAULT EMBEDDED load_embedded",
        "tables.file": "CsvOptions",
        "tables.reading": "TableGraph from_tables",
        "tables.typed_tables": "TypedTableGraph from_frames from_typed_tables",
    },
)
