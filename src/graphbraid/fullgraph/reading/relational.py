"""Readers of layers over relations: R-GCN's, PyG's and graphbraid's own, and PyG's HGTConv.

Their forwards select the edges or rows of each relation by masks and offsets, which a trace cannot follow.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from graphbraid.errors import did_you_mean
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.aggregations import OWN, PYG, SIZES, is_hgt, pyg_layer, reads_pyg
from graphbraid.fullgraph.reading.calling import EDGE_TYPE, Given
from graphbraid.fullgraph.reading.convolutions import own_activation
from graphbraid.fullgraph.reading.exact import (
    Known,
    anything,
    check,
    check_model,
    count,
    flag,
    is_from,
    is_plain,
    one_of,
    probability,
)
from graphbraid.fullgraph.reading.module_readers import learned_rows
from graphbraid.fullgraph.reading.reader import LayerCall, Writer, as_linear, reader_of, reads
from graphbraid.graph import EdgeType
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.scans import check_ids
from graphbraid.graph.types import ONLY_NODE_TYPE, Relation, Types, placed
from graphbraid.nn.adjacency import MadeOfTensors
from graphbraid.ops.attention import dot_attention
from graphbraid.ops.epilogue import ACTIVATIONS

MOST_READ = 64
"""Largest number of relations with edges: the time of lowering grows with the cube of the operations."""
_TAKES = ("x", "edge_index", "edge_type")


def _count_or_none(value: Any) -> bool:
    return value is None or count(value)


_OPTIONAL = ("comp", "root", "bias")
OWN_CONV = Known(
    dict.fromkeys(("in_channels", "out_channels", "num_relations"), count)
    | {"num_bases": _count_or_none, "aggr": one_of("mean", "sum")}
    | dict.fromkeys(_OPTIONAL, one_of(None)),
    ("weight",),
    optional=_OPTIONAL,
)
"""The attributes that graphbraid's own layer may hold."""


def sum_over_relations(
    writer: Writer, conv: Any, xs: Sequence[str], relations: Iterable[tuple[int, Relation]], node_type: int
) -> str | None:
    """Append the sum of the relations into a node type, of the type's own rows, and the bias.

    ``conv`` is a checked layer with the parameters of PyG's ``RGCNConv``. ``xs`` names the values of each
    type's rows. Each of the relations has the number that it has in the layer.

    Returns:
        The name of the result; None if nothing is to be added.
    """
    total = None
    if conv.root is not None:
        own = writer.add(ir.DestinationRows, xs[node_type])
        total = writer.add(ir.Linear, own, weight=conv.root, view=ir.View(turned=True))
    for number, relation in relations:
        if relation.destination != node_type:
            continue
        rows = _mapped(writer, conv, xs[relation.source], number)
        kind = "mean" if conv.aggr == "mean" else "sum"
        summed = writer.add(ir.Aggregate, rows, adjacency=ir.AdjacencyMatrix(kind=kind, relation=relation))
        total = summed if total is None else writer.sum(summed, total)
    return None if total is None else writer.epilogue(total, bias=conv.bias)


def _mapped(writer: Writer, conv: Any, x: str, number: int) -> str:
    """Append the product of rows with a relation's matrix, which may have blocks on its diagonal alone."""
    if conv.weight.ndim == 3:
        view = ir.View(at=(number,), turned=True)
        return writer.add(ir.Linear, x, weight=conv.weight, view=view, mixed=conv.comp)
    _, blocks, width, _ = conv.weight.shape
    parts = [writer.columns(x, block * width, (block + 1) * width) for block in range(blocks)]
    views = [ir.View(at=(number, block), turned=True) for block in range(blocks)]
    made = (writer.add(ir.Linear, x, weight=conv.weight, view=v) for x, v in zip(parts, views, strict=True))
    return writer.beside(*made)


