"""Reader of PyG's ``HGTConv``: the relations into a type are one graph, under one softmax.

The graph's sources are each relation's own rows of keys and values. So one pass computes the attention of all
these relations, without rows per edge. Inside a model that runs as it is written, such as an encoder of
links, which returns rows of several types, the layers run by the same attention (:func:`fused_layers`).
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import (
    ColumnRange,
    DestinationRows,
    Leaf,
    NotLoweredError,
    RelationAttention,
    SmallTensor,
)
from graphbraid.fullgraph.reading.exact import (
    Known,
    anything,
    check,
    check_model,
    count,
    flag,
    is_from,
    one_of,
)
from graphbraid.fullgraph.reading.message_passing import PYG, pyg_layer
from graphbraid.fullgraph.reading.module_readers import as_linear
from graphbraid.fullgraph.reading.reader import Writer
from graphbraid.graph import EdgeType
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.scans import check_ids
from graphbraid.graph.types import Relation
from graphbraid.nn.adjacency import MadeOfTensors
from graphbraid.ops.attention import dot_attention

NEEDED = "rows on the CPU, no autocast, and edge lists in the order of the layer's relations"
"""What a call must have; any other runs as it is written."""

_MADE = MadeOfTensors()
"""Graphs made of edge lists, and of several relations. Layers, and steps on a whole graph, share them."""

_HGT = pyg_layer(
    {
        "in_channels": anything,
        "out_channels": count,
        "heads": count,
        "node_types": anything,
        "edge_types": anything,
        "edge_types_map": anything,
        "dst_node_types": anything,
    },
    children=("kqv_lin", "out_lin", "k_rel", "v_rel", "skip", "p_rel"),
)
_BY_RELATION = Known(
    {
        "in_channels": count,
        "out_channels": count,
        "num_types": count,
        "is_sorted": one_of(True),
        "kwargs": anything,
        "_timing_cache": anything,
    },
    parameters=("weight",),
    optional=("bias",),
)


def is_kind(layer: nn.Module) -> bool:
    """Return whether a layer is PyG's ``HGTConv`` or of a subclass of it."""
    return any(is_from(kind, f"{PYG}.hgt_conv") for kind in type(layer).__mro__)


def check_layer(name: str, layer: Any) -> None:
    """Refuse a layer that is not known to compute what :func:`read_layer` writes.

    Raises:
        NotLoweredError: says why.
    """
    if not is_from(type(layer), f"{PYG}.hgt_conv"):
        raise NotLoweredError(name, f"{type(layer).__name__} is a subclass of HGTConv", "HGTConv")
    check_model(layer)
    check(name, layer, _HGT)
    homes = {"aggr_module": ("aggr.basic", "SumAggregation", Known({"_deterministic": flag}))}
    homes |= dict.fromkeys(("k_rel", "v_rel"), ("dense.linear", "HeteroLinear", _BY_RELATION))
    for key, (home, kind, known) in homes.items():
        module = getattr(layer, key)
        if type(module) is not getattr(sys.modules.get(f"torch_geometric.nn.{home}"), kind, None):
            raise NotLoweredError(f"{name}.{key}", f"it is a {type(module).__name__}", kind)
        check(f"{name}.{key}", module, known)


def outputs_of(name: str, layer: Any, x_dict: Any, edge_index_dict: Any) -> list[str]:
    """Return the node types that a call of PyG's ``HGTConv`` gives rows of.

    Raises:
        NotLoweredError: no operations stand for the layer or for such a call.
    """
    check_layer(name, layer)
    for key in ("kqv_lin", "out_lin"):
        kind = type(getattr(layer, key))
        if kind.__name__ != "HeteroDictLinear" or not is_from(kind, "torch_geometric.nn.dense.linear"):
            raise NotLoweredError(f"{name}.{key}", f"it is a {kind.__name__}", "HeteroDictLinear")
    lins = layer.kqv_lin.lins
    if not isinstance(x_dict, Mapping) or not isinstance(edge_index_dict, Mapping) or not edge_index_dict:
        raise NotLoweredError(name, "it is not called with dicts of rows and of edges", NEEDED)
    if not _is_sorted(layer, edge_index_dict):
        raise NotLoweredError(name, "it gets edges in another order than its relations have", NEEDED)
    if any(end not in x_dict or end not in lins for one in edge_index_dict for end in (one[0], one[-1])):
        raise NotLoweredError(name, "it gets edges of types whose rows it does not get", NEEDED)
    wanted = [one for one in x_dict if one in lins and one in layer.dst_node_types]
    if alone := [one for one in wanted if all(edge_type[-1] != one for edge_type in edge_index_dict)]:
        raise NotLoweredError(name, f"it gets no edges into {alone[0]!r}", "edges of all its relations")
    return wanted


