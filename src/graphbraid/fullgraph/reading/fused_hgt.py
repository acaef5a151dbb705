"""PyG's ``HGTConv`` by fused operators: the relations into all types are one graph, under one softmax.

The graph's sources are each relation's own rows of keys and values, and its destinations the nodes of all
types that receive messages. So one pass computes all relations' attention, without rows per edge.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from graphbraid.fullgraph.reading.reader import Writer
from graphbraid.fullgraph.reading.rowwise import as_linear
from graphbraid.graph import EdgeType
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.scans import check_ids
from graphbraid.graph.types import Relation
from graphbraid.nn.adjacency import MadeOfTensors
from graphbraid.ops.attention import dot_attention

NEEDED = "rows on the CPU, no autocast, and edge lists in the order of the layer's relations"
"""What a call must have; any other runs as it is written."""

_RELATIONS = MadeOfTensors()
"""The relations of a call as one graph: a model's layers and steps on a whole graph pass the same lists."""

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
    """Refuse a layer that is not known to compute what :func:`run` does.

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

    Args:
        layer: PyG's ``HGTConv``.
        query: ``(num_dst, channels)``.
        rows: ``(num_src, 3 * channels)`` keys, queries and values of each relation's sources.
        relations: the relations.
        cscs: the edges of each.
    """
    keys, values = [], []
    for edge_type, of_sources in zip(relations, rows, strict=True):
        key, _, value = of_sources.chunk(3, dim=1)
        mapped = _mapped_by(layer, edge_type, key, value)
        keys.append(mapped[0])
        values.append(mapped[1])
    stacked = torch.cat(keys).flatten(1), torch.cat(values).flatten(1)
    return dot_attention(_side_by_side(cscs), query, *stacked, layer.heads)


