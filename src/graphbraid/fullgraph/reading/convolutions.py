"""Readers of GCN's, GraphSAGE's, GIN's and GAT's layers, PyG's and graphbraid's own, and of its models.

graphbraid's own layers call its kernels, and a trace cannot look into these. The same functions read PyG's,
which traces would read less well: docs/decisions/0018-size-of-the-rooms.md.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.aggregations import (
    OWN,
    SIZES,
    loop_scale,
    own_layer,
    plus_own,
    plus_scaled,
    reads_pyg,
    reduced,
)
from graphbraid.fullgraph.reading.exact import (
    Allowed,
    Known,
    anything,
    check,
    count,
    flag,
    number,
    one_of,
    probability,
)
from graphbraid.fullgraph.reading.message_reader import read_messages
from graphbraid.fullgraph.reading.messages import own_messages
from graphbraid.fullgraph.reading.module_readers import rowwise
from graphbraid.fullgraph.reading.reader import (
    Edges,
    LayerCall,
    Writer,
    as_linear,
    checked_linear,
    checked_reader,
    reader_of,
    reads,
)
from graphbraid.fullgraph.reading.trace_context import recording, softmax_of_edges
from graphbraid.nn import GAT, GCN, GIN, MLP, GATv2, GraphSAGE, module_traits
from graphbraid.ops.epilogue import ACTIVATIONS

# ---- GCN

_GCN: dict[str, Allowed] = SIZES | {"improved": flag, "add_self_loops": flag, "normalize": flag}
_CACHE: dict[str, Allowed] = {"cached": flag, "_cached_edge_index": anything, "_cached_adj_t": anything}


@reads_pyg(
    "gcn_conv.GCNConv", attributes=_GCN | _CACHE, children=("lin",), parameters=("bias",), relates=True
)
@reads(f"{OWN}.gcn.GCNConv", known=own_layer(_GCN, ("lin",)), takes=("x", "csc", "edge_weight"))
def _gcn(call: LayerCall) -> str:
    conv, writer, is_own = call.layer, call.writer, not hasattr(call.layer, "cached")
    # PyG adds self-loops of weight 2 only if the edges have weights.
    fill = 2.0 if conv.improved and (is_own or call.edges.weighted or call.edges.sparse) else 1.0
    if not (is_own or _cache_fits(call)):
        raise call.refuse("keeps coefficients of other edges", "conv.reset_parameters(), or cached=False")
    weight = checked_linear(call, "lin", has_bias=False).weight
    if call.several:  # PyG refuses it, too
        raise call.refuse("of a pair of matrices has no lowered form", "one matrix of node rows")
    rows = writer.add(ir.Linear, call.x, weight=weight)
    out = writer.add(ir.Aggregate, rows, adjacency=normalised(call, fill))
    return writer.epilogue(out, bias=conv.bias)


def normalised(call: LayerCall, fill: float = 1.0) -> ir.AdjacencyMatrix:
    """Return the adjacency that a layer's attributes ask for: normalised by PyG's ``gcn_norm``, or as it is.

    Self-loops that the layer adds have the weight ``fill``.
    """
    conv = call.layer
    of: dict[str, Any] = {"weighted": call.edges.weighted, "relation": call.edges.relation}
    if not getattr(conv, "normalize", True):
        return ir.AdjacencyMatrix(kind="sum", **of)
    loops = fill if getattr(conv, "add_self_loops", False) else 0.0
    return ir.AdjacencyMatrix(kind="gcn", loop_scale=loops, **of)


def _cache_fits(call: LayerCall) -> bool:
    """Return whether coefficients that a layer cached in an earlier run, if any, are those of this graph."""
    conv, graph = call.layer, call.edges.graph
    if conv._cached_edge_index is None:
        return conv._cached_adj_t is None
    if graph is None or call.edges.sparse or conv._cached_adj_t is not None:
        return False
    gcn_norm = sys.modules[type(conv).__module__].gcn_norm
    weight = graph.csc.weight if call.edges.weighted else None
    edges = torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])
    expected = gcn_norm(edges, weight, graph.num_nodes, conv.improved, conv.add_self_loops)
    ours, theirs = (sorted_edges(pair, graph.num_nodes) for pair in (expected, conv._cached_edge_index))
    return ours[0].equal(theirs[0]) and torch.allclose(ours[1], theirs[1], rtol=1e-4, atol=1e-7)


def sorted_edges(weighted: tuple[Tensor, Tensor], num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return a number for each edge and its weight, in an order that is the same for any order of edges."""
    edges, weight = weighted
    weight, order = weight.sort()
    key, stable = (edges[1] * num_nodes + edges[0])[order].sort(stable=True)
    return key, weight[stable]


