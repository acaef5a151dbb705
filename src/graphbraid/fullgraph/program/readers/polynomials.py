"""Readers of PyG's polynomials of an adjacency with one weight per term: TAGConv and ChebConv.

The sums over powers are written so that rows are aggregated at the narrower side: as powers of the input, or
nested by Horner's scheme (TAGConv) and Clenshaw's (ChebConv).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from graphbraid.fullgraph.program.edge_operations import Aggregate
from graphbraid.fullgraph.program.maps import AdjacencyMatrix, View
from graphbraid.fullgraph.program.operations import Linear
from graphbraid.fullgraph.program.readers import exact
from graphbraid.fullgraph.program.readers.exact import Known, count, flag, one_of
from graphbraid.fullgraph.program.readers.message_passing import (
    SIZES,
    WEIGHTED,
    check_aggregation,
    narrows,
    normalised,
    pyg_entry,
    pyg_layer,
)
from graphbraid.fullgraph.program.readers.reading import LayerCall, Registry
from graphbraid.fullgraph.program.readers.rowwise import checked_linear


def _read_tag(call: LayerCall) -> str:
    check_aggregation(call)
    conv, writer = call.layer, call.writer
    weights = _weights(call)
    adjacency = normalised(call, loops=False, normalize=conv.normalize)
    aggregate = partial(writer.add, Aggregate, adjacency=adjacency)
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


def _read_cheb(call: LayerCall) -> str:
    check_aggregation(call)
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
    exact.check(f"{call.name}.lins", lins, Known(children=None))
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


POLYNOMIALS: Registry = {
    **pyg_entry(
        "tag_conv",
        "TAGConv",
        _read_tag,
        pyg_layer(SIZES | {"K": count, "normalize": flag}, children=("lins",), parameters=("bias",)),
    ),
    **pyg_entry(
        "cheb_conv",
        "ChebConv",
        _read_cheb,
        pyg_layer(
            SIZES | {"normalization": one_of(None, "sym", "rw")}, children=("lins",), parameters=("bias",)
        ),
        (*WEIGHTED, "batch", "lambda_max"),
    ),
}
"""Readers by module and name of the class."""


__all__ = ["POLYNOMIALS"]
