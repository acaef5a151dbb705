"""The entry points for reading models: graphbraid's own are read layer by layer, others by a trace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn

from graphbraid.errors import did_you_mean
from graphbraid.fullgraph.program import (
    INPUT,
    Break,
    DestinationRows,
    NodeType,
    Normalise,
    NotLoweredError,
    Operation,
    Program,
    Returned,
)
from graphbraid.fullgraph.reading.break_trial import Breaks
from graphbraid.fullgraph.reading.calling import Calling, Given, calling_of
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
from graphbraid.fullgraph.reading.module_readers import as_linear
from graphbraid.fullgraph.reading.reader import Writer
from graphbraid.fullgraph.reading.relational import MOST_READ, OWN_CONV, sum_over_relations
from graphbraid.fullgraph.reading.trace_reader import learned_rows, read_traced
from graphbraid.graph import Graph
from graphbraid.graph.types import ONLY_NODE_TYPE, Relation, Types
from graphbraid.nn import RGCN, module_traits
from graphbraid.ops.epilogue import ACTIVATIONS

MOST_OPERATIONS = 800
"""Largest number of operations over node types: the time of lowering grows with their cube."""


def read_model(
    model: nn.Module,
    in_channels: int,
    given: Given | None = None,
    calling: Calling | None = None,
    *,
    dtypes: Collection[torch.dtype] = (torch.float32,),
    breaks: Breaks | None = None,
) -> Program:
    """Read a model in its current mode into a program.

    Args:
        model: a model of :mod:`graphbraid.nn`, or any whose ``forward`` is made of layers, modules and
            functions that have a reader.
        in_channels: number of feature columns.
        given: the arguments available to call it with. If None, features and edges without weights.
        calling: how to call it. If None, determined by
            :func:`graphbraid.fullgraph.reading.calling.calling_of`.
        dtypes: dtypes that parameters may have: float32, also float64, or both.
        breaks: how calls without a lowered form become graph breaks. If None, they are refused.

    Raises:
        NotLoweredError: part of the model cannot be read; the message names it.
    """
    given = given or Given()
    check_model(model)
    writer, name = Writer({INPUT: in_channels}), type(model).__name__
    returned: Returned | None = None
    if type(model) in OWN_MODELS:
        out = read_own(checked_call(writer, model))
    else:
        calling = calling or calling_of(model, given)
        out, returned = read_traced(writer, model, calling, given, breaks=breaks)
    if out == INPUT:
        raise NotLoweredError(name, "it returns its input")
    ops = _reached(writer.ops, out)
    _check_worth(ops, given.graph)
    only = NodeType(name=ONLY_NODE_TYPE, input=INPUT, channels=in_channels)
    node_types = (only,) if _reads_relations(ops) else ()
    return _checked(model, dtypes, ops=ops, in_channels=in_channels, node_types=node_types, returned=returned)


def read_typed(
    model: nn.Module,
    calling: Calling,
    given: Given,
    node_type: str | None,
    *,
    dtypes: Collection[torch.dtype] = (torch.float32,),
    breaks: Breaks | None = None,
) -> Program:
    """Read a model over node types and relations, in its current mode, into a program.

    Args:
        model: an :class:`graphbraid.nn.RGCN`, or any model called with ``(x_dict, edge_index_dict)``, as
            those of PyG's ``HeteroConv`` or made by ``to_hetero``, whose ``forward`` is made of layers,
            modules and functions that have a reader.
        calling: how to call it.
        given: the arguments available to call it with.
        node_type: the type whose outputs are wanted; None if the model returns those of one alone.
        dtypes: dtypes that parameters may have: float32, also float64, or both.
        breaks: how calls without a lowered form become graph breaks. If None, they are refused.

    Raises:
        NotLoweredError: part of the model cannot be read; the message names it.
    """
    name = type(model).__name__
    if module_traits.takes_blocks(model) and type(model) is not RGCN:
        raise NotLoweredError(
            name, "no operations stand for it on a graph with types so far", "graphbraid.nn.RGCN"
        )
    check_model(model)
    node_types, types = given.node_types, None if given.graph is None else given.graph.types
    widths = {one.input: one.channels for one in node_types}
    writer = Writer(widths, {one.input: number for number, one in enumerate(node_types)})
    out: str | None
    returned: Returned | None = None
    if type(model) is RGCN:
        if types is None or node_type is None:
            raise NotLoweredError(name, "on mini-batches its own layers run it", "calls with blocks")
        check(name, model, _RGCN)
        out = _RGCNReader(writer, model, types, node_types).outputs()[list(types.nodes).index(node_type)]
    else:
        out, returned = read_traced(writer, model, calling, given, node_type=node_type, breaks=breaks)
    if not out:
        raise NotLoweredError(name, f"it gives no outputs of {node_type!r}", f"node_type={node_type!r}")
    ops = _reached(writer.ops, out)
    _check_worth(ops, None)
    if not any(op.moves for op in ops):
        raise NotLoweredError(name, f"its outputs of {node_type!r} read no edges", "a layer over a relation")
    if len(ops) > MOST_OPERATIONS:
        what = f"it comes to {len(ops)} operations, and reading takes up to {MOST_OPERATIONS}"
        raise NotLoweredError(name, what, "mini-batches (mode='sampled')")
    return _checked(model, dtypes, ops=ops, in_channels=0, node_types=node_types, returned=returned)


def _checked(model: nn.Module, dtypes: Collection[torch.dtype], **fields: Any) -> Program:
    try:
        program = Program(**fields)
    except ValueError as error:
        raise NotLoweredError(type(model).__name__, str(error)) from None
    read = {id(parameter) for parameter in program.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) in read and parameter.dtype not in dtypes:
            module, _, key = name.rpartition(".")
            raise other_dtype(module, key, parameter)
    return program


def _reads_relations(ops: tuple[Operation, ...]) -> bool:
    """Return whether operations read edges by relation.

    Raises:
        NotLoweredError: others of them read all edges together.
    """
    reads = [op for op in ops if op.moves and not isinstance(op, DestinationRows)]
    by_relation = [op for op in reads if op.walks is not None]
    if by_relation and len(by_relation) < len(reads):
        raise NotLoweredError(
            "forward", "some layers read relations and others all edges together", "layers of one kind"
        )
    return bool(by_relation)


def _reached(ops: list[Operation], out: str) -> tuple[Operation, ...]:
    """Return the operations that the result depends on; the last of them computes it."""
    wanted, kept = {out}, []
    for op in reversed(ops):
        if op.out in wanted:
            wanted.update(op.inputs)
            kept.append(op)
        elif isinstance(op, Break) and op.is_graph_break:
            raise NotLoweredError(op.calls[-1].name, "nothing reads its result", code="unread")
        elif isinstance(op, Break | Normalise) and op.couples_rows:
            raise NotLoweredError(str(op.symbol), "it moves statistics and nothing reads its result")
    return tuple(reversed(kept))


_BREAK_ROWS, _EDGE_ROWS = 7, 8
"""Rows that a graph break copies for each node, and that a lowered layer saves for each edge, in a step.