def read_layer(
    writer: Writer, name: str, layer: Any, xs: Mapping[str, str], relations: Sequence[Relation]
) -> dict[str, str]:
    """Append PyG's ``HGTConv``; return the values that hold the rows of each type of :func:`outputs_of`.

    Args:
        writer: collects the operations.
        name: name of the layer.
        layer: the layer, which :func:`outputs_of` has checked.
        xs: the values that hold its input's rows, by node type.
        relations: the relations that it gets edges of.
    """

    def linear(of: str, x: str, module: nn.Module) -> str:
        checked = as_linear(f"{name}.{of}", module)
        if checked is None:
            raise NotLoweredError(f"{name}.{of}", f"it is a {type(module).__name__}", "Linear")
        return writer.linear(x, checked)

    read = {end for one in relations for end in (one.edge_type[0], one.edge_type[-1])}
    same = dict(zip(sorted(read), writer.on_one_level(*(xs[one] for one in sorted(read))), strict=True))
    rows = {one: linear(f"kqv_lin.lins.{one}", x, layer.kqv_lin.lins[one]) for one, x in same.items()}
    width, found = layer.out_channels, dict[str, str]()
    for one in outputs_of(name, layer, xs, {relation.edge_type: None for relation in relations}):
        own = writer.add(DestinationRows, same[one])
        query = writer.add(ColumnRange, writer.add(DestinationRows, rows[one]), first=width, last=2 * width)
        into = tuple(relation for relation in relations if relation.edge_type[-1] == one)
        sources = (rows[relation.edge_type[0]] for relation in into)
        out = writer.add(RelationAttention, query, *sources, layer=layer, relations=into)
        mixed = linear(f"out_lin.lins.{one}", writer.function(out, "gelu", "none"), layer.out_lin.lins[one])
        if writer.width(mixed) == writer.width(own):
            gate = SmallTensor(torch.sigmoid, (Leaf(layer.skip[one]),))
            rest = SmallTensor(operator.sub, (1, gate))
            mixed = writer.sum(writer.by_row(mixed, gate), writer.by_row(own, rest))
        found[one] = mixed
    return found


