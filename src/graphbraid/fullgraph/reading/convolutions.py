"""Readers of GCNConv, SAGEConv, GINConv and GINEConv, PyG's and graphbraid's own."""

from __future__ import annotations

import functools
import sys
import warnings
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import (
    AdjacencyMatrix,
    Aggregate,
    Gine,
    Linear,
    Maximum,
    Own,
    Scale,
    UnitRows,
)
from graphbraid.fullgraph.reading import exact
from graphbraid.fullgraph.reading.exact import Allowed, Known, anything, count, flag, one_of
from graphbraid.fullgraph.reading.reader import LayerCall, Reader, Registry
from graphbraid.fullgraph.reading.rowwise import as_linear, checked_linear, rowwise
from graphbraid.ops.spmm import Ties

# ---- shared parts of the readers of graph layers: the attributes of PyG's base class, and common checks

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


# ---- how PyG's maximum divides its gradient among equal messages, found by running it on two of them, once

_SEEN: dict[tuple[tuple[float, ...], tuple[float, ...]], Ties] = {
    ((1.0, 0.0), (1.0, 0.0)): "first",
    ((0.5, 0.5), (0.5, 0.5)): "shared",
    ((0.5, 0.5), (1 / 3, 1 / 3)): "shared with zero",
}
"""Kinds by the gradients of two equal messages: first of two ones, then of two zeros."""


def ties_of(call: LayerCall) -> Ties:
    """Return how a PyG layer that takes the maximum, SAGEConv or GraphConv, treats ties.

    Raises:
        NotLoweredError: no kernel treats ties in this way, or PyG itself fails.
    """
    layer, kind = call.layer, cast("Any", type(call.layer))
    device = next(layer.parameters()).device
    try:
        seen = _probe(kind, call.edges.sparse, layer.fuse, layer.aggr_module._deterministic, device)
    except (RuntimeError, NotImplementedError, ImportError) as error:
        raise call.refuse(f"with aggr='max' fails by itself here: {error}") from error
    found = _SEEN.get(seen)
    if found is None or (found == "first" and device.type != "cpu"):  # in a race the first may win by chance
        shares = " and ".join(str(tuple(round(share, 3) for share in pair)) for pair in seen)
        raise call.refuse(f"with aggr='max' shares the gradient of two equal ones and two zeros as {shares}")
    return found


@functools.cache
def _probe(
    kind: Any, sparse: bool, fuse: bool, deterministic: bool, device: torch.device
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the gradients of two equal messages to a third node: of ones, and of zeros."""
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng():
        layer = kind(1, 1, aggr="max", bias=False).to(device)
        layer.fuse, layer.aggr_module._deterministic = fuse, deterministic
        with torch.no_grad():
            for weight in layer.parameters():
                weight.fill_(1.0)
        edges = torch.tensor([[0, 1], [2, 2]], device=device)
        if sparse:
            edges = _sparse(edges.flip(0))
        ones_and_zeros = []
        for value in (1.0, 0.0):
            x = torch.full((3, 1), value, device=device, requires_grad=True)
            (grad,) = torch.autograd.grad(layer(x, edges)[2], x)
            ones_and_zeros.append(tuple(round(share * 6) / 6 for share in grad.flatten().tolist()[:2]))
    first, second = ones_and_zeros
    return first, second


def _sparse(places: Tensor) -> Tensor:
    with warnings.catch_warnings():  # PyTorch has warned the user already about the model's own sparse matrix
        warnings.simplefilter("ignore")
        ones = torch.ones(places.shape[1], device=places.device)
        return torch.sparse_coo_tensor(places, ones, (3, 3)).to_sparse_csr()


# ---- readers of GCNConv, SAGEConv, GINConv and GINEConv, PyG's and graphbraid's own

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
