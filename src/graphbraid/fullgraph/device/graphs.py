"""Copies of a graph's arrays on a device."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures


def csc_on(csc: Csc, place: torch.device) -> Csc:
    """Return an adjacency on a device; the same object if it already is there."""
    if csc.indptr.device == place:
        return csc
    weight = None if csc.weight is None else csc.weight.to(place)
    return Csc(csc.indptr.to(place), csc.indices.to(place), csc.num_src, weight, trusted=True)


def on_place(graph: Graph, place: torch.device) -> Graph:
    """Return the graph with its topology and features on a device; the same object if they already are."""
    csc, x = graph.csc, graph.x
    csc = csc_on(csc, place)
    if isinstance(x, SparseFeatures) and x.values.device != place:
        x = replace(
            x, **{name: getattr(x, name).to(place) for name in ("indptr", "indices", "values")}, trusted=True
        )
    elif isinstance(x, ScaledFeatures | Tensor):
        x = x.to(place)
    return graph if csc is graph.csc and x is graph.x else graph.replace(csc=csc, x=x)


__all__ = ["csc_on", "on_place"]
