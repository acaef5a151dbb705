"""The entry points for reading models: graphbraid's own are read layer by layer, others by a trace."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import Any

import torch
from torch import nn

from graphbraid.errors import did_you_mean
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.break_trial import Breaks
from graphbraid.fullgraph.reading.calling import Calling, Given, calling_of, only_node_type
from graphbraid.fullgraph.reading.convolutions import OWN_MODELS, checked_call, own_activation, read_own
from graphbraid.fullgraph.reading.exact import (
    Known,
    anything,
    check,
    check_model,
    count,
    one_of,
    other_dtype,
    probability,
)
from graphbraid.fullgraph.reading.module_readers import as_linear, learned_rows
from graphbraid.fullgraph.reading.reader import Writer
from graphbraid.fullgraph.reading.relational import MOST_READ, OWN_CONV, sum_over_relations
from graphbraid.fullgraph.reading.trace_reader import read_traced
from graphbraid.graph import Graph
from graphbraid.graph.types import Relation, Types
from graphbraid.nn import RGCN, module_traits
from graphbraid.ops.epilogue import ACTIVATIONS

MOST_OPERATIONS = 800
"""Largest number of operations over node types: the time of lowering grows with their cube."""


def read_model(
    model: nn.Module,
    in_channels: int = 0,
    given: Given | None = None,
    calling: Calling | None = None,
    *,
    node_type: str | None = None,
    dtypes: Collection[torch.dtype] = (torch.float32,),
    breaks: Breaks | None = None,
) -> ir.Program:
    """Read a model in its current mode into a program.

    Args:
        model: a model of :mod:`graphbraid.nn`, or any whose ``forward`` is made of layers, modules and
            functions that have a reader. Where there are types, it is called with
            ``(x_dict, edge_index_dict)``, as those of PyG's ``HeteroConv`` or made by ``to_hetero``.
        in_channels: number of feature columns, where ``given`` does not say.
        given: the arguments available to call it with. If None, features and edges without weights.
        calling: how to call it. If None, determined by
            :func:`graphbraid.fullgraph.reading.calling.calling_of`.
        node_type: the type whose outputs are wanted, where there are types; None if the model returns those
            of one alone.
        dtypes: dtypes that parameters may have: float32, also float64, or both.
        breaks: how calls without a lowered form become graph breaks. If None, they are refused.

    Raises:
        NotLoweredError: part of the model cannot be read; the message names it.
    """
    given, name = given or Given(), type(model).__name__
    if given.typed and module_traits.takes_blocks(model) and type(model) is not RGCN:
        what = "no operations stand for it on a graph with types so far"
        raise ir.NotLoweredError(name, what, "graphbraid.nn.RGCN")
    check_model(model)
    node_types = given.node_types if given.typed else (only_node_type(in_channels),)
    numbers = {one.input: number for number, one in enumerate(node_types)}
    writer = Writer({one.input: one.channels for one in node_types}, numbers)
    returned: ir.Returned | None = None
    if type(model) in OWN_MODELS and not given.typed:
        out = read_own(checked_call(writer, model))
    elif type(model) is RGCN and given.typed:
        out = _read_rgcn(writer, model, given, node_type)
    else:
        calling = calling or calling_of(model, given)
        out, returned = read_traced(writer, model, calling, given, node_type=node_type, breaks=breaks)
    if out == ir.INPUT:
        raise ir.NotLoweredError(name, "it returns its input")
    if not out:
        raise ir.NotLoweredError(name, f"it gives no outputs of {node_type!r}", f"node_type={node_type!r}")
    ops = _reached(writer.ops, out)
    _check_worth(ops, None if given.typed else given.graph)
    if given.typed:
        _check_typed(name, ops, node_type)
    by_relation = given.typed or _reads_relations(ops)
    try:
        program = ir.Program(ops=ops, node_types=node_types, by_relation=by_relation, returned=returned)
    except ValueError as error:
        raise ir.NotLoweredError(name, str(error)) from None
    read = {id(parameter) for parameter in program.parameters()}
    for path, parameter in model.named_parameters():
        if id(parameter) in read and parameter.dtype not in dtypes:
            module, _, key = path.rpartition(".")
            raise other_dtype(module, key, parameter)
    return program


def _check_typed(name: str, ops: tuple[ir.Operation, ...], node_type: str | None) -> None:
    """Refuse a program over node types that reads no edges, or is too long."""
    if not any(op.moves for op in ops):
        raise ir.NotLoweredError(
            name, f"its outputs of {node_type!r} read no edges", "a layer over a relation"
        )
    if len(ops) > MOST_OPERATIONS:
        what = f"it comes to {len(ops)} operations, and reading takes up to {MOST_OPERATIONS}"
        raise ir.NotLoweredError(name, what, "mini-batches (mode='sampled')")


def _reads_relations(ops: tuple[ir.Operation, ...]) -> bool:
    """Return whether operations read edges by relation.

    Raises:
        NotLoweredError: others of them read all edges together.
    """
    reads = [op for op in ops if op.moves and not isinstance(op, ir.DestinationRows)]
    by_relation = [op for op in reads if op.walks is not None]
    if by_relation and len(by_relation) < len(reads):
        raise ir.NotLoweredError(
            "forward", "some layers read relations and others all edges together", "layers of one kind"
        )
    return bool(by_relation)


def _reached(ops: list[ir.Operation], out: str) -> tuple[ir.Operation, ...]:
    """Return the operations that the result depends on; the last of them computes it."""
    kept = ir.needed_for(ops, out)
    values = {op.out for op in kept}
    for op in (op for op in reversed(ops) if op.out not in values):
        if isinstance(op, ir.Break) and op.is_graph_break:
            raise ir.NotLoweredError(op.calls[-1].name, "nothing reads its result", code="unread")
        if isinstance(op, ir.Break | ir.Normalise) and op.couples_rows:
            raise ir.NotLoweredError(str(op.symbol), "it moves statistics and nothing reads its result")
    return kept


_BREAK_ROWS, _EDGE_ROWS = 7, 8
"""Rows that a graph break copies for each node, and that a lowered layer saves for each edge, in a step.