@reads_pyg(
    "rgcn_conv.RGCNConv",
    "rgcn_conv.FastRGCNConv",
    attributes=SIZES
    | {"aggr": one_of("mean", "add", "sum"), "num_relations": count, "is_sorted": flag}
    | dict.fromkeys(("num_bases", "num_blocks"), _count_or_none)
    | dict.fromkeys(("in_channels_l", "_use_segment_matmul_heuristic_output"), anything),
    parameters=("weight", "comp", "root", "bias"),
    takes=_TAKES,
)
def _read_pyg(call: LayerCall) -> str:
    conv = call.layer
    if _adds_up_means(conv):
        raise call.refuse(
            "runs pyg_lib's segment_matmul, whose mean is over the edges of all relations together",
            "torch_geometric.backend.use_segment_matmul = False",
        )
    return _read(call)


def relations_of_layers(model: nn.Module) -> tuple[Relation, ...]:
    """Return a relation for each number of ``edge_type`` that a model's layers know; empty without such."""
    readers = ((layer, reader_of(type(layer))) for layer in model.modules())
    of_layers = (layer for layer, reader in readers if reader is not None and EDGE_TYPE in reader.takes)
    most = max((int(cast("Any", layer).num_relations) for layer in of_layers), default=0)
    names = [(ONLY_NODE_TYPE, f"relation {number}", ONLY_NODE_TYPE) for number in range(most)]
    return tuple(placed([0], [ONLY_NODE_TYPE], names))


def _adds_up_means(conv: Any) -> bool:
    """Return whether PyG takes a path whose mean is over the edges of all relations together."""
    typing, backend = (sys.modules.get(f"torch_geometric.{name}") for name in ("typing", "backend"))
    may_take_it = getattr(typing, "WITH_SEGMM", False) and type(conv).__name__ == "RGCNConv"
    wanted = getattr(backend, "use_segment_matmul", None)
    has_one = conv.num_bases is None and conv.num_blocks is None
    return bool(may_take_it and wanted is not False and has_one and conv.aggr == "mean")


@reads(f"{OWN}.rgcn.RGCNConv", f"{OWN}.encoders.BasisRGCNConv", known=OWN_CONV, takes=_TAKES)
def _read(call: LayerCall) -> str:
    conv, relations = call.layer, call.edges.relations
    if len(relations) > MOST_READ:
        what = f"over {len(relations)} relations has no lowered form: reading takes up to {MOST_READ}"
        raise call.refuse(what, "mini-batches (mode='sampled')")
    if any(relation.number >= conv.num_relations for relation in relations):
        last = max(relation.number for relation in relations)
        raise call.refuse(f"has {conv.num_relations} relations, and edge_type goes up to {last}")
    numbered = [(relation.number, relation) for relation in relations]
    out = sum_over_relations(call.writer, conv, [call.x], numbered, 0)
    if out is None:
        raise call.refuse("without edges and root weight has no lowered form", "root_weight=True")
    return out


NEEDED = "rows on the CPU, no autocast, and edge lists in the order of the layer's relations"
"""The conditions of a call with a lowered form; any other call runs as written."""

_MADE = MadeOfTensors()
"""Graphs made of edge lists, and of several relations. Layers, and steps on a whole graph, share them."""

_HGT = pyg_layer(
    SIZES
    | {"heads": count}
    | dict.fromkeys(("node_types", "edge_types", "edge_types_map", "dst_node_types"), anything),
    children=("kqv_lin", "out_lin", "k_rel", "v_rel", "skip", "p_rel"),
)
_BY_RELATION = Known(
    dict.fromkeys(("in_channels", "out_channels", "num_types"), count)
    | {"is_sorted": one_of(True), "kwargs": anything, "_timing_cache": anything},
    parameters=("weight",),
    optional=("bias",),
)


