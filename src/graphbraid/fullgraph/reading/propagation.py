"""Readers of PyG's propagating layers: GraphConv, SGConv, SSGConv, APPNP, GCN2Conv and others.

Traces would read them less well: docs/decisions/0018-size-of-the-rooms.md.

TAGConv and ChebConv are polynomials of an adjacency with one weight per term. Their sums over powers are
written so that rows are aggregated at the narrower side: as powers of the input, or nested by Horner's scheme
(TAGConv) and Clenshaw's (ChebConv). As their forwards are written, all powers have the input's width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from graphbraid.fullgraph.program import INPUT, AdjacencyMatrix, Aggregate, Linear, View
from graphbraid.fullgraph.reading.aggregations import SIZES, WEIGHTED, narrows, plus_own, reads_pyg, reduced
from graphbraid.fullgraph.reading.convolutions import normalised
from graphbraid.fullgraph.reading.exact import (
    Allowed,
    Known,
    anything,
    check,
    count,
    flag,
    is_identity,
    number,
    one_of,
    probability,
)
from graphbraid.fullgraph.reading.module_readers import rowwise
from graphbraid.fullgraph.reading.reader import LayerCall, checked_linear

_KEPT: dict[str, Allowed] = {"cached": flag, "add_self_loops": flag}
_KEPT_EDGES = _KEPT | {"_cached_edge_index": anything, "_cached_adj_t": anything, "normalize": flag}


def _are_powers(value: Any) -> bool:
    return (
        isinstance(value, list | tuple) and all(type(k) is int and k >= 0 for k in value) and len(value) > 0
    )


def _checked(call: LayerCall) -> LayerCall:
    kept = ("_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h")
    if any(getattr(call.layer, key, None) is not None for key in kept):
        raise call.refuse("keeps results of an earlier run", "conv.reset_parameters(), or cached=False")
    if call.layer.__dict__.get("cached") and hasattr(call.layer, "lin") and call.x != INPUT:
        raise call.refuse("with cached=True keeps rows that change", "cached=False")
    return call


# ---- GraphConv


@reads_pyg(
    "graph_conv.GraphConv",
    attributes=SIZES | {"aggr": one_of("add", "sum", "mean", "max")},
    children=("lin_rel", "lin_root"),
    takes=(*WEIGHTED, "size"),
    relates=True,
)
def _read_graph(call: LayerCall) -> str:
    conv, edges = call.layer, call.edges
    if edges.weighted and (conv.aggr == "max" or (edges.sparse and conv.aggr == "mean")):
        raise call.refuse(f"with aggr={conv.aggr!r} on weighted edges has no lowered form", "aggr='add'")
    linear = checked_linear(call, "lin_rel")
    out = reduced(call, call.x, linear.weight, weighted=edges.weighted)
    return call.writer.epilogue(plus_own(call, out, "lin_root"), bias=linear.bias)


# ---- SGConv, SSGConv, APPNP, GCN2Conv


@reads_pyg(
    "sg_conv.SGConv", attributes=SIZES | _KEPT | {"K": count, "_cached_x": anything}, children=("lin",)
)
def _read_sg(call: LayerCall) -> str:
    conv, writer = _checked(call).layer, call.writer
    linear = checked_linear(call, "lin")
    out = writer.add(Linear, call.x, weight=linear.weight)
    for _ in range(conv.K):
        out = writer.add(Aggregate, out, adjacency=normalised(call))
    return writer.epilogue(out, bias=linear.bias)


@reads_pyg(
    "ssg_conv.SSGConv",
    attributes=SIZES | _KEPT | {"K": count, "alpha": number, "_cached_h": anything},
    children=("lin",),
)
def _read_ssg(call: LayerCall) -> str:
    conv, writer = _checked(call).layer, call.writer
    linear = checked_linear(call, "lin")
    transforms_first = narrows(linear.weight)
    powers = [writer.add(Linear, call.x, weight=linear.weight) if transforms_first else call.x]
    for _ in range(conv.K):
        powers.append(writer.add(Aggregate, powers[-1], adjacency=normalised(call)))
    share = (1 - conv.alpha) / conv.K
    out = writer.combine((float(conv.alpha), powers[0]), *((share, power) for power in powers[1:]))
    out = out if transforms_first else writer.add(Linear, out, weight=linear.weight)
    return writer.epilogue(out, bias=linear.bias)


@reads_pyg("appnp.APPNP", attributes=_KEPT_EDGES | {"K": count, "alpha": number, "dropout": probability})
def _read_appnp(call: LayerCall) -> str:
    conv, writer = _checked(call).layer, call.writer
    if conv.dropout > 0 and conv.training:
        raise call.refuse("with dropout of edges has no lowered form", "dropout=0")
    adjacency = replace(normalised(call), scale=1 - conv.alpha)
    teleport = writer.combine((float(conv.alpha), call.x))
    out = call.x
    for _ in range(conv.K):
        out = writer.sum(teleport, writer.add(Aggregate, out, adjacency=adjacency))
    return out


@reads_pyg(
    "gcn2_conv.GCN2Conv",
    attributes=_KEPT_EDGES | {"channels": count, "alpha": number, "beta": number},
    parameters=("weight1", "weight2"),
    takes=("x", "x_0", "edge_index", "edge_weight"),
    gives=("x_0",),
)
def _read_gcn2(call: LayerCall) -> str:
    conv, writer = _checked(call).layer, call.writer
    adjacency = replace(normalised(call), scale=1 - conv.alpha)
    rows = writer.add(Aggregate, call.x, adjacency=adjacency)
    first, alpha, beta = call.rows("x_0"), float(conv.alpha), float(conv.beta)
    view = View(turned=True, scale=beta, identity=1 - beta)
    if conv.weight2 is None:
        rows = writer.sum(writer.combine((alpha, first)), rows)
        return writer.add(Linear, rows, weight=conv.weight1, view=view)
    out = writer.add(Linear, rows, weight=conv.weight1, view=view)
    scaled = replace(view, scale=alpha * beta, identity=alpha * (1 - beta))
    first = writer.rows_at(first, writer.level(out))
    return writer.sum(writer.add(Linear, first, weight=conv.weight2, view=scaled), out)


# ---- LGConv and MixHopConv


@reads_pyg("lg_conv.LGConv", attributes={"normalize": flag})
def _read_lg(call: LayerCall) -> str:
    return call.writer.add(Aggregate, call.x, adjacency=normalised(call))


@reads_pyg(
    "mixhop_conv.MixHopConv",
    attributes=SIZES | {"powers": _are_powers, "add_self_loops": flag},
    children=("lins",),
    parameters=("bias",),
)
def _read_mixhop(call: LayerCall) -> str:
    conv, writer = call.layer, call.writer
    check(f"{call.name}.lins", conv.lins, Known(children=None))
    lins = LayerCall(writer, f"{call.name}.lins", conv.lins, call.x)
    hop, outs = call.x, {}
    for power in range(max(conv.powers) + 1):
        if power:
            hop = writer.add(Aggregate, hop, adjacency=normalised(call))
        if power in conv.powers:
            outs[power] = writer.add(
                Linear, hop, weight=checked_linear(lins, str(power), has_bias=False).weight
            )
    beside = writer.beside(*(outs[power] for power in conv.powers))
    return writer.epilogue(beside, bias=conv.bias)


# ---- ARMAConv


@reads_pyg(
    "arma_conv.ARMAConv",
    attributes=SIZES
    | {
        "num_stacks": count,
        "num_layers": count,
        "shared_weights": flag,
        "dropout": probability,
        "act": lambda act: act is None or is_identity(act),
    },
    children=("act",),
    parameters=("weight", "init_weight", "root_weight", "bias"),
)
def _read_arma(call: LayerCall) -> str:
    conv, writer = call.layer, call.writer
    adjacency = normalised(call)
    if conv.num_stacks != len(conv.init_weight):
        raise call.refuse("has another num_stacks than its parameters", "a new layer")
    outs = [call.x] * conv.num_stacks
    for t in range(conv.num_layers):
        at = 0 if conv.shared_weights else t
        root = writer.rows_at(call.x, writer.level(call.x) + t + 1)
        root = writer.epilogue(root, p=float(conv.dropout) if conv.training else 0.0)
        for k, x in enumerate(outs):
            weight, place = (conv.init_weight, (k,)) if t == 0 else (conv.weight, (max(at - 1, 0), k))
            rows = writer.add(Linear, x, weight=weight, view=View(at=place, turned=True))
            out = writer.add(Aggregate, rows, adjacency=adjacency)
            own = writer.add(Linear, root, weight=conv.root_weight, view=View(at=(at, k), turned=True))
            out = writer.epilogue(writer.sum(own, out), bias=conv.bias, bias_at=(at, k))
            act = conv._modules.get("act")
            outs[k] = out if act is None else rowwise(writer, f"{call.name}.act", act, out)
    return outs[0] if len(outs) == 1 else writer.combine(*((1 / len(outs), out) for out in outs))


# ---- TAGConv and ChebConv


@reads_pyg(
    "tag_conv.TAGConv",
    attributes=SIZES | {"K": count, "normalize": flag},
    children=("lins",),
    parameters=("bias",),
)
def _read_tag(call: LayerCall) -> str:
    conv, writer = call.layer, call.writer
    weights = _weights(call)
    aggregate = partial(writer.add, Aggregate, adjacency=normalised(call))
    if narrows(weights[0]):
        out = writer.add(Linear, call.x, weight=weights[-1])
        for weight in reversed(weights[:-1]):
            out = aggregate(out)
            own = writer.rows_at(call.x, writer.level(out))
            out = writer.sum(writer.add(Linear, own, weight=weight), out)
        return writer.epilogue(out, bias=conv.bias)
    powers = [call.x]
    for _ in weights[1:]:
        powers.append(aggregate(powers[-1]))
    return writer.epilogue(_sum_of_products(call, powers, weights), bias=conv.bias)


@reads_pyg(
    "cheb_conv.ChebConv",
    attributes=SIZES | {"normalization": one_of(None, "sym", "rw")},
    children=("lins",),
    parameters=("bias",),
    takes=(*WEIGHTED, "batch", "lambda_max"),
)
def _read_cheb(call: LayerCall) -> str:
    conv, writer = call.layer, call.writer
    if call.edges.sparse:
        raise call.refuse("on a sparse matrix has no lowered form", "edge_index")
    weights = _weights(call)
    kind = "laplacian" if conv.normalization is None else f"laplacian {conv.normalization}"
    laplacian = AdjacencyMatrix(kind=kind, weighted=call.edges.weighted)
    if narrows(weights[0]):
        return writer.epilogue(_clenshaw(call, weights, laplacian), bias=conv.bias)
    # T_k = 2 L T_{k-1} - T_{k-2}, each stored with a sign such that nothing is subtracted.
    terms = [call.x]
    for k in range(1, len(weights)):
        factor = 1.0 if k == 1 else 2.0 * _sign(k) * _sign(k - 1)
        term = writer.add(Aggregate, terms[-1], adjacency=replace(laplacian, scale=factor))
        terms.append(term if k == 1 else writer.sum(terms[-2], term))
    return writer.epilogue(_sum_of_products(call, terms, weights, signed=True), bias=conv.bias)


def _clenshaw(call: LayerCall, weights: list[Any], laplacian: AdjacencyMatrix) -> str:
    """Write Clenshaw's ``b_k = x W_k + 2 L b_{k+1} - b_{k+2}``, signed so that nothing is subtracted."""
    writer, last = call.writer, len(weights) - 1
    sums: list[str] = []
    for k in range(last, -1, -1):
        rows = writer.rows_at(call.x, writer.level(call.x) + last - k)
        out = writer.add(Linear, rows, weight=weights[k], view=View(scale=_sign(k)))
        if len(sums) > 1:
            out = writer.sum(sums[-2], out)
        if sums:
            factor = (2.0 if k > 0 else 1.0) * _sign(k) * _sign(k + 1)
            term = writer.add(Aggregate, sums[-1], adjacency=replace(laplacian, scale=factor))
            out = writer.sum(out, term)
        sums.append(out)
    return sums[-1]


def _sign(k: int) -> float:
    """Return the sign of the stored k-th term: +, +, -, -, and so on, so that k and k + 2 differ."""
    return 1.0 if k % 4 < 2 else -1.0


def _weights(call: LayerCall) -> list[Any]:
    """Return the weights of ``lins``, linear layers without bias."""
    lins = call.layer.lins
    check(f"{call.name}.lins", lins, Known(children=None))
    inner = LayerCall(call.writer, f"{call.name}.lins", lins, call.x)
    return [checked_linear(inner, key, has_bias=False).weight for key in lins._modules]


def _sum_of_products(call: LayerCall, values: list[str], weights: list[Any], *, signed: bool = False) -> str:
    """Write the sum of each value's linear map, for the nodes of the last value's level."""
    writer = call.writer
    out = ""
    for k, (value, weight) in enumerate(zip(values, weights, strict=True)):
        rows = writer.rows_at(value, writer.level(values[-1]))
        product = writer.add(Linear, rows, weight=weight, view=View(scale=_sign(k) if signed else 1.0))
        out = writer.sum(out, product) if out else product
    return out