A break copies its result (2), and in backward its gradient (2) and its input's (3). PyTorch's layer gathers
a row for each edge (2), scales it (2) and adds it up (2), and the same backward, where a lowered one reads 4.
"""


def _check_worth(ops: tuple[ir.Operation, ...], graph: Graph | None) -> None:
    """Refuse graph breaks that would cost more than the lowered operations save.

    Raises:
        NotLoweredError: no layer over edges is lowered, or there are too few edges for the breaks.
    """
    calls = [call for op in ops if isinstance(op, ir.Break) and op.is_graph_break for call in op.calls]
    if not calls:
        return
    # A scatter says more than the gathers before it, which break because it does.
    first = max(calls, key=lambda call: (call.code == "scatter", bool(call.code)))
    part, _, reason = (first.why or f"{first.name}: it runs inside a graph break").partition(": ")
    apart = [layer.program.ops for op in ops if isinstance(op, ir.Break) for layer in op.layers]
    layers = [
        op
        for op in (*ops, *chain(*apart))
        if (op.moves or op.relations_read) and not isinstance(op, ir.DestinationRows)
    ]
    if not layers:
        raise ir.NotLoweredError(part, reason, first.needed, code=first.code, where=first.where)
    if graph is None:
        return
    copied = _BREAK_ROWS * graph.num_nodes * sum(isinstance(op, ir.Break) and op.is_graph_break for op in ops)
    saved = _EDGE_ROWS * graph.num_edges * len(layers)
    if copied > saved:
        what = f"{reason}; breaks around it would cost more than the {len(layers)} lowered layers save"
        raise ir.NotLoweredError(part, what, first.needed, code="small", where=first.where)


# ---- graphbraid's relational model


def _read_rgcn(writer: Writer, model: Any, given: Given, node_type: str | None) -> str:
    """Append the operations of a model; return the name of the outputs of a type, empty if it has none."""
    name, graph = type(model).__name__, given.graph
    if graph is None or graph.types is None or node_type is None:
        raise ir.NotLoweredError(name, "on mini-batches its own layers run it", "calls with blocks")
    check(name, model, _RGCN)
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


_RGCN = Known(
    {
        "num_layers": count,
        "dropout": probability,
        "act": one_of(*ACTIVATIONS),
        "node_types": anything,
        "edge_types": anything,
        "node_type": anything,
        "hidden_channels": count,
        "out_channels": count,
        "ends_hidden": anything,
    },
    children=("inputs", "convs"),
)