def check_hgt(name: str, layer: Any) -> None:
    """Refuse a layer that may compute other values than the operations of :func:`read_hgt`.

    Raises:
        NotLoweredError: says why.
    """
    if not is_from(type(layer), f"{PYG}.hgt_conv"):
        raise ir.NotLoweredError(name, f"{type(layer).__name__} is a subclass of HGTConv", "HGTConv")
    check_model(layer)
    check(name, layer, _HGT)
    homes = {"aggr_module": ("aggr.basic", "SumAggregation", Known({"_deterministic": flag}))}
    homes |= dict.fromkeys(("k_rel", "v_rel"), ("dense.linear", "HeteroLinear", _BY_RELATION))
    for key, (home, kind, known) in homes.items():
        module = getattr(layer, key)
        if type(module) is not getattr(sys.modules.get(f"torch_geometric.nn.{home}"), kind, None):
            raise ir.NotLoweredError(f"{name}.{key}", f"it is a {type(module).__name__}", kind)
        check(f"{name}.{key}", module, known)


def outputs_of_hgt(name: str, layer: Any, x_dict: Any, edge_index_dict: Any) -> list[str]:
    """Return the node types that a call of PyG's ``HGTConv`` gives rows of.

    Raises:
        NotLoweredError: no operations stand for the layer or for such a call.
    """
    check_hgt(name, layer)
    for key in ("kqv_lin", "out_lin"):
        kind = type(getattr(layer, key))
        if kind.__name__ != "HeteroDictLinear" or not is_from(kind, "torch_geometric.nn.dense.linear"):
            raise ir.NotLoweredError(f"{name}.{key}", f"it is a {kind.__name__}", "HeteroDictLinear")
    lins = layer.kqv_lin.lins
    if not isinstance(x_dict, Mapping) or not isinstance(edge_index_dict, Mapping) or not edge_index_dict:
        raise ir.NotLoweredError(name, "it is not called with dicts of rows and of edges", NEEDED)
    if not _is_sorted(layer, edge_index_dict):
        raise ir.NotLoweredError(name, "it gets edges in another order than its relations have", NEEDED)
    if any(end not in x_dict or end not in lins for one in edge_index_dict for end in (one[0], one[-1])):
        raise ir.NotLoweredError(name, "it gets edges of types whose rows it does not get", NEEDED)
    wanted = [one for one in x_dict if one in lins and one in layer.dst_node_types]
    if alone := [one for one in wanted if all(edge_type[-1] != one for edge_type in edge_index_dict)]:
        raise ir.NotLoweredError(name, f"it gets no edges into {alone[0]!r}", "edges of all its relations")
    return wanted


def read_hgt(
    writer: Writer, name: str, layer: Any, xs: Mapping[str, str], relations: Sequence[Relation]
) -> dict[str, str]:
    """Append PyG's ``HGTConv``; return the values that hold the rows of each type of :func:`outputs_of_hgt`.

    That function has checked the layer. ``xs`` has the values that hold its input's rows, by node type, and
    ``relations`` those that it gets edges of.
    """

    def linear(of: str, x: str, module: nn.Module) -> str:
        checked = as_linear(f"{name}.{of}", module)
        if checked is None:
            raise ir.NotLoweredError(f"{name}.{of}", f"it is a {type(module).__name__}", "Linear")
        return writer.linear(x, checked)

    read = {end for one in relations for end in (one.edge_type[0], one.edge_type[-1])}
    same = dict(zip(sorted(read), writer.on_one_level(*(xs[one] for one in sorted(read))), strict=True))
    rows = {one: linear(f"kqv_lin.lins.{one}", x, layer.kqv_lin.lins[one]) for one, x in same.items()}
    width, found = layer.out_channels, dict[str, str]()
    for one in outputs_of_hgt(name, layer, xs, {relation.edge_type: None for relation in relations}):
        own = writer.add(ir.DestinationRows, same[one])
        query = writer.add(
            ir.ColumnRange, writer.add(ir.DestinationRows, rows[one]), first=width, last=2 * width
        )
        into = tuple(relation for relation in relations if relation.edge_type[-1] == one)
        sources = (rows[relation.edge_type[0]] for relation in into)
        out = writer.add(ir.RelationAttention, query, *sources, layer=layer, relations=into)
        mixed = linear(f"out_lin.lins.{one}", writer.function(out, "gelu", "none"), layer.out_lin.lins[one])
        if writer.width(mixed) == writer.width(own):
            gate = ir.SmallTensor(torch.sigmoid, (ir.Leaf(layer.skip[one]),))
            rest = ir.SmallTensor(operator.sub, (1, gate))
            mixed = writer.sum(writer.by_row(mixed, gate), writer.by_row(own, rest))
        found[one] = mixed
    return found


