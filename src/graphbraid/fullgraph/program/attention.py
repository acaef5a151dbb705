"""Readers of GATConv and GATv2Conv, PyG's and graphbraid's own."""

from __future__ import annotations

from typing import Any

from graphbraid.fullgraph.program.exact import Allowed, anything, count, flag, number, one_of, probability
from graphbraid.fullgraph.program.message_passing import (
    OWN,
    OWN_TAKES,
    PYG,
    check_aggregation,
    own_layer,
    plus_own,
    pyg_layer,
    refuse_weights,
)
from graphbraid.fullgraph.program.operations import Attention, Linear, Own
from graphbraid.fullgraph.program.reading import LayerCall, Reader, Registry
from graphbraid.fullgraph.program.rowwise import checked_linear

# ---- GAT


def _read_pyg_gat(call: LayerCall) -> str:
    check_aggregation(call)
    refuse_weights(call)
    return _gat(call)


def _gat(call: LayerCall) -> str:
    conv, writer = call.layer, call.writer
    lin = checked_linear(call, "lin", has_bias=False)
    rows = writer.add(Linear, call.x, weight=lin.weight)
    p = float(getattr(conv, "row_dropout", 0.0)) if conv.training else 0.0
    summed = writer.epilogue(rows, p=p)
    inputs = (rows,) if summed == rows else (summed, rows)
    return _attend("gat", call, inputs, (conv.att_src, conv.att_dst))


def _read_pyg_gatv2(call: LayerCall) -> str:
    check_aggregation(call)
    refuse_weights(call)
    return _gatv2(call)


def _gatv2(call: LayerCall) -> str:
    conv, writer = call.layer, call.writer
    inputs = [writer.linear(call.x, checked_linear(call, "lin_l"))]
    if conv.lin_r is not conv.lin_l:
        inputs.append(writer.linear(writer.add(Own, call.x), checked_linear(call, "lin_r")))
    return _attend("gatv2", call, tuple(inputs), (conv.att,))


def _attend(kind: str, call: LayerCall, inputs: tuple[str, ...], vectors: tuple[Any, ...]) -> str:
    conv = call.layer
    out = call.writer.add(
        Attention,
        *inputs,
        kind=kind,
        heads=conv.heads,
        channels=conv.out_channels,
        concat=conv.concat,
        negative_slope=conv.negative_slope,
        self_loops=conv.add_self_loops,
        dropout=float(conv.dropout) if conv.training else 0.0,
        vectors=vectors,
    )
    if conv._modules.get("res") is not None:
        out = plus_own(call, out, "res")
    return call.writer.epilogue(out, bias=conv.bias)


_ATTENTION: dict[str, Allowed] = {
    "in_channels": anything,  # the weights say it; of a layer made by its first run it stays -1
    "out_channels": count,
    "heads": count,
    "concat": flag,
    "negative_slope": number,
    "dropout": probability,
    "add_self_loops": flag,
}
_PYG_ATTENTION = _ATTENTION | {
    "edge_dim": one_of(None),
    "fill_value": anything,  # of edge features, which are refused or not read
    "residual": flag,
    "lin_edge": one_of(None),
}
_NO_EDGE = {"lin_src": one_of(None), "lin_dst": one_of(None)}


_ATTENDS = ("x", "edge_index", "edge_attr", "size", "return_attention_weights")
ATTENTION: Registry = {
    (f"{PYG}.gat_conv", "GATConv"): Reader(
        _read_pyg_gat,
        pyg_layer(
            _PYG_ATTENTION | _NO_EDGE,
            children=("lin", "res"),
            parameters=("att_src", "att_dst", "bias"),
            optional=("att_edge", "res"),
        ),
        _ATTENDS,
    ),
    (f"{PYG}.gatv2_conv", "GATv2Conv"): Reader(
        _read_pyg_gatv2,
        pyg_layer(
            _PYG_ATTENTION | {"share_weights": flag},
            children=("lin_l", "lin_r", "res"),
            parameters=("att", "bias"),
            optional=("res",),
        ),
        _ATTENDS,
    ),
    (f"{OWN}.gat", "GATConv"): Reader(
        _gat,
        own_layer(
            _ATTENTION | {"row_dropout": probability, "res": one_of(None)},
            parameters=("att_src", "att_dst"),
            children=("lin", "res"),
        ),
        OWN_TAKES,
    ),
    (f"{OWN}.gat", "GATv2Conv"): Reader(
        _gatv2,
        own_layer(
            _ATTENTION | {"share_weights": flag, "res": one_of(None)},
            parameters=("att",),
            children=("lin_l", "lin_r", "res"),
        ),
        OWN_TAKES,
    ),
}
"""The reader of each class."""


__all__ = ["ATTENTION"]