def attend(
    layer: Any, query: Tensor, rows: Sequence[Tensor], relations: Sequence[EdgeType], cscs: Sequence[Csc]
) -> Tensor:
    """Return the attention of the nodes of a type over their in-neighbours by several relations.

    ``key = k W_k[r, h] * p[r, h] / sqrt(channels)`` and ``value = v W_v[r, h]`` for each relation's sources,
    as in "Heterogeneous Graph Transformer" (Hu et al., 2020).

    Args:
        layer: PyG's ``HGTConv``.
        query: ``(num_dst, channels)``.
        rows: ``(num_src, 3 * channels)`` keys, queries and values of each relation's sources.
        relations: the relations.
        cscs: the edges of each.
    """
    scale = 1 / math.sqrt(layer.out_channels // layer.heads)
    keys, values = [], []
    for edge_type, of_sources in zip(relations, rows, strict=True):
        key, _, value = of_sources.chunk(3, dim=1)
        strength = layer.p_rel["__".join(edge_type)].view(-1, 1, 1) * scale
        keys.append(_mapped(key, strength * _maps(layer, layer.k_rel, edge_type)))
        values.append(_mapped(value, _maps(layer, layer.v_rel, edge_type)))
    stacked = torch.cat(keys).flatten(1), torch.cat(values).flatten(1)
    return dot_attention(_side_by_side(cscs), query, *stacked, layer.heads)


def _maps(layer: Any, of_relations: Any, edge_type: EdgeType) -> Tensor:
    """Return a relation's ``(heads, channels, channels)`` maps; PyG's stack has those of a head together."""
    maps: Tensor = of_relations.weight[layer.edge_types_map[edge_type] :: len(layer.edge_types)]
    return maps


def _mapped(rows: Tensor, maps: Tensor) -> Tensor:
    """Return ``(num_rows, heads, channels)`` rows, each head's multiplied by its map."""
    by_head = rows.view(rows.shape[0], *maps.shape[:2]).transpose(0, 1)
    return torch.bmm(by_head, maps).transpose(0, 1)


def _side_by_side(cscs: Sequence[Csc]) -> Csc:
    """Return the edges into the same destinations as one graph, whose sources follow each other."""
    if len(cscs) == 1:
        return cscs[0]

    def make() -> Csc:
        sources, first = [], 0
        for csc in cscs:
            sources.append(csc.indices.long() + first)
            first += csc.num_src
        destinations = torch.cat([csc.destinations().long() for csc in cscs])
        return coo_to_csc(torch.cat(sources), destinations, first, cscs[0].num_dst, keep_perm=False)[0]

    tensors = [one for csc in cscs for one in (csc.indices, csc.indptr)]
    return _MADE.get(tensors, tuple(csc.num_src for csc in cscs), make)


def _is_sorted(layer: Any, edge_types: Iterable[EdgeType]) -> bool:
    """Return whether relations are in the layer's order.

    PyG divides the stacked rows by relation as if they were sorted, so another order gives other results.
    """
    numbers = [layer.edge_types_map.get(edge_type, -1) for edge_type in edge_types]
    return numbers == sorted(set(numbers)) and numbers[0] >= 0


# ---- layers inside a model that runs as it is written


@contextmanager
def fused_layers(model: nn.Module) -> Iterator[None]:
    """Run a model's ``HGTConv`` layers by :func:`attend`, in the context.

    Outputs and gradients equal PyG's to rounding. A layer runs as it is written if it is anything but PyG's
    own class as it is. The model is left as it was found.
    """
    changed = []
    try:
        for name, layer in model.named_modules():
            if is_kind(layer):
                with suppress(NotLoweredError):
                    check_layer(name, layer)
                    vars(layer)["forward"] = functools.partial(run, layer)
                    changed.append(layer)
        yield
    finally:
        for layer in changed:
            vars(layer).pop("forward", None)


def run(layer: Any, x_dict: Any, edge_index_dict: Any) -> Any:
    """Run PyG's ``HGTConv``, with its own maps of the rows.

    Raises:
        DataError: an id is out of range.
    """
    if not _takes(layer, x_dict, edge_index_dict):
        return type(layer).forward(layer, x_dict, edge_index_dict)
    rows, parts = layer.kqv_lin(x_dict), []
    names = [one for one in rows if one in layer.dst_node_types]
    for name in names:
        query = rows[name].chunk(3, dim=1)[1]
        into = [edge_type for edge_type in edge_index_dict if edge_type[-1] == name]
        sources = [rows[edge_type[0]] for edge_type in into]
        cscs = [_csc_of(one, edge_index_dict[one], x, query) for one, x in zip(into, sources, strict=True)]
        parts.append(attend(layer, query, sources, into, cscs) if into else torch.zeros_like(query))
    # As one matrix, like PyG's: parameters of types that nothing reads then get a gradient of zeros, too.
    out = torch.split(nn.functional.gelu(torch.cat(parts)), [len(part) for part in parts])
    mixed = layer.out_lin(dict(zip(names, out, strict=True)))
    return {name: _with_skip(layer.skip[name], mixed[name], x_dict[name]) for name in names}


def _takes(layer: Any, x_dict: Any, edge_index_dict: Any) -> bool:
    """Return whether a call has what :data:`NEEDED` says."""
    if torch.is_autocast_enabled("cpu") or not isinstance(x_dict, Mapping | dict) or not edge_index_dict:
        return False
    dtypes = {x.dtype if _is_plain(x) else None for x in x_dict.values()}
    ends = {end for edge_type in edge_index_dict for end in (edge_type[0], edge_type[-1])}
    return (
        _is_sorted(layer, edge_index_dict)
        and dtypes in ({torch.float32}, {torch.float64})
        and all(_is_plain(one) and one.dtype == torch.int64 for one in edge_index_dict.values())
        and all(end in x_dict and end in layer.kqv_lin.lins for end in ends)
    )


def _is_plain(value: Any) -> bool:
    """Return whether a value is a dense matrix on the CPU."""
    is_tensor = type(value) in (Tensor, nn.Parameter)
    return is_tensor and value.layout == torch.strided and value.ndim == 2 and value.device.type == "cpu"


def _csc_of(edge_type: EdgeType, ends: Tensor, sources: Tensor, destinations: Tensor) -> Csc:
    """Return the graph of a list of edges between the rows of two types."""
    num_src, num_dst = sources.shape[0], destinations.shape[0]

    def make() -> Csc:
        source, destination = ends.detach().unbind()
        check_ids(source, num_src, f"sources of {edge_type}")
        check_ids(destination, num_dst, f"destinations of {edge_type}")
        return coo_to_csc(source, destination, num_src, num_dst, keep_perm=False)[0]

    return _MADE.get([ends], (num_src, num_dst), make)


def _with_skip(skip: Tensor, mixed: Tensor, x: Tensor) -> Tensor:
    """Return ``mixed`` and, where they are as wide, the layer's input, weighted by the learned gate."""
    if mixed.shape[1] != x.shape[1]:
        return mixed
    gate = skip.sigmoid()
    return gate * mixed + (1 - gate) * x
