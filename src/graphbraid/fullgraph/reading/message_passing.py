"""Shared by readers of graph layers: the attributes of PyG's base class, common checks and operations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import Tensor, nn

from graphbraid.fullgraph.program import AdjacencyMatrix, DestinationRows, Linear, Scale
from graphbraid.fullgraph.reading.aggregations import AGGREGATIONS
from graphbraid.fullgraph.reading.exact import (
    Allowed,
    Known,
    anything,
    check,
    check_parameter,
    count,
    flag,
    one_of,
)
from graphbraid.fullgraph.reading.module_readers import checked_linear
from graphbraid.fullgraph.reading.reader import LayerCall, reads

PYG, OWN = "torch_geometric.nn.conv", "graphbraid.nn"
"""Modules that hold the classes."""
WEIGHTED = ("x", "edge_index", "edge_weight")
"""Arguments of PyG's layers that read edge weights."""
SIZES: dict[str, Allowed] = {"in_channels": anything, "out_channels": count}
"""Numbers of columns, which most layers hold; the input's stays -1 in a lazily initialised layer."""
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
    attributes: Mapping[str, Allowed], children: tuple[str, ...] = (), **known: tuple[str, ...]
) -> Known:
    """Return the attributes that a layer of PyG may hold: its own and those of its base class."""
    return Known({**MESSAGE_PASSING, **attributes}, children=("aggr_module", *children), **known)


_Read = TypeVar("_Read", bound=Callable[..., str])


def reads_pyg(
    *classes: str,
    attributes: Mapping[str, Allowed],
    takes: tuple[str, ...] = WEIGHTED,
    gives: tuple[str, ...] = (),
    relates: bool = False,
    weights: bool = True,
    encodes: bool = False,
    **known: tuple[str, ...],
) -> Callable[[_Read], _Read]:
    """Enter a function as the reader of PyG's layers, each ``file.Class`` of ``torch_geometric.nn.conv``.

    Args:
        classes: the layers.
        attributes: tests of the values of plain attributes, besides those of PyG's base class.
        takes: see :class:`.Reader`.
        gives: see :class:`.Reader`.
        relates: see :class:`.Reader`.
        weights: whether edges may have weights. Some layers use them only if they come in a sparse matrix.
        encodes: see :class:`.Reader`.
        known: see :class:`.Known`.
    """

    def enter(read: _Read) -> _Read:
        def checked(call: LayerCall) -> str:
            _check_aggregation(call)
            if call.edges.weighted and not weights:
                raise call.refuse("on edges with weights has no lowered form", "edges without weights")
            return read(call)

        names, layer = (f"{PYG}.{name}" for name in classes), pyg_layer(attributes, **known)
        reads(*names, known=layer, takes=takes, gives=gives, relates=relates, encodes=encodes)(checked)
        return read

    return enter


def reads_own(
    name: str,
    attributes: Mapping[str, Allowed],
    children: tuple[str, ...],
    parameters: tuple[str, ...] = (),
    *,
    takes: tuple[str, ...] = ("x", "csc"),
    **known: tuple[str, ...],
) -> Callable[[_Read], _Read]:
    """Enter a function as the reader of a layer of graphbraid, ``file.Class``.

    A bias of None is a plain attribute, not a parameter.
    """
    known = {"optional": ("bias",)} | known
    allowed = Known({**attributes, "bias": one_of(None)}, parameters, children=children, **known)
    return reads(f"{OWN}.{name}", known=allowed, takes=takes)


def _check_aggregation(call: LayerCall) -> None:
    """Refuse a layer of PyG whose aggregation module is not the one that its ``aggr`` names."""
    module, (expected, _) = call.layer.aggr_module, AGGREGATIONS[call.layer.aggr]
    home = sys.modules.get("torch_geometric.nn.aggr.basic")
    if type(module) is not getattr(home, expected, None):
        raise call.refuse(f"with an aggregation of its own, {type(module).__name__}")
    check(f"{call.name}.aggr_module", module, Known({"_deterministic": flag}))


# ---- operations


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
    own = call.writer.add(DestinationRows, call.own)
    linear = checked_linear(call, key, has_bias=False)
    return call.writer.sum(call.writer.add(Linear, own, weight=linear.weight), out)


def loop_scale(call: LayerCall) -> float:
    """Return the factor of a node's own row in GIN's sum; 0 if it is learned, for :func:`plus_scaled`."""
    eps = call.layer.eps
    if isinstance(eps, nn.Parameter):
        check_parameter(call.name, "eps", eps)
        return 0.0
    return 1.0 + float(eps)


def plus_scaled(call: LayerCall, x: str, out: str) -> str:
    """Add the destinations' own rows times ``1 + eps`` to GIN's sum, if ``eps`` is learned."""
    eps, writer = call.layer.eps, call.writer
    if not isinstance(eps, nn.Parameter):
        return out
    return writer.sum(writer.add(Scale, writer.add(DestinationRows, x), factor=eps), out)
