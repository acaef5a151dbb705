"""Kinds: the class that a call of a loader makes, by the data's types and by whether PyG is installed."""

from __future__ import annotations

import functools
from typing import Any

from graphbraid.loader.face import LoaderFace
from graphbraid.loader.link_neighbor import LinkNeighborLoader
from graphbraid.loader.neighbor import NeighborLoader
from graphbraid.loader.presenting import is_without_pyg
from graphbraid.loader.typed.link_neighbor import TypedLinkNeighborLoader
from graphbraid.loader.typed.neighbor import TypedNeighborLoader
from graphbraid.loader.typed.reading import is_typed

_OF_TYPES: dict[type[LoaderFace], type[LoaderFace]] = {
    NeighborLoader: TypedNeighborLoader,
    LinkNeighborLoader: TypedLinkNeighborLoader,
}
"""The loader of graphs with types, by the loader of others."""


def kind_of(called: type[LoaderFace], data: Any) -> type[LoaderFace]:
    """Return the class to make where ``called`` is called with ``data``.

    The loaders that users name stand for those with types and for those that are also PyG's; any other class
    stands for itself.
    """
    if called not in _OF_TYPES:
        return called
    kind = _OF_TYPES[called] if is_typed(data) else called
    also_pygs = _pyg_loaders()
    return kind if also_pygs is None else also_pygs[kind]


@functools.cache
def _pyg_loaders() -> dict[type[LoaderFace], type[LoaderFace]] | None:
    """Return, by loader, its subclass that is also PyG's; None without PyG."""
    try:
        from graphbraid.loader import pyg_loader
    except ModuleNotFoundError as error:
        if not is_without_pyg(error):
            raise
        return None
    return {
        NeighborLoader: pyg_loader.NeighborLoader,
        LinkNeighborLoader: pyg_loader.LinkNeighborLoader,
        TypedNeighborLoader: pyg_loader.TypedNeighborLoader,
        TypedLinkNeighborLoader: pyg_loader.TypedLinkNeighborLoader,
    }