def _mapped_by(layer: Any, edge_type: EdgeType, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return a relation's own keys, scaled, and values, ``(num_rows, heads, channels)``."""
    scale = 1 / math.sqrt(layer.out_channels // layer.heads)
    strength = layer.p_rel["__".join(edge_type)].view(-1, 1, 1) * scale
    keys = _mapped(key, strength * _maps(layer, layer.k_rel, edge_type))
    return keys, _mapped(value, _maps(layer, layer.v_rel, edge_type))


def _side_by_side(cscs: Sequence[Csc]) -> Csc:
    """Return the edges into the same destinations as one graph, whose sources follow each other."""
    if len(cscs) == 1:
        return cscs[0]
    sources, first = [], 0
    for csc in cscs:
        sources.append(csc.indices.long() + first)
        first += csc.num_src
    destinations = torch.cat([csc.destinations().long() for csc in cscs])
    return coo_to_csc(torch.cat(sources), destinations, first, cscs[0].num_dst, keep_perm=False)[0]


def run(layer: Any, x_dict: Any, edge_index_dict: Any) -> Any:
    """Run PyG's ``HGTConv``, with its own maps of the rows and one fused attention over all relations.

    ``key = k W_k[r, h] * p[r, h] / sqrt(channels)`` and ``value = v W_v[r, h]`` for each relation's sources,
    as in "Heterogeneous Graph Transformer" (Hu et al., 2020).
    """
    if not _takes(layer, x_dict, edge_index_dict):
        return type(layer).forward(layer, x_dict, edge_index_dict)
    rows = {name: of_type.chunk(3, dim=1) for name, of_type in layer.kqv_lin(x_dict).items()}
    wanted = [name for name in rows if name in layer.dst_node_types]
    num_dst = {name: rows[name][1].shape[0] for name in wanted}
    keys, values = [], []
    for edge_type in edge_index_dict:
        key, _, value = rows[edge_type[0]]
        mapped = _mapped_by(layer, edge_type, key, value)
        keys.append(mapped[0])
        values.append(mapped[1])
    csc = _merged(edge_index_dict, [key.shape[0] for key in keys], num_dst)
    query = torch.cat([rows[name][1] for name in wanted])
    stacked = torch.cat(keys).flatten(1), torch.cat(values).flatten(1)
    out = torch.split(dot_attention(csc, query, *stacked, layer.heads), list(num_dst.values()))
    mixed = layer.out_lin({name: nn.functional.gelu(part) for name, part in zip(wanted, out, strict=True)})
    return {name: _with_skip(layer.skip[name], mixed[name], x_dict[name]) for name in wanted}


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


def _is_sorted(layer: Any, edge_types: Iterable[EdgeType]) -> bool:
    """Return whether relations are in the layer's order.

    PyG divides the stacked rows by relation as if they were sorted, so another order gives other results.
    """
    numbers = [layer.edge_types_map.get(edge_type, -1) for edge_type in edge_types]
    return numbers == sorted(set(numbers)) and numbers[0] >= 0


def _is_plain(value: Any) -> bool:
    """Return whether a value is a dense matrix on the CPU."""
    is_tensor = type(value) in (Tensor, nn.Parameter)
    return is_tensor and value.layout == torch.strided and value.ndim == 2 and value.device.type == "cpu"


def _maps(layer: Any, of_relations: Any, edge_type: EdgeType) -> Tensor:
    """Return a relation's ``(heads, channels, channels)`` maps; PyG's stack has those of a head together."""
    maps: Tensor = of_relations.weight[layer.edge_types_map[edge_type] :: len(layer.edge_types)]
    return maps


def _mapped(rows: Tensor, maps: Tensor) -> Tensor:
    """Return ``(num_rows, heads, channels)`` rows, each head's multiplied by its map."""
    by_head = rows.view(rows.shape[0], *maps.shape[:2]).transpose(0, 1)
    return torch.bmm(by_head, maps).transpose(0, 1)


def _with_skip(skip: Tensor, mixed: Tensor, x: Tensor) -> Tensor:
    """Return ``mixed`` and, where they are as wide, the layer's input, weighted by the learned gate."""
    if mixed.shape[1] != x.shape[1]:
        return mixed
    gate = skip.sigmoid()
    return gate * mixed + (1 - gate) * x


def _merged(lists: Mapping[EdgeType, Tensor], num_src: Sequence[int], num_dst: Mapping[str, int]) -> Csc:
    """Return the relations as one graph, kept for as long as the lists live unchanged.

    Args:
        lists: edge lists by relation.
        num_src: number of each relation's sources, whose ids follow those of the relation before it.
        num_dst: number of each type's destinations, whose ids follow those of the type before it.

    Raises:
        DataError: an id is out of range.
    """
    key = (*lists, *num_src, *num_dst.items())
    return _RELATIONS.get(list(lists.values()), key, lambda: _made(lists, num_src, num_dst))


def _made(lists: Mapping[EdgeType, Tensor], num_src: Sequence[int], num_dst: Mapping[str, int]) -> Csc:
    first_dst, total_dst = {}, 0
    for name, number in num_dst.items():
        first_dst[name] = total_dst
        total_dst += number
    sources, destinations, total_src = [], [], 0
    for (edge_type, ends), number in zip(lists.items(), num_src, strict=True):
        source, destination = ends.detach().unbind()
        check_ids(source, number, f"sources of {edge_type}")
        check_ids(destination, num_dst[edge_type[-1]], f"destinations of {edge_type}")
        sources.append(source + total_src)
        destinations.append(destination + first_dst[edge_type[-1]])
        total_src += number
    return coo_to_csc(torch.cat(sources), torch.cat(destinations), total_src, total_dst, keep_perm=False)[0]


# ---- layers of PyG without a lowered form, run by fused operators inside a model that runs as it is written


@contextmanager
def fused_layers(model: nn.Module) -> Iterator[None]:
    """Run a model's ``HGTConv`` layers by :mod:`graphbraid.fullgraph.reading.fused_hgt`, in the context.

    Outputs and gradients equal PyG's to rounding. A layer runs as it is written if it is anything but PyG's
    own class as it is. The model is left as it was found.
    """
    changed = []
    try:
        for _, layer in _found(model)[0]:
            vars(layer)["forward"] = functools.partial(run, layer)
            changed.append(layer)
        yield
    finally:
        for layer in changed:
            vars(layer).pop("forward", None)


def explained_fused(model: nn.Module) -> str:
    """Return as text which layers of a model that runs as it is written are fused, and why others are not."""
    found, refused = _found(model)
    lines = []
    if found:
        names = ", ".join(name or "the model itself" for name, _ in found)
        lines.append(
            f"Fused operators run {names} (HGTConv): relations share one pass, without rows per edge, where "
            f"the call has {NEEDED}."
        )
    lines += [f"Not fused: {why.part}: {why.reason}." for why in refused]
    return "\n".join(lines)


def _found(model: nn.Module) -> tuple[list[tuple[str, nn.Module]], list[NotLoweredError]]:
    """Return the layers that fused operators stand for, by name, and why not for others of their class."""
    found, refused = [], []
    for name, layer in model.named_modules():
        if not is_kind(layer):
            continue
        try:
            check_layer(name or type(layer).__name__, layer)
        except NotLoweredError as why:
            refused.append(why)
        else:
            found.append((name, layer))
    return found, refused
