"""Reading models over node types and relations: graphbraid's own layer by layer, others by a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from graphbraid.errors import did_you_mean
from graphbraid.fullgraph.program.calling import Calling
from graphbraid.fullgraph.program.ir import Program, TypePart
from graphbraid.fullgraph.program.operations import INPUT
from graphbraid.fullgraph.program.read import activation, reached
from graphbraid.fullgraph.program.read_trace_typed import learned_rows, read_traced_by_type
from graphbraid.fullgraph.program.readers.exact import (
    Known,
    anything,
    check,
    check_model,
    count,
    one_of,
    probability,
)
from graphbraid.fullgraph.program.readers.relational import MOST_READ, OWN_CONV, sum_over_relations
from graphbraid.fullgraph.program.readers.rowwise import as_linear
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.fullgraph.program.writer import Writer
from graphbraid.graph.types import Relation, Types
from graphbraid.nn import RGCN, told
from graphbraid.ops.rowwise.epilogue import ACTIVATIONS


def read_typed(model: nn.Module, calling: Calling, types: Types, node_type: str) -> Program:
    """Read a model over node types and relations, in its current mode, into a program.

    Args:
        model: an :class:`graphbraid.nn.RGCN`, or any model called with ``(x_dict, edge_index_dict)``, as
            those of PyG's ``HeteroConv`` or made by ``to_hetero``, whose ``forward`` is made of layers,
            modules and functions that have a reader.
        calling: how to call it.
        types: the types of the graph that it runs on.
        node_type: the type whose outputs are wanted.

    Raises:
        NotLoweredError: part of the model cannot be read; the message names it.
    """
    name = type(model).__name__
    if told.takes_blocks(model) and type(model) is not RGCN:
        raise NotLoweredError(
            name, "no operations stand for it on a graph with types so far", "graphbraid.nn.RGCN"
        )
    check_model(model)
    parts = _parts(types)
    writer = Writer({part.input: number for number, part in enumerate(parts)})
    if type(model) is RGCN:
        check(name, model, _MODEL)
        out = _ModelReader(writer, model, types, parts).outputs()[list(types.nodes).index(node_type)]
    else:
        out = read_traced_by_type(writer, model, calling, types, parts, node_type=node_type)
    if out is None:
        raise NotLoweredError(name, f"it gives no outputs of {node_type!r}", f"node_type={node_type!r}")
    ops = reached(writer.ops, out)
    if not any(op.moves for op in ops):
        raise NotLoweredError(name, f"its outputs of {node_type!r} read no edges", "a layer over a relation")
    if len(ops) > MOST_OPERATIONS:
        what = f"it comes to {len(ops)} operations, and reading takes up to {MOST_OPERATIONS}"
        raise NotLoweredError(name, what, "mini-batches (mode='sampled')")
    try:
        return Program(ops=ops, in_channels=0, parts=parts)
    except ValueError as error:
        raise NotLoweredError(name, str(error)) from None


MOST_OPERATIONS = 800
"""Largest number of operations: the time of lowering grows with their cube."""


def _parts(types: Types) -> tuple[TypePart, ...]:
    return tuple(
        TypePart(
            name=name, input=f"{INPUT}[{name}]", channels=0 if nodes.x is None else int(nodes.x.shape[1])
        )
        for name, nodes in types.nodes.items()
    )


class _ModelReader:
    """Appends the operations of one model to a writer."""

    def __init__(self, writer: Writer, model: Any, types: Types, parts: Sequence[TypePart]) -> None:
        self._writer, self._model, self._types, self._parts = writer, model, types, parts
        self._dropout = model.dropout if model.training else 0.0
        self._relations = self._numbered()

    def outputs(self) -> list[str | None]:
        """Return the name of each type's outputs; None for a type without."""
        model = self._model
        xs = [self._input(number) for number in range(len(self._parts))]
        for number, conv in enumerate(model.convs):
            check(f"convs.{number}", conv, OWN_CONV)
            is_last = number == model.num_layers - 1
            wanted = [
                part.name for part in self._parts if not is_last or model.node_type in (None, part.name)
            ]
            outs = [
                self._layer(conv, xs, place, is_last=is_last) if part.name in wanted else None
                for place, part in enumerate(self._parts)
            ]
            if is_last:
                return outs
            xs = [self._there(part, out) for part, out in zip(self._parts, outs, strict=True)]
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
        part, model, writer = self._parts[place], self._model, self._writer
        if part.name not in model.node_types:
            raise NotLoweredError("inputs", f"it has no layer for nodes of type {part.name!r}")
        number = model.node_types.index(part.name)
        name, layer = f"inputs.{number}", model.inputs[number]
        if type(layer) is nn.Embedding:
            rows = learned_rows(writer, name, layer, part, self._types)
            return writer.epilogue(rows, p=self._dropout)
        linear = as_linear(name, layer)
        if linear is None:
            raise NotLoweredError(name, f"{type(layer).__name__} is no input layer")
        if linear.weight.shape[1] != part.channels:
            what = f"it takes {linear.weight.shape[1]} features; nodes of {part.name!r} have {part.channels}"
            raise NotLoweredError(name, what)
        x = activation(writer, model.act, writer.linear(part.input, linear))
        return writer.epilogue(x, p=self._dropout)

    def _layer(self, conv: Any, xs: Sequence[str], place: int, *, is_last: bool) -> str | None:
        out = sum_over_relations(self._writer, conv, xs, self._relations, place)
        if out is None or is_last:
            return out
        return self._writer.epilogue(activation(self._writer, self._model.act, out), p=self._dropout)

    def _there(self, part: TypePart, out: str | None) -> str:
        if out is None:
            what = f"nodes of {part.name!r} have neither in-edges nor a root weight"
            raise NotLoweredError("convs", what, "Graph.with_reverse_relations")
        return out


_MODEL = Known(
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

__all__ = ["read_typed"]