# ---- GraphSAGE

_SAGE: dict[str, Allowed] = SIZES | dict.fromkeys(("normalize", "root_weight"), flag)
_SAGE |= {"aggr": one_of("mean", "sum", "add", "max")}
_NONE = one_of(None)


@reads_pyg(
    "sage_conv.SAGEConv",
    attributes=_SAGE | {"project": flag},
    children=("lin", "lin_l", "lin_r"),
    takes=("x", "edge_index", "size"),
    relates=True,
    weights=False,
)
@reads(
    f"{OWN}.conv.SAGEConv",
    known=Known(_SAGE | {"lin": _NONE, "lin_r": _NONE}, children=("lin", "lin_l", "lin_r")),
    takes=("x", "csc"),
)
def _sage(call: LayerCall) -> str:
    conv, writer, rows = call.layer, call.writer, call.x
    if conv._modules.get("lin") is not None and getattr(conv, "project", True):
        rows = writer.epilogue(writer.linear(rows, checked_linear(call, "lin")), act="relu")
    left = checked_linear(call, "lin_l")
    out = reduced(call, rows, left.weight)
    if conv.root_weight:
        out = plus_own(call, out, "lin_r")
    out = writer.epilogue(out, bias=left.bias)
    return writer.add(ir.UnitRows, out) if conv.normalize else out


# ---- GIN and GINE


@reads_pyg(
    "gin_conv.GINConv",
    attributes={"initial_eps": anything},
    children=("nn",),
    buffers=("eps",),
    optional=("eps",),
    takes=("x", "edge_index", "size"),
    relates=True,
    weights=False,
)
@reads(
    f"{OWN}.conv.GINConv",
    known=own_layer({"initial_eps": anything}, ("nn",), buffers=("eps",), optional=("eps",)),
    takes=("x", "csc"),
)
def _gin(call: LayerCall) -> str:
    conv, writer, x, own = call.layer, call.writer, call.x, call.own
    adjacency = ir.AdjacencyMatrix(kind="sum", loop_scale=loop_scale(call), relation=call.edges.relation)
    bias = None
    layers = list(conv.nn.named_children()) if type(conv.nn) is nn.Sequential else [("", conv.nn)]
    if layers and (first := as_linear(f"{call.name}.nn", layers[0][1])) is not None:
        layers.pop(0)  # W (A x) = A (W x): lowering chooses the order
        rows, bias = writer.add(ir.Linear, x, weight=first.weight), first.bias
        x, own = rows, rows if own == x else writer.add(ir.Linear, own, weight=first.weight)
    out = plus_scaled(call, own, writer.add(ir.Aggregate, x, adjacency=adjacency))
    out = writer.epilogue(out, bias=bias)
    for key, layer in layers:
        out = rowwise(writer, f"{call.name}.nn.{key}".rstrip("."), layer, out)
    return out


@reads_pyg(
    "gin_conv.GINEConv",
    attributes={"initial_eps": anything, "lin": _NONE},
    children=("nn", "lin"),
    buffers=("eps",),
    optional=("eps",),
    takes=("x", "edge_index", "edge_attr", "size"),
    relates=True,
    encodes=True,
)
def _gine(call: LayerCall) -> str:
    conv, writer, channels = call.layer, call.writer, call.edges.channels
    if channels is None:
        raise call.refuse("without edge_attr has no lowered form", "edge_attr, a matrix of floats")
    linear = call.edges.encoder
    if conv._modules.get("lin") is not None:
        if linear is not None:
            raise call.refuse("maps edge features that are mapped before", "one linear map of edge_attr")
        linear = checked_linear(call, "lin")
    if linear is not None and linear.weight.shape[1] != channels:
        raise call.refuse(f"takes {linear.weight.shape[1]} edge features; the graph has {channels}")
    out = writer.add(
        ir.Gine,
        call.x,
        edge_channels=channels,
        weight=None if linear is None else linear.weight,
        bias=None if linear is None else linear.bias,
        loop_scale=loop_scale(call),
        relation=call.edges.relation,
    )
    return rowwise(writer, f"{call.name}.nn", conv.nn, plus_scaled(call, call.own, out))


