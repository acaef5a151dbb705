"""Readers of GCNConv, SAGEConv, GINConv and GINEConv, PyG's and graphbraid's own."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program.edge_operations import Aggregate, Gine, Maximum
from graphbraid.fullgraph.program.maps import AdjacencyMatrix
from graphbraid.fullgraph.program.operations import Linear, Own, Scale, UnitRows
from graphbraid.fullgraph.program.readers import exact
from graphbraid.fullgraph.program.readers.exact import Allowed, Known, anything, count, flag, one_of
from graphbraid.fullgraph.program.readers.message_passing import (
    OWN,
    OWN_TAKES,
    PYG,
    check_aggregation,
    own_layer,
    plus_own,
    pyg_layer,
    refuse_weights,
)
from graphbraid.fullgraph.program.readers.reading import LayerCall, Reader, Registry
from graphbraid.fullgraph.program.readers.rowwise import as_linear, checked_linear, rowwise
from graphbraid.fullgraph.program.readers.ties import ties_of
from graphbraid.ops.spmm_max import Ties

# ---- GCN


def _read_pyg_gcn(call: LayerCall) -> str:
    check_aggregation(call)
    conv = call.layer
    # PyG adds self-loops of weight 2 only if the edges have weights.
    fill = 2.0 if conv.improved and (call.edges.weighted or call.edges.sparse) else 1.0
    if not _cache_fits(call):
        raise call.refuse("keeps coefficients of other edges", "conv.reset_parameters(), or cached=False")
    return _gcn(call, fill)


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
    ours, theirs = (_sorted_edges(pair, graph.num_nodes) for pair in (expected, conv._cached_edge_index))
    return ours[0].equal(theirs[0]) and torch.allclose(ours[1], theirs[1], rtol=1e-4, atol=1e-7)


def _sorted_edges(weighted: tuple[Tensor, Tensor], num_nodes: int) -> tuple[Tensor, Tensor]:
    edges, weight = weighted
    weight, order = weight.sort()
    key, stable = (edges[1] * num_nodes + edges[0])[order].sort(stable=True)
    return key, weight[stable]


def _read_own_gcn(call: LayerCall) -> str:
    return _gcn(call, 2.0 if call.layer.improved else 1.0)


def _gcn(call: LayerCall, fill: float) -> str:
    conv, writer = call.layer, call.writer
    weight = checked_linear(call, "lin", has_bias=False).weight
    if call.several:  # PyG refuses it, too
        raise call.refuse("of a pair of matrices has no lowered form", "one matrix of node rows")
    adjacency = AdjacencyMatrix(kind="sum", weighted=call.edges.weighted, relation=call.edges.relation)
    if conv.normalize:
        loops = fill if conv.add_self_loops else 0.0
        adjacency = replace(adjacency, kind="gcn", loop_scale=loops)
    out = writer.add(Aggregate, writer.add(Linear, call.x, weight=weight), adjacency=adjacency)
    return writer.epilogue(out, bias=conv.bias)


_GCN: dict[str, Allowed] = {
    "in_channels": anything,  # known from the weights; stays -1 in a lazily initialised layer
    "out_channels": count,
    "improved": flag,
    "add_self_loops": flag,
    "normalize": flag,
}
_GCN_CACHE: dict[str, Allowed] = {"cached": flag, "_cached_edge_index": anything, "_cached_adj_t": anything}


# ---- GraphSAGE


def _read_pyg_sage(call: LayerCall) -> str:
    check_aggregation(call)
    refuse_weights(call)
    return _sage(call, ties_of(call) if call.layer.aggr == "max" else "shared")


def _sage(call: LayerCall, ties: Ties = "shared") -> str:
    conv, writer, x, over = call.layer, call.writer, call.x, call.edges.relation
    rows = x
    if conv._modules.get("lin") is not None:  # project
        rows = writer.epilogue(writer.linear(x, checked_linear(call, "lin")), act="relu")
    left = checked_linear(call, "lin_l")
    if conv.aggr == "max":
        out = writer.add(Linear, writer.add(Maximum, rows, ties=ties, relation=over), weight=left.weight)
    else:
        rows = writer.add(Linear, rows, weight=left.weight)
        adjacency = AdjacencyMatrix(kind="mean" if conv.aggr == "mean" else "sum", relation=over)
        out = writer.add(Aggregate, rows, adjacency=adjacency)
    if conv._modules.get("lin_r") is not None:
        out = plus_own(call, out, "lin_r")
    out = writer.epilogue(out, bias=left.bias)
    return writer.add(UnitRows, out) if conv.normalize else out


_SAGE: dict[str, Allowed] = {
    "in_channels": anything,  # known from the weights; stays -1 in a lazily initialised layer
    "out_channels": count,
    "aggr": one_of("mean", "sum", "add", "max"),
    "normalize": flag,
    "root_weight": flag,
}


# ---- GIN


def _read_pyg_gin(call: LayerCall) -> str:
    check_aggregation(call)
    refuse_weights(call)
    return _gin(call)


def _gin(call: LayerCall) -> str:
    conv, writer, x = call.layer, call.writer, call.x
    eps = conv.eps
    learns_eps = isinstance(eps, nn.Parameter)
    if learns_eps:
        exact.check_parameter(call.name, "eps", eps)
    layers = list(conv.nn.named_children()) if type(conv.nn) is nn.Sequential else [("", conv.nn)]
    bias = None
    if layers and (first := as_linear(f"{call.name}.nn", layers[0][1])) is not None:
        layers.pop(0)  # W (A x) = A (W x): lowering chooses the order
        x, bias = writer.add(Linear, x, weight=first.weight), first.bias
    adjacency = AdjacencyMatrix(kind="sum", loop_scale=0.0 if learns_eps else 1.0 + float(eps))
    out = writer.add(Aggregate, x, adjacency=adjacency)
    if learns_eps:
        out = writer.sum(writer.add(Scale, writer.add(Own, x), factor=eps), out)
    out = writer.epilogue(out, bias=bias)
    for key, layer in layers:
        out = rowwise(writer, f"{call.name}.nn.{key}".rstrip("."), layer, out)
    return out


# ---- GINE


def _read_gine(call: LayerCall) -> str:
    check_aggregation(call)
    conv, writer, channels = call.layer, call.writer, call.edges.channels
    if channels is None:
        raise call.refuse("without edge_attr has no lowered form", "edge_attr, a matrix of floats")
    linear = checked_linear(call, "lin") if conv._modules.get("lin") is not None else None
    if linear is not None and linear.weight.shape[1] != channels:
        raise call.refuse(f"takes {linear.weight.shape[1]} edge features; the graph has {channels}")
    eps, learns_eps = conv.eps, isinstance(conv.eps, nn.Parameter)
    if learns_eps:
        exact.check_parameter(call.name, "eps", eps)
    out = writer.add(
        Gine,
        call.x,
        edge_channels=channels,
        weight=None if linear is None else linear.weight,
        bias=None if linear is None else linear.bias,
        loop_scale=0.0 if learns_eps else 1.0 + float(eps),
    )
    if learns_eps:
        out = writer.sum(writer.add(Scale, writer.add(Own, call.x), factor=eps), out)
    return rowwise(writer, f"{call.name}.nn", conv.nn, out)


_SIZED = ("x", "edge_index", "size")
CONVOLUTIONS: Registry = {
    (f"{PYG}.gcn_conv", "GCNConv"): Reader(
        _read_pyg_gcn,
        pyg_layer(_GCN | _GCN_CACHE, children=("lin",), parameters=("bias",)),
        ("x", "edge_index", "edge_weight"),
        relates=True,
    ),
    (f"{PYG}.sage_conv", "SAGEConv"): Reader(
        _read_pyg_sage,
        pyg_layer(_SAGE | {"project": flag}, children=("lin", "lin_l", "lin_r")),
        _SIZED,
        relates=True,
    ),
    (f"{PYG}.gin_conv", "GINConv"): Reader(
        _read_pyg_gin,
        pyg_layer({"initial_eps": anything}, children=("nn",), buffers=("eps",), optional=("eps",)),
        _SIZED,
    ),
    (f"{PYG}.gin_conv", "GINEConv"): Reader(
        _read_gine,
        pyg_layer(
            {"initial_eps": anything, "lin": one_of(None)},
            children=("nn", "lin"),
            buffers=("eps",),
            optional=("eps",),
        ),
        ("x", "edge_index", "edge_attr", "size"),
    ),
    (f"{OWN}.gcn", "GCNConv"): Reader(_read_own_gcn, own_layer(_GCN, children=("lin",)), OWN_TAKES),
    (f"{OWN}.sage", "SAGEConv"): Reader(
        _sage,
        Known(_SAGE | {"lin": one_of(None), "lin_r": one_of(None)}, children=("lin", "lin_l", "lin_r")),
        OWN_TAKES,
    ),
    (f"{OWN}.gin", "GINConv"): Reader(
        _gin,
        Known(
            {"initial_eps": anything, "bias": one_of(None)},
            optional=("eps",),
            buffers=("eps",),
            children=("nn",),
        ),
        OWN_TAKES,
    ),
}
"""Readers by module and name of the class."""


__all__ = ["CONVOLUTIONS"]
