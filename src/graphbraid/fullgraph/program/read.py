"""The entry point for reading models: graphbraid's own are read layer by layer, others by a trace."""

from __future__ import annotations

from typing import Any

from torch import nn

from graphbraid.fullgraph.program.calling import Calling, Given, calling_of
from graphbraid.fullgraph.program.ir import Program, TypePart
from graphbraid.fullgraph.program.module_operations import Module, Normalise
from graphbraid.fullgraph.program.operations import INPUT, Operation, Own
from graphbraid.fullgraph.program.read_trace import read_traced
from graphbraid.fullgraph.program.readers.exact import Known, check, check_model, count, one_of, probability
from graphbraid.fullgraph.program.readers.layers import LAYERS
from graphbraid.fullgraph.program.readers.reading import Edges, LayerCall, checked_reader
from graphbraid.fullgraph.program.readers.rowwise import rowwise
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.fullgraph.program.writer import Writer
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.nn import GAT, GCN, GIN, MLP, GATv2, GraphSAGE
from graphbraid.ops.rowwise.epilogue import ACTIVATIONS


def read_model(
    model: nn.Module, in_channels: int, given: Given | None = None, calling: Calling | None = None
) -> Program:
    """Read a model in its current mode into a program.

    Args:
        model: a model of :mod:`graphbraid.nn`, or any whose ``forward`` is made of layers, modules and
            functions that have a reader.
        in_channels: number of feature columns.
        given: the arguments available to call it with. If None, features and edges without weights.
        calling: how to call it. If None, determined by
            :func:`graphbraid.fullgraph.program.calling.calling_of`.

    Raises:
        NotLoweredError: part of the model cannot be read; the message names it.
    """
    given = given or Given()
    check_model(model)
    writer = Writer()
    if type(model) in _OWN_MODELS:
        out = _read_own(writer, model)
    else:
        out = read_traced(writer, model, calling or calling_of(model, given), given)
    if out == INPUT:
        raise NotLoweredError(type(model).__name__, "it returns its input")
    ops = reached(writer.ops, out)
    parts = (
        (TypePart(name=ONLY_NODE_TYPE, input=INPUT, channels=in_channels),) if _reads_relations(ops) else ()
    )
    try:
        return Program(ops=ops, in_channels=in_channels, parts=parts)
    except ValueError as error:
        raise NotLoweredError(type(model).__name__, str(error)) from None


def _reads_relations(ops: tuple[Operation, ...]) -> bool:
    """Return whether operations read edges by relation.

    Raises:
        NotLoweredError: others of them read all edges together.
    """
    reads = [op for op in ops if op.moves and not isinstance(op, Own)]
    by_relation = [op for op in reads if op.walks is not None]
    if by_relation and len(by_relation) < len(reads):
        raise NotLoweredError(
            "forward", "some layers read relations and others all edges together", "layers of one kind"
        )
    return bool(by_relation)


def reached(ops: list[Operation], out: str) -> tuple[Operation, ...]:
    """Return the operations that the result depends on; the last of them computes it."""
    wanted, kept = {out}, []
    for op in reversed(ops):
        if op.out in wanted:
            wanted.update(op.inputs)
            kept.append(op)
        elif isinstance(op, Module | Normalise) and op.couples_rows:
            raise NotLoweredError(str(op.symbol), "it moves statistics and nothing reads its result")
    return tuple(reversed(kept))


# ---- graphbraid's models

_OWN_MODELS = (GCN, GraphSAGE, GIN, GAT, GATv2, MLP)
_GRAPH_MODEL = Known(
    {
        "in_channels": count,
        "hidden_channels": count,
        "out_channels": count,
        "num_layers": count,
        "dropout": probability,
        "input_dropout": probability,
        "act": one_of(*ACTIVATIONS),
        "norms": one_of(None),
    },
    children=("convs", "norms"),
)


def _read_own(writer: Writer, model: Any) -> str:
    check(type(model).__name__, model, _GRAPH_MODEL)
    dropout = model.dropout if model.training else 0.0
    x = writer.epilogue(INPUT, p=model.input_dropout if model.training else 0.0)
    last = model.num_layers - 1
    for i, conv in enumerate(model.convs):
        x = _own_layer(writer, f"convs.{i}", conv, x)
        if i == last:
            break
        if model.norms is not None:
            x = rowwise(writer, f"norms.{i}", model.norms[i], x)
        x = activation(writer, model.act, x)
        x = writer.epilogue(x, p=dropout)
    return x


def _own_layer(writer: Writer, name: str, conv: nn.Module, x: str) -> str:
    if (type(conv).__module__, type(conv).__name__) not in LAYERS:
        return rowwise(writer, name, conv, x)
    reader = checked_reader(LAYERS, name, conv)
    return reader.read(LayerCall(writer, name, conv, x, Edges(weighted=True)))


def activation(writer: Writer, act: str, x: str) -> str:
    """Append one of the activations that graphbraid's models have, by name."""
    if act == "gelu":
        return writer.function(x, "gelu", "none")
    return writer.epilogue(x, act=act)


__all__ = ["activation", "reached", "read_model"]