# ---- models of graphbraid.nn: alone, with the graph's own weights, or inside a user's model

OWN_MODELS = (GCN, GraphSAGE, GIN, GAT, GATv2, MLP)
_GRAPH_MODEL = Known(
    dict.fromkeys(("in_channels", "hidden_channels", "out_channels", "num_layers"), count)
    | dict.fromkeys(("dropout", "input_dropout"), probability)
    | {"act": one_of(*ACTIVATIONS), "norms": one_of(None), "ends_hidden": flag},
    children=("convs", "norms"),
)


def checked_call(writer: Writer, model: nn.Module) -> LayerCall:
    """Return the call of a model on the features and the whole graph, whose weights are then its own."""
    check(type(model).__name__, model, _GRAPH_MODEL)
    return LayerCall(writer, "", model, ir.INPUT, Edges(weighted=True))


@reads(f"{OWN}.models.MLP", known=_GRAPH_MODEL)
@reads(
    *(f"{OWN}.models.{kind.__name__}" for kind in OWN_MODELS if kind is not MLP),
    known=_GRAPH_MODEL,
    takes=("x", "edge_index", "edge_weight"),
)
def read_own(call: LayerCall) -> str:
    """Append a model's operations to the call's writer; return the name of the result."""
    model, writer = call.layer, call.writer
    if call.name and call.edges.weighted and not module_traits.takes_weights(model.layer or type(model)):
        raise call.refuse("on edges with weights has no lowered form", "edges without weights")
    prefix = f"{call.name}." if call.name else ""
    dropout = model.dropout if model.training else 0.0
    x = writer.epilogue(call.x, p=model.input_dropout if model.training else 0.0)
    last = model.num_layers - 1
    for i, conv in enumerate(model.convs):
        x = _layer(writer, f"{prefix}convs.{i}", conv, x, call.edges)
        if i == last and not model.ends_hidden:
            break
        if model.norms is not None:
            x = rowwise(writer, f"{prefix}norms.{i}", model.norms[i], x)
        x = own_activation(writer, model.act, x)
        x = writer.epilogue(x, p=dropout)
    return x


def _layer(writer: Writer, name: str, conv: nn.Module, x: str, edges: Edges) -> str:
    reader = reader_of(type(conv))
    if reader is None or reader.edges is None:
        return rowwise(writer, name, conv, x)
    return checked_reader(name, conv).read(LayerCall(writer, name, conv, x, edges))


def own_activation(writer: Writer, act: str, x: str) -> str:
    """Append one of the activations that graphbraid's models have, by name."""
    if act == "gelu":
        return writer.function(x, "gelu", "none")
    return writer.epilogue(x, act=act)


_ATTENTION: dict[str, Allowed] = SIZES | dict.fromkeys(("concat", "add_self_loops"), flag)
_ATTENTION |= {"heads": count, "negative_slope": number, "dropout": probability}
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
@reads(
    f"{OWN}.gat.GATConv",
    known=own_layer(
        _ATTENTION | {"row_dropout": probability, "res": _NONE},
        ("lin", "res"),
        parameters=("att_src", "att_dst"),
    ),
    takes=("x", "csc"),
)
def _gat(call: LayerCall) -> str:
    conv, writer, edges = call.layer, call.writer, _edge_part(call)
    edges |= {"edge_vector": conv.att_edge} if edges else {}
    if call.own != call.x or conv._modules.get("lin") is None:
        return _gat_of_two(call, **edges)
    lin = checked_linear(call, "lin", has_bias=False)
    rows = writer.add(ir.Linear, call.x, weight=lin.weight)
    p = float(getattr(conv, "row_dropout", 0.0)) if conv.training else 0.0
    summed = writer.epilogue(rows, p=p)
    inputs = (rows,) if summed == rows else (summed, rows)
    return _attend("gat", call, inputs, (conv.att_src, conv.att_dst), **edges)


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
    return number(value) or (type(value) is str and value in ir.FILLS)