def attend(
    layer: Any, query: Tensor, rows: Sequence[Tensor], relations: Sequence[EdgeType], cscs: Sequence[Csc]
) -> Tensor:
    """Return the attention of the nodes of a type over their in-neighbours by several relations.

    ``key = k W_k[r, h] * p[r, h] / sqrt(channels)`` and ``value = v W_v[r, h]`` for each relation's sources,
    as in "Heterogeneous Graph Transformer" (Hu et al., 2020). ``query`` is ``(num_dst, channels)``. ``rows``
    are the ``(num_src, 3 * channels)`` keys, queries and values of each relation's sources, and ``cscs`` its
    edges.
    """
    scale = 1 / math.sqrt(layer.out_channels // layer.heads)
    keys, values = [], []
    for edge_type, of_sources in zip(relations, rows, strict=True):
        key, _, value = of_sources.chunk(3, dim=1)
        strength = layer.p_rel["__".join(edge_type)].view(-1, 1, 1) * scale
        keys.append(_mapped_by_head(key, strength * _maps(layer, layer.k_rel, edge_type)))
        values.append(_mapped_by_head(value, _maps(layer, layer.v_rel, edge_type)))
    stacked = torch.cat(keys).flatten(1), torch.cat(values).flatten(1)
    return dot_attention(_side_by_side(cscs), query, *stacked, layer.heads)


def _maps(layer: Any, of_relations: Any, edge_type: EdgeType) -> Tensor:
    """Return a relation's ``(heads, channels, channels)`` maps. PyG's stack is ordered by head."""
    maps: Tensor = of_relations.weight[layer.edge_types_map[edge_type] :: len(layer.edge_types)]
    return maps


def _mapped_by_head(rows: Tensor, maps: Tensor) -> Tensor:
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
            if is_hgt(layer):
                with suppress(ir.NotLoweredError):
                    check_hgt(name, layer)
                    vars(layer)["forward"] = functools.partial(run_hgt, layer)
                    changed.append(layer)
        yield
    finally:
        for layer in changed:
            vars(layer).pop("forward", None)


def run_hgt(layer: Any, x_dict: Any, edge_index_dict: Any) -> Any:
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
    """Return whether a call meets the conditions of :data:`NEEDED`."""
    if torch.is_autocast_enabled("cpu") or forward_ad._current_level >= 0:
        return False
    if not isinstance(x_dict, Mapping | dict) or not edge_index_dict:
        return False
    dtypes = {x.dtype if _is_cpu_matrix(x) else None for x in x_dict.values()}
    ends = {end for edge_type in edge_index_dict for end in (edge_type[0], edge_type[-1])}
    return (
        _is_sorted(layer, edge_index_dict)
        and dtypes in ({torch.float32}, {torch.float64})
        and all(_is_cpu_matrix(one) and one.dtype == torch.int64 for one in edge_index_dict.values())
        and all(end in x_dict and end in layer.kqv_lin.lins for end in ends)
    )


def _is_cpu_matrix(value: Any) -> bool:
    """Return whether a value is a dense matrix on the CPU."""
    return is_plain(value) and value.ndim == 2 and value.device.type == "cpu"


def _csc_of(edge_type: EdgeType, ends: Tensor, sources: Tensor, destinations: Tensor) -> Csc:
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


# ---- graphbraid's relational model


def read_rgcn(writer: Writer, model: Any, given: Given, node_type: str | None) -> str:
    """Append the operations of a model; return the name of the outputs of a type, empty if it has none."""
    name, graph = type(model).__name__, given.graph
    if graph is None or graph.types is None or node_type is None:
        raise ir.NotLoweredError(name, "on mini-batches its own layers run it", "calls with blocks")
    check(name, model, _OWN_MODEL)
    relations, names = _numbered(model, graph.types), [one.name for one in given.node_types]
    dropout = model.dropout if model.training else 0.0
    xs = [writer.epilogue(_input(writer, model, one, graph.types), p=dropout) for one in given.node_types]
    for number, conv in enumerate(model.convs):
        check(f"convs.{number}", conv, OWN_CONV)
        if number == model.num_layers - 1:
            is_computed = model.node_type in (None, node_type)
            place = names.index(node_type)
            out = sum_over_relations(writer, conv, xs, relations, place) if is_computed else None
            if not out or not model.ends_hidden:
                return out or ""
            return writer.epilogue(own_activation(writer, model.act, out), p=dropout)
        outs = []
        for place, one in enumerate(names):
            out = sum_over_relations(writer, conv, xs, relations, place)
            if out is None:
                what = f"nodes of {one!r} have neither in-edges nor a root weight"
                raise ir.NotLoweredError("convs", what, "Graph.with_reverse_relations")
            outs.append(writer.epilogue(own_activation(writer, model.act, out), p=dropout))
        xs = outs
    raise ir.NotLoweredError(name, "it has no layers", "num_layers=1 or more")


def _numbered(model: Any, types: Types) -> list[tuple[int, Relation]]:
    """Return the relations with edges, each with its number in the model.

    Raises:
        NotLoweredError: the graph lacks one, or there are too many.
    """
    known = {relation.edge_type: relation for relation in types.relations()}
    found = []
    for number, edge_type in enumerate(model.edge_types):
        if edge_type not in known:
            hint = did_you_mean("__".join(edge_type), ["__".join(one) for one in known])
            raise ir.NotLoweredError("edge_types", f"the graph has no relation {edge_type}.{hint}")
        if types.edges[edge_type].num_edges:
            found.append((number, known[edge_type]))
    if not 0 < len(found) <= MOST_READ:
        what = f"the graph has {len(found)} of its relations"
        raise ir.NotLoweredError("edge_types", what, f"1 to {MOST_READ} relations with edges")
    return found


def _input(writer: Writer, model: Any, one: ir.NodeType, types: Types) -> str:
    """Append the input layer of a type: a linear map of its features, or learned rows."""
    if one.name not in model.node_types:
        raise ir.NotLoweredError("inputs", f"it has no layer for nodes of type {one.name!r}")
    number = model.node_types.index(one.name)
    name, layer = f"inputs.{number}", model.inputs[number]
    if type(layer) is nn.Embedding:
        return learned_rows(writer, name, layer, one, types.nodes[one.name].num_nodes)
    linear = as_linear(name, layer)
    if linear is None:
        raise ir.NotLoweredError(name, f"{type(layer).__name__} is no input layer")
    if linear.weight.shape[1] != one.channels:
        what = f"it takes {linear.weight.shape[1]} features; nodes of {one.name!r} have {one.channels}"
        raise ir.NotLoweredError(name, what)
    return own_activation(writer, model.act, writer.linear(one.input, linear))


_OWN_MODEL = Known(
    dict.fromkeys(("num_layers", "hidden_channels", "out_channels"), count)
    | {"dropout": probability, "act": one_of(*ACTIVATIONS)}
    | dict.fromkeys(("node_types", "edge_types", "node_type", "ends_hidden"), anything),
    children=("inputs", "convs"),
)
