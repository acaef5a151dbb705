"""Data sets: the embedded generated ones, readers for files others wrote, and the on-disk store.

:func:`load` takes a name or a path and finds out what it is; docs/datasets.md describes every format.
"""

from graphbraid.datasets.ids import NodeIds
from graphbraid.datasets.npz import load_npz
from graphbraid.datasets.ogb import from_ogb, load_ogb
from graphbraid.datasets.prepare import prepare
from graphbraid.datasets.registry import load
from graphbraid.datasets.splits import random_share_split, random_split
from graphbraid.datasets.store import StoreNames, is_store, open_names, open_store, save_store
from graphbraid.datasets.synthetic import DEFAULT, EMBEDDED, load_embedded

__all__ = [
    "DEFAULT",
    "EMBEDDED",
    "NodeIds",
    "StoreNames",
    "from_ogb",
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
]