A break copies its result (2), and in backward its gradient (2) and its input's (3). PyTorch's layer gathers
a row for each edge (2), scales it (2) and adds it up (2), and the same backward, where a lowered one reads 4.
"""


def _check_worth(ops: tuple[Operation, ...], graph: Graph | None) -> None:
    """Refuse graph breaks that would cost more than the lowered operations save.

    Raises:
        NotLoweredError: no layer over edges is lowered, or there are too few edges for the breaks.
    """
    calls = [call for op in ops if isinstance(op, Break) and op.is_graph_break for call in op.calls]
    if not calls:
        return
    first = next((call for call in calls if call.code), calls[0])
    part, _, reason = (first.why or f"{first.name}: it runs inside a graph break").partition(": ")
    apart = [layer.program.ops for op in ops if isinstance(op, Break) for layer in op.layers]
    layers = [
        op
        for op in (*ops, *chain(*apart))
        if (op.moves or op.relations_read) and not isinstance(op, DestinationRows)
    ]
    if not layers:
        raise NotLoweredError(part, reason, first.needed, code=first.code, where=first.where)
    if graph is None:
        return
    copied = _BREAK_ROWS * graph.num_nodes * sum(isinstance(op, Break) and op.is_graph_break for op in ops)
    saved = _EDGE_ROWS * graph.num_edges * len(layers)
    if copied > saved:
        what = f"{reason}; breaks around it would cost more than the {len(layers)} lowered layers save"
        raise NotLoweredError(part, what, first.needed, code="small", where=first.where)


# ---- graphbraid's relational model


class _RGCNReader:
    """Appends the operations of one model to a writer."""

    def __init__(self, writer: Writer, model: Any, types: Types, node_types: Sequence[NodeType]) -> None:
        self._writer, self._model, self._types, self._node_types = writer, model, types, node_types
        self._dropout = model.dropout if model.training else 0.0
        self._relations = self._numbered()

    def outputs(self) -> list[str | None]:
        """Return the name of each type's outputs; None for a type without."""
        model = self._model
        xs = [self._input(number) for number in range(len(self._node_types))]
        for number, conv in enumerate(model.convs):
            check(f"convs.{number}", conv, OWN_CONV)
            is_last = number == model.num_layers - 1
            wanted = [
                one.name for one in self._node_types if not is_last or model.node_type in (None, one.name)
            ]
            outs = [
                self._layer(conv, xs, place, is_last=is_last) if one.name in wanted else None
                for place, one in enumerate(self._node_types)
            ]
            if is_last:
                return outs
            xs = [self._there(one, out) for one, out in zip(self._node_types, outs, strict=True)]
        raise NotLoweredError(type(model).__name__, "it has no layers", "num_layers=1 or more")

    def _numbered(self) -> list[tuple[int, Relation]]:
        """Return the relations with edges, each with its number in the model.

        Raises:
            NotLoweredError: the graph lacks one, or there are too many.
        """
        known = {relation.edge_type: relation for relation in self._types.relations()}
        found = []
        for number, edge_type in enumerate(self._model.edge_types):
            if edge_type not in known:
                hint = did_you_mean("__".join(edge_type), ["__".join(one) for one in known])
                raise NotLoweredError("edge_types", f"the graph has no relation {edge_type}.{hint}")
            if self._types.edges[edge_type].num_edges:
                found.append((number, known[edge_type]))
        if not 0 < len(found) <= MOST_READ:
            what = f"the graph has {len(found)} of its relations"
            raise NotLoweredError("edge_types", what, f"1 to {MOST_READ} relations with edges")
        return found

    def _input(self, place: int) -> str:
        """Append the input layer of a type: a linear map of its features, or learned rows."""
        one, model, writer = self._node_types[place], self._model, self._writer
        if one.name not in model.node_types:
            raise NotLoweredError("inputs", f"it has no layer for nodes of type {one.name!r}")
        number = model.node_types.index(one.name)
        name, layer = f"inputs.{number}", model.inputs[number]
        if type(layer) is nn.Embedding:
            rows = learned_rows(writer, name, layer, one, self._types.nodes[one.name].num_nodes)
            return writer.epilogue(rows, p=self._dropout)
        linear = as_linear(name, layer)
        if linear is None:
            raise NotLoweredError(name, f"{type(layer).__name__} is no input layer")
        if linear.weight.shape[1] != one.channels:
            what = f"it takes {linear.weight.shape[1]} features; nodes of {one.name!r} have {one.channels}"
            raise NotLoweredError(name, what)
        x = own_activation(writer, model.act, writer.linear(one.input, linear))
        return writer.epilogue(x, p=self._dropout)

    def _layer(self, conv: Any, xs: Sequence[str], place: int, *, is_last: bool) -> str | None:
        out = sum_over_relations(self._writer, conv, xs, self._relations, place)
        if out is None or is_last:
            return out
        return self._writer.epilogue(own_activation(self._writer, self._model.act, out), p=self._dropout)

    def _there(self, one: NodeType, out: str | None) -> str:
        if out is None:
            what = f"nodes of {one.name!r} have neither in-edges nor a root weight"
            raise NotLoweredError("convs", what, "Graph.with_reverse_relations")
        return out


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
    },
    children=("inputs", "convs"),
)
