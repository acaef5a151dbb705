"""Reading several aggregations of PyG side by side, such as PNA's, as reductions of one kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.fullgraph.reading.message_passing import ties_of
from graphbraid.ops.message_reductions import REDUCTIONS_OF_SEVERAL, SCALERS, SeveralReductions
from graphbraid.ops.spmm import Ties

_TIES: tuple[Ties, ...] = ("shared", "shared with zero")
"""Ways of sharing the gradient of equal messages that the kernel has."""


def several_reductions(
    layer: Any, shape: tuple[int, ...], refuse: Callable[[str], NotLoweredError]
) -> SeveralReductions | None:
    """Return what a layer's aggregation computes of messages; None if it is anything else.

    Args:
        layer: the layer, whose aggregation is made of PyG's own classes.
        shape: the shape of an edge's message.
        refuse: makes an error about the layer.
    """
    module, scalers, averages = layer.aggr_module, ("identity",), None
    if _overrides(layer):
        return None
    if type(module).__name__ == "DegreeScalerAggregation":
        scalers, averages, module = tuple(module.scaler), module, module.aggr
        learned = any(isinstance(one, nn.Parameter) for one in (averages.avg_deg_lin, averages.avg_deg_log))
        if learned or not SCALERS.issuperset(scalers):
            return None
    parts = [module]
    if type(module).__name__ == "MultiAggregation":
        parts = list(module.aggrs) if module.mode == "cat" or len(module.aggrs) == 1 else parts
    names = tuple(type(one).__name__.removesuffix("Aggregation").lower() for one in parts)
    inner = [one for part in parts for one in part.modules()]
    is_whole = not any(getattr(one, key, False) for one in inner for key in ("semi_grad", "_deterministic"))
    if not is_whole or len(set(names)) < len(names) or not REDUCTIONS_OF_SEVERAL.issuperset(names):
        return None
    simple: Any = sys.modules["torch_geometric.nn.conv.simple_conv"]
    extrema = [simple.SimpleConv(aggr=name) for name in names if name in ("max", "min")]
    ties: Ties = "shared"
    try:
        for one in extrema:
            ties = ties_of(one, refuse, known=(ties,) if one is not extrema[0] else _TIES)
    except NotLoweredError:  # no kernel shares their gradients so, or not all share them alike
        return None
    return SeveralReductions(names=names, shape=shape, ties=ties, scalers=scalers, averages=averages)


def _overrides(layer: Any) -> bool:
    """Return whether a layer has an ``aggregate`` of its own."""
    home = "torch_geometric.nn.conv.message_passing"
    base: Any = next(kind for kind in type(layer).__mro__ if kind.__module__ == home)
    return type(layer).aggregate is not base.aggregate


__all__ = ["several_reductions"]
