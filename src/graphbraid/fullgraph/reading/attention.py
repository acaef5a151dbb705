"""Readers of GATConv and GATv2Conv, PyG's and graphbraid's own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphbraid.fullgraph.program import FILLS, Attention, DestinationRows, Linear
from graphbraid.fullgraph.reading.exact import Allowed, anything, count, flag, number, one_of, probability
from graphbraid.fullgraph.reading.message_passing import SIZES, plus_own, reads_own, reads_pyg
from graphbraid.fullgraph.reading.module_readers import checked_linear
from graphbraid.fullgraph.reading.reader import LayerCall

_ATTENTION: dict[str, Allowed] = SIZES | {
    "heads": count,
    "concat": flag,
    "negative_slope": number,
    "dropout": probability,
    "add_self_loops": flag,
}
_PYG_ATTENTION = _ATTENTION | {
    "edge_dim": lambda value: value is None or count(value),
    "fill_value": anything,  # checked only if there are edge features
    "residual": flag,
    "lin_edge": one_of(None),
}
_TWO = ("lin_src", "lin_dst")
"""GAT's maps of the sources' and of the destinations' rows, in the place of one for both."""
_OF_GAT: dict[str, Allowed] = dict.fromkeys(("lin", *_TWO), one_of(None))
_TAKES = ("x", "edge_index", "edge_attr", "size", "return_attention_weights")


@reads_pyg(
    "gat_conv.GATConv",
    attributes=_PYG_ATTENTION | _OF_GAT,
    children=("lin", *_TWO, "lin_edge", "res"),
    parameters=("att_src", "att_dst", "bias"),
    optional=("att_edge", "res"),
    takes=_TAKES,
    relates=True,
    weights=False,
)
def _read_pyg_gat(call: LayerCall) -> str:
    edges = _edge_part(call)
    return _gat(call, **(edges | {"edge_vector": call.layer.att_edge} if edges else {}))


def _edge_part(call: LayerCall) -> dict[str, Any]:
    """Return the map of the edge features and the fill of self-loops; empty if the layer reads none."""
    conv, channels = call.layer, call.edges.channels
    if channels is None:
        return {}
    if conv.add_self_loops and not _can_fill(conv.fill_value, channels):
        raise call.refuse(f"with fill_value={conv.fill_value!r} has no lowered form", "another fill_value")
    if conv._modules.get("lin_edge") is None:
        return {}
    linear = checked_linear(call, "lin_edge", has_bias=False)
    if linear.weight.shape[1] != channels:
        raise call.refuse(f"takes {linear.weight.shape[1]} edge features; the graph has {channels}")
    return {"edge_weight": linear.weight, "fill": conv.fill_value}


def _can_fill(value: Any, channels: int) -> bool:
    """Return whether the engine supports a ``fill_value``: numbers, or the name of a reduction."""
    if isinstance(value, Tensor):
        fits = value.numel() == 1 or tuple(value.shape) in ((channels,), (1, channels))
        return fits and value.dim() <= 2 and value.is_floating_point() and not value.requires_grad
    return number(value) or (type(value) is str and value in FILLS)


@reads_own(
    "gat.GATConv",
    _ATTENTION | {"row_dropout": probability, "res": one_of(None)},
    ("lin", "res"),
    ("att_src", "att_dst"),
)
def _gat(call: LayerCall, **edges: Any) -> str:
    conv, writer = call.layer, call.writer
    if call.own != call.x or conv._modules.get("lin") is None:
        return _gat_of_two(call, **edges)
    lin = checked_linear(call, "lin", has_bias=False)
    rows = writer.add(Linear, call.x, weight=lin.weight)
    p = float(getattr(conv, "row_dropout", 0.0)) if conv.training else 0.0
    summed = writer.epilogue(rows, p=p)
    inputs = (rows,) if summed == rows else (summed, rows)
    return _attend("gat", call, inputs, (conv.att_src, conv.att_dst), **edges)


def _gat_of_two(call: LayerCall, **edges: Any) -> str:
    """Read a layer whose destinations have other rows than its sources, or another map of the same."""
    conv, (x, own) = call.layer, _two_rows(call)
    of_both = conv._modules.get("lin") is not None
    left, right = (checked_linear(call, key, has_bias=False) for key in (("lin",) * 2 if of_both else _TWO))
    rows = call.writer.add(Linear, x, weight=left.weight)
    own_rows = call.writer.add(Linear, call.writer.add(DestinationRows, own), weight=right.weight)
    return _attend("gat", call, (rows, own_rows), (conv.att_src, conv.att_dst), own_rows=True, **edges)


def _two_rows(call: LayerCall) -> list[str]:
    """Return the values of the sources' and the destinations' rows, at one level.

    Raises:
        NotLoweredError: they are of two types, and a node of one would be its own neighbour.
    """
    if call.own != call.x and call.layer.add_self_loops:
        what = "with self-loops between two kinds of rows has no lowered form"
        raise call.refuse(what, "add_self_loops=False")
    return call.writer.on_one_level(call.x, call.own)


@reads_pyg(
    "gatv2_conv.GATv2Conv",
    attributes=_PYG_ATTENTION | {"share_weights": flag},
    children=("lin_l", "lin_r", "lin_edge", "res"),
    parameters=("att", "bias"),
    optional=("res",),
    takes=_TAKES,
    relates=True,
    weights=False,
)
def _read_pyg_gatv2(call: LayerCall) -> str:
    if call.edges.channels is not None and call.layer._modules.get("lin_edge") is None:
        raise call.refuse("gets edge_attr without edge_dim, which PyG refuses", "edge_dim=, or no edge_attr")
    return _gatv2(call, **_edge_part(call))


@reads_own(
    "gat.GATv2Conv",
    _ATTENTION | {"share_weights": flag, "res": one_of(None)},
    ("lin_l", "lin_r", "res"),
    ("att",),
)
def _gatv2(call: LayerCall, **edges: Any) -> str:
    conv, writer, (x, own) = call.layer, call.writer, _two_rows(call)
    inputs = [writer.linear(x, checked_linear(call, "lin_l"))]
    if conv.lin_r is not conv.lin_l or own != x:
        inputs.append(writer.linear(writer.add(DestinationRows, own), checked_linear(call, "lin_r")))
    return _attend("gatv2", call, tuple(inputs), (conv.att,), **edges)


def _attend(
    kind: str, call: LayerCall, inputs: tuple[str, ...], vectors: tuple[Any, ...], **edges: Any
) -> str:
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
        relation=call.edges.relation,
        **edges,
    )
    if conv._modules.get("res") is not None:
        out = plus_own(call, out, "res")
    return call.writer.epilogue(out, bias=conv.bias)
