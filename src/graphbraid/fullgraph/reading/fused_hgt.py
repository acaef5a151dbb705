"""PyG's ``HGTConv`` by fused operators: the relations into all types are one graph, under one softmax.

The graph's sources are each relation's own rows of keys and values, and its destinations the nodes of all
types that receive messages. So one pass computes all relations' attention, without rows per edge.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import NotLoweredError
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
from graphbraid.graph import EdgeType
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.scans import check_ids
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
    scale = 1 / math.sqrt(layer.out_channels // layer.heads)
    keys, values = [], []
    for edge_type in edge_index_dict:
        key, _, value = rows[edge_type[0]]
        strength = layer.p_rel["__".join(edge_type)].view(-1, 1, 1) * scale
        keys.append(_mapped(key, strength * _maps(layer, layer.k_rel, edge_type)))
        values.append(_mapped(value, _maps(layer, layer.v_rel, edge_type)))
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
    numbers = [layer.edge_types_map.get(edge_type, -1) for edge_type in edge_index_dict]
    # PyG divides the stacked rows by relation as if they were sorted, so another order gives other results.
    is_sorted = numbers == sorted(set(numbers)) and numbers[0] >= 0
    ends = {end for edge_type in edge_index_dict for end in (edge_type[0], edge_type[-1])}
    return (
        is_sorted
        and dtypes in ({torch.float32}, {torch.float64})
        and all(_is_plain(one) and one.dtype == torch.int64 for one in edge_index_dict.values())
        and all(end in x_dict and end in layer.kqv_lin.lins for end in ends)
    )


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