def _gat_of_two(call: LayerCall, **edges: Any) -> str:
    """Read a layer whose destinations have other rows than its sources, or another map of the same."""
    conv, (x, own) = call.layer, _two_rows(call)
    of_both = conv._modules.get("lin") is not None
    left, right = (checked_linear(call, key, has_bias=False) for key in (("lin",) * 2 if of_both else _TWO))
    rows = call.writer.add(ir.Linear, x, weight=left.weight)
    own_rows = call.writer.add(ir.Linear, call.writer.add(ir.DestinationRows, own), weight=right.weight)
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
@reads(
    f"{OWN}.gat.GATv2Conv",
    known=own_layer(
        _ATTENTION | {"share_weights": flag, "res": _NONE}, ("lin_l", "lin_r", "res"), parameters=("att",)
    ),
    takes=("x", "csc"),
)
def _gatv2(call: LayerCall) -> str:
    conv, channels, lin_edge = call.layer, call.edges.channels, call.layer._modules.get("lin_edge")
    are_mapped = type(lin_edge) is nn.Identity and channels == conv.heads * conv.out_channels
    if are_mapped and not (conv.add_self_loops or call.several or call.edges.relation):
        return _gatv2_of_mapped(call)
    if channels is not None and lin_edge is None:
        raise call.refuse("gets edge_attr without edge_dim, which PyG refuses", "edge_dim=, or no edge_attr")
    writer, (x, own) = call.writer, _two_rows(call)
    inputs = [writer.linear(x, checked_linear(call, "lin_l"))]
    if not conv.share_weights or own != x:
        inputs.append(writer.linear(writer.add(ir.DestinationRows, own), checked_linear(call, "lin_r")))
    return _attend("gatv2", call, tuple(inputs), (conv.att,), **_edge_part(call))


def _gatv2_of_mapped(call: LayerCall) -> str:
    """Write the attention as messages: they give features of edges a gradient, and its kernels do not."""
    conv, writer = call.layer, call.writer
    softmax = recording(softmax_of_edges())

    def message(x_j: Any, x_i: Any, edge_attr: Any, index: Any, size_i: Any) -> Any:
        z = F.leaky_relu(x_i + x_j + edge_attr, conv.negative_slope)
        alpha = F.dropout(softmax((z * conv.att).sum(-1), index, None, size_i), conv.dropout, conv.training)
        return x_j * alpha.unsqueeze(-1)

    rows = writer.linear(call.x, checked_linear(call, "lin_l"))
    own = rows if conv.share_weights else writer.linear(call.x, checked_linear(call, "lin_r"))
    reads: dict[str, Any] = {"x_j": rows, "x_i": own, "edge_attr": ir.ReadRows.FEATURES}
    shapes: dict[str, Any] = dict.fromkeys(reads, (conv.heads, conv.out_channels))
    out, _ = read_messages(writer, own_messages(call.name, message, layer=conv), reads, {}, shapes)
    if not conv.concat and conv.heads > 1:
        out = writer.add(ir.AlongRow, out, kind="mean", width_out=conv.out_channels)
    return _with_own(call, out)


def _with_own(call: LayerCall, out: str) -> str:
    """Add the layer's own map of its rows, if there is one, and its bias."""
    out = plus_own(call, out, "res") if call.layer._modules.get("res") is not None else out
    return call.writer.epilogue(out, bias=call.layer.bias)


def _attend(
    kind: str, call: LayerCall, inputs: tuple[str, ...], vectors: tuple[Any, ...], **edges: Any
) -> str:
    conv = call.layer
    if any(vector.shape[-2:] != (conv.heads, conv.out_channels) for vector in vectors):
        what = "has other heads or out_channels than its parameters"
        raise call.refuse(what, "a new layer")
    out = call.writer.add(
        ir.Attention,
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
    return _with_own(call, out)
