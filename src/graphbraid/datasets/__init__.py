"""Data sets: the embedded generated ones, readers for files others wrote, and the on-disk store."""

from graphbraid.datasets.ids import NodeIds
from graphbraid.datasets.store import StoreNames, is_store, open_names, open_store, save_store
from graphbraid.datasets.synthetic import DEFAULT, EMBEDDED, load_embedded

__all__ = [
    "DEFAULT",
    "EMBEDDED",
    "NodeIds",
    "StoreNames",
    "is_store",
    "load_embedded",
    "open_names",
    "open_store",
    "save_store",
]
