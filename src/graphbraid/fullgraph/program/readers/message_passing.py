"""Shared parts of the readers of graph layers: the attributes of PyG's base class, and common checks."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from graphbraid.fullgraph.program.maps import AdjacencyMatrix
from graphbraid.fullgraph.program.operations import Linear, Own
from graphbraid.fullgraph.program.readers import exact
from graphbraid.fullgraph.program.readers.exact import Allowed, Known, anything, count, flag, one_of
from graphbraid.fullgraph.program.readers.reading import LayerCall, Reader, Registry
from graphbraid.fullgraph.program.readers.rowwise import checked_linear

PYG, OWN = "torch_geometric.nn.conv", "graphbraid.nn"
"""Modules that hold the classes."""
OWN_TAKES = ("x", "csc")
"""Arguments of graphbraid's own layers."""
WEIGHTED = ("x", "edge_index", "edge_weight")
"""Arguments of PyG's layers that read edge weights."""
SIZES: dict[str, Allowed] = {"in_channels": anything, "out_channels": count}
"""Attributes of most layers about their numbers of columns."""
_AGGREGATIONS = {"add": "SumAggregation", "sum": "SumAggregation", "mean": "MeanAggregation"}
_AGGREGATIONS |= {"max": "MaxAggregation"}


MESSAGE_PASSING: dict[str, Allowed] = {
    "aggr": one_of("add", "sum"),
    "flow": one_of("source_to_target"),
    "node_dim": one_of(-2, 0),
    "fuse": flag,
    "_explain": one_of(None, False),
    "_edge_mask": one_of(None),
    "_loop_mask": one_of(None),
    "_apply_sigmoid": anything,
    "_decomposed_layers": one_of(1),
    "inspector": anything,
    "_user_args": anything,
    "_fused_user_args": anything,
    "_edge_user_args": anything,
}
"""Attributes of PyG's ``MessagePassing``; its hooks must be empty, which is checked for every module."""
_HOOKS = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
MESSAGE_PASSING |= {f"_{name}_forward{pre}_hooks": anything for name in _HOOKS for pre in ("", "_pre")}


def pyg_layer(
    attributes: dict[str, Allowed],
    *,
    children: tuple[str, ...] = (),
    parameters: tuple[str, ...] = (),
    **known: tuple[str, ...],
) -> Known:
    """Return what a layer of PyG may hold: its own attributes and those of its base class."""
    attributes = MESSAGE_PASSING | attributes
    return Known(attributes, parameters, children=("aggr_module", *children), **known)


def check_aggregation(call: LayerCall) -> None:
    """Refuse a layer of PyG whose aggregation module is not the one that its ``aggr`` names.

    Raises:
        NotLoweredError: it is another one; the message names it.
    """
    module, expected = call.layer.aggr_module, _AGGREGATIONS[call.layer.aggr]
    home = sys.modules.get("torch_geometric.nn.aggr.basic")
    if type(module) is not getattr(home, expected, None):
        raise call.refuse(f"with an aggregation of its own, {type(module).__name__}")
    exact.check(f"{call.name}.aggr_module", module, Known({"_deterministic": flag}))


def refuse_weights(call: LayerCall) -> None:
    """Refuse edge weights, for a layer that uses them in PyG only if they come in a sparse matrix.

    Raises:
        NotLoweredError: the edges have weights.
    """
    if call.edges.weighted:
        raise call.refuse("on edges with weights has no lowered form", "edges without weights")


def own_layer(
    attributes: dict[str, Allowed], *, children: tuple[str, ...], parameters: tuple[str, ...] = ()
) -> Known:
    """Return what a layer of graphbraid may hold; a bias of None is a plain attribute, not a parameter."""
    return Known(
        attributes | {"bias": one_of(None)}, parameters=parameters, optional=("bias",), children=children
    )


def pyg_entry(
    file: str, name: str, read: Any, known: Known, takes: tuple[str, ...] = WEIGHTED, **options: Any
) -> Registry:
    """Return the registry entry of a PyG layer, from its module and class name."""
    return {(f"{PYG}.{file}", name): Reader(read, known, takes, **options)}


def normalised(call: LayerCall, *, loops: bool, normalize: bool = True) -> AdjacencyMatrix:
    """Return the adjacency normalised by PyG's ``gcn_norm``, or as it is if not ``normalize``."""
    if not normalize:
        return AdjacencyMatrix(kind="sum", weighted=call.edges.weighted)
    return AdjacencyMatrix(kind="gcn", loop_scale=float(loops), weighted=call.edges.weighted)


def narrows(weight: Tensor) -> bool:
    """Return whether a weight makes rows narrower, so that they are aggregated after it."""
    out_channels, in_channels = weight.shape
    return bool(out_channels < in_channels)


def plus_own(call: LayerCall, out: str, key: str) -> str:
    """Add a linear map, without bias, of the destinations' own rows."""
    own = call.writer.add(Own, call.own)
    linear = checked_linear(call, key, has_bias=False)
    return call.writer.sum(call.writer.add(Linear, own, weight=linear.weight), out)


__all__ = [
    "MESSAGE_PASSING",
    "OWN",
    "OWN_TAKES",
    "PYG",
    "SIZES",
    "WEIGHTED",
    "check_aggregation",
    "narrows",
    "normalised",
    "own_layer",
    "plus_own",
    "pyg_entry",
    "pyg_layer",
    "refuse_weights",
]
