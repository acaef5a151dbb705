"""Functions of PyG over edges that a trace records as one call each, while layers are traced."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn

from graphbraid.fullgraph.reading.stand_ins import recording

_UTILS = "torch_geometric.utils"


_RECORDED = (
    *("degree", "scatter", "softmax", "coalesce", "sort_edge_index", "to_undirected", "is_undirected"),
    *("add_self_loops", "remove_self_loops", "add_remaining_self_loops", "contains_self_loops"),
)
"""Functions of ``torch_geometric.utils``."""


def softmax_of_edges() -> Any:
    """Return PyG's softmax over the edges of each destination; None where PyG is not imported."""
    return getattr(sys.modules.get(f"{_UTILS}._softmax"), "softmax", None)


@contextmanager
def recorded_functions(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Record functions of PyG over edges where a layer's methods name them, if a trace follows an argument.

    Any other call is left as it is.
    """
    found = [vars(sys.modules.get(_UTILS, fx)).get(name) for name in _RECORDED]
    found.append(getattr(sys.modules.get("torch_geometric.nn.conv.gcn_conv"), "gcn_norm", None))
    stand_ins = {id(one): recording(one) for one in found if one is not None}
    methods = (f for layer in layers for base in type(layer).__mro__ for f in vars(base).values())
    spaces = {id(f.__globals__): f.__globals__ for f in methods if hasattr(f, "__globals__")}
    if (utils := sys.modules.get(_UTILS)) is not None:
        spaces[id(vars(utils))] = vars(utils)
    replaced = [
        (names, key, value)
        for names in spaces.values()
        for key, value in list(names.items())
        if id(value) in stand_ins
    ]
    for names, key, value in replaced:
        names[key] = stand_ins[id(value)]
    try:
        yield
    finally:
        for names, key, value in replaced:
            names[key] = value


__all__ = ["recorded_functions", "softmax_of_edges"]
