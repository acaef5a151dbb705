"""What recorded messages become in a program: an aggregation, steps of one kernel, or calls on some edges.

:mod:`.messages` records them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.aggregations import (
    several_reductions,
    temperature_of,
)
from graphbraid.fullgraph.reading.before_edges import TracedMessage, with_maps_moved
from graphbraid.fullgraph.reading.fused_messages import NOT_FUSED, heads_of, plain_sum, steps_of
from graphbraid.fullgraph.reading.message_trial import show_row_by_row
from graphbraid.fullgraph.reading.messages import OTHERS, Propagation
from graphbraid.fullgraph.reading.reader import Writer
from graphbraid.graph.types import Relation
from graphbraid.ops.message_reductions import SeveralReductions
from graphbraid.ops.message_steps import MessageOp, MessageStep
from graphbraid.ops.messages import MessageReduction, as_learned


def read_messages(
    writer: Writer,
    of: Propagation,
    rows: dict[str, str | ir.ReadRows | int],
    constants: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    *,
    edges: ir.ComputedEdges | None = None,
    encoders: Mapping[str, Any] | None = None,
    learns_edges: bool = False,
    relation: Relation | None = None,
) -> tuple[str, tuple[int, ...]]:
    """Append the messages of a recorded call of ``propagate``.

    Args:
        writer: collects the operations.
        of: the call.
        rows: by parameter, the name of the node rows from which it gets a row per edge, or the edge features
            or weights that it gets, or the number of a value of ``edges``.
        constants: the other arguments, by parameter.
        shapes: by parameter, the shape of an edge's row.
        edges: the edges that the messages run along; None for the graph's own.
        encoders: by parameter that gets edge features, the linear map that they have passed before.
        learns_edges: whether the weights of edges may require a gradient, which no aggregation gives them.
        relation: the relation whose edges they are, in a graph with types.

    Returns:
        The name of the value, and the shape of a row of the layer's own result.

    Raises:
        NotLoweredError: the message couples edges of several destinations, or is not known to give rows of
            edges.
    """
    found = show_row_by_row(of, shapes)
    encoders = encoders or {}
    if not found.shape or of.layer.node_dim % (len(found.shape) + 1) != 0:
        what = f"its message has {len(found.shape) + 1} dimensions, and node_dim={of.layer.node_dim}"
        raise of.refuse(what, "a matrix with a row per edge")
    reduction, ties = of.reduced()
    if not any(isinstance(value, str) for value in rows.values()):
        raise of.refuse("its message reads no node rows", "a message of x_j or x_i")
    rows = _on_levels(writer, rows, relation)
    calls: dict[str, Any] = {"layer": of.layer, "graph": of.graph, "tensors": of.tensors}
    traced = TracedMessage(rows=rows, shapes=shapes, shape=found.shape, **calls)
    message = with_maps_moved(traced, of, writer, takes_last=reduction in ("sum", "mean"))
    rows = {key: value for key, value in rows.items() if key in of.takes[1]} | message.rows
    shapes, shape, takes = shapes | message.shapes, message.shape, of.takes
    if message.is_moved or of.is_plain:
        takes = tuple(str(node.target) for node in message.graph.find_nodes(op="placeholder")), of.takes[1]
    learned = message.parameters() + [p for module in encoders.values() for p in module.parameters()]
    if of.aggr is None:
        shape, of_aggregation = _shape_of_own(of, shape, constants, shapes)
        learned += of_aggregation
    used = tuple({id(p): p for p in learned}.values())
    read_shapes = shapes | {key: (one.weight.shape[1],) for key, one in encoders.items()}
    read = [(key.endswith("_i"), value) for key, value in rows.items() if isinstance(value, str)]
    values = list(dict.fromkeys(value for _, value in sorted(read, key=itemgetter(0))))  # sources first
    reads = _reads(rows, values)
    fused = NOT_FUSED
    heads = heads_of(message.shape, {key: shapes[key] for key in rows})
    several: SeveralReductions | Literal["sum"] | None = None
    temperature = temperature_of(of.layer) if of.aggr is None else None
    if of.aggr is None:
        several = several_reductions(of.layer, message.shape, of.refuse) if temperature is None else "sum"
    if of.aggr is not None or several is not None:
        # To the kernel, values that the model computes of edges are features, or weights if they are numbers.
        computed = {key: ir.ReadRows.FEATURES if shapes[key] else ir.ReadRows.WEIGHT for key in shapes}
        as_graphs = [
            (key, computed[key] if role is ir.ReadRows.COMPUTED else role, at) for key, role, at in reads
        ]
        fused = steps_of(
            message,
            as_graphs,
            encoders=encoders,
            used=used,
            heads=heads,
            reduction=several or reduction,
            temperature=temperature,
        )
    plain = plain_sum(fused.steps, reads, shapes, edges, reduction, dtype=of.dtype)
    if plain is not None and not learns_edges and message.after is None:
        matrix, source = plain
        matrix = replace(matrix, relation=relation)
        return writer.add(ir.Aggregate, values[source], adjacency=matrix), () if of.is_vector else shape
    ids, counts = (tuple(k for k, what in of.special.items() if what == which) for which in ("ids", "counts"))
    out = writer.add(
        ir.Messages,
        *values,
        layer=of.layer,
        calls=message.as_module() if message.is_moved or of.is_plain else None,
        reads=tuple(reads),
        shapes=tuple(read_shapes[key] for key, _, _ in reads),
        encoders=tuple(encoders.items()),
        constants=tuple(constants.items()),
        takes=takes,
        used=used,
        reduction=reduction,
        ties=ties,
        width_out=math.prod(shape),
        edge_width=math.prod(message.shape),
        several=several if fused.steps else None,
        edges=edges,
        relation=relation,
        by_destination=of.aggr is None or found.by_destination,
        ids=ids,
        counts=counts,
        draws=found.draws,
        steps=fused.steps,
        composed=fused.composed,
        attends=fused.attends,
        heads=1 if fused is NOT_FUSED else heads,
    )
    if (last := message.after) is not None:
        shape = (last.shape[0],)
        out = writer.add(ir.Linear, out, weight=last.weight, view=ir.View(turned=last.turned))
        if last.bias is not None:
            along: dict[str, Any] = {"edges": edges, "relation": relation}
            bias = _reduced_bias(writer, of.layer, last.bias, values[0], reduction, **along)
            out = writer.sum(out, bias)
    return out, () if of.is_vector else shape


def check_message_ends(
    of: Propagation, node: fx.Node, relation: Relation, node_type: Callable[[fx.Node], int]
) -> None:
    """Refuse messages whose rows are not those that a relation's edges lead from and to.

    ``node`` is their call in the trace. ``node_type`` gives the number of the node type that rows are of.
    """
    others: Mapping[str, fx.Node] = node.meta[OTHERS]
    read = {key: one for key, one in node.kwargs.items() if key[-2:] in ("_i", "_j")}
    is_end = [(key.endswith("_i"), one) for key, one in read.items() if isinstance(one, fx.Node)]
    is_end += [(key.endswith("_j"), one) for key, one in others.items()]
    ends = {(is_own, node_type(one)) for is_own, one in is_end}
    known = {(False, relation.source), (True, relation.destination)}
    # Without rows of the destinations, PyG makes as many as there are sources.
    is_known = relation.source == relation.destination or (True, relation.destination) in ends
    if not (ends <= known and is_known):
        what = "it takes other rows than those of the relation's two types"
        raise of.refuse(what, "propagate(edge_index, x=(x_source, x_destination))")


def _on_levels(writer: Writer, rows: dict[str, Any], relation: Relation | None) -> dict[str, Any]:
    """Bring node rows to one level, so that an operation that reads several reads the same nodes.

    Between two types, destinations have no rows among the sources', and have those of the next level.
    """
    values = [value for value in rows.values() if isinstance(value, str)]
    at_level: dict[Any, Any] = dict(zip(values, writer.on_one_level(*values), strict=True))
    rows = {key: at_level.get(value, value) for key, value in rows.items()}
    if relation is not None and relation.source != relation.destination:
        own = [key for key in rows if key.endswith("_i") and isinstance(rows[key], str)]
        rows |= {key: writer.add(ir.DestinationRows, rows[key]) for key in own}
    return rows


def _reads(rows: Mapping[str, Any], values: Sequence[str]) -> list[tuple[str, ir.ReadRows, int]]:
    """Return the rows that each argument of a message gets: sources first, then destinations."""
    reads: list[tuple[str, ir.ReadRows, int]] = []
    for key, value in rows.items():
        if isinstance(value, int):
            reads.append((key, ir.ReadRows.COMPUTED, value))
        elif isinstance(value, ir.ReadRows):
            reads.append((key, value, 0))
        else:
            role = ir.ReadRows.DESTINATION if key.endswith("_i") else ir.ReadRows.SOURCE
            reads.append((key, role, values.index(value)))
    order = (ir.ReadRows.SOURCE, ir.ReadRows.DESTINATION)
    reads.sort(key=lambda read: order.index(read[1]) if read[1] in order else len(order))
    return reads


def _reduced_bias(
    writer: Writer,
    layer: nn.Module,
    bias: nn.Parameter,
    rows: str,
    reduction: MessageReduction,
    *,
    edges: ir.ComputedEdges | None,
    relation: Relation | None,
) -> str:
    """Append the sum or mean of messages that are all a bias, for the destinations of edges from ``rows``."""
    width = bias.numel()
    graph = fx.Graph()
    row, added = graph.placeholder("row_j"), graph.get_attr("bias")
    graph.output(graph.call_method("expand", (added, graph.call_method("size", (row, 0)), -1)))
    return writer.add(
        ir.Messages,
        rows,
        layer=layer,
        calls=fx.GraphModule({"bias": bias}, graph),
        reads=(("row_j", ir.ReadRows.SOURCE, 0),),
        shapes=((writer.width(rows),),),
        constants=(),
        takes=(("row_j",), ()),
        used=(bias,),
        reduction=reduction,
        ties="shared",
        width_out=width,
        edge_width=width,
        edges=edges,
        relation=relation,
        steps=(MessageStep(MessageOp.PARAMETER),),
    )


def _shape_of_own(
    of: Propagation, message: tuple[int, ...], constants: dict[str, Any], shapes: dict[str, tuple[int, ...]]
) -> tuple[tuple[int, ...], list[nn.Parameter]]:
    """Return the shape of a row that ``aggregate`` makes, and the parameters that it gives gradients.

    It runs on a few edges of three nodes.

    Raises:
        NotLoweredError: it fails there, or a row depends on edges of other nodes.
    """
    generator, results = torch.Generator().manual_seed(0), list[Tensor]()
    dtype = next((p.dtype for p in of.layer.parameters()), torch.float32)
    parameters, index = [*of.layer.aggr_module.parameters()], torch.tensor([0, 0, 1, 2, 2])

    def some(shape: tuple[int, ...]) -> Tensor:
        return torch.rand(5, *shape, generator=generator).to(dtype)

    held = {key: some(shapes[key]) for key in of.takes[1] if key in shapes}
    given, made = constants | held, some(message)
    with torch.enable_grad(), as_learned(parameters):
        for count, rows in ((5, 3), (3, 2)):
            special = {"ids": index[:count], "counts": rows}
            arguments = {
                key: special[of.special[key]] if key in of.special else given[key] for key in of.takes[1]
            }
            arguments |= {key: value[:count] for key, value in held.items()}
            try:
                results.append(of.layer.aggregate(made[:count], **arguments))
            except Exception as error:  # whatever it may raise
                raise of.refuse(f"its aggregation fails on a few edges ({error})") from error
        reads = results[0].requires_grad
        found = torch.autograd.grad(results[0].sum(), parameters, allow_unused=True) if reads else ()
    more, fewer = results
    if more.shape[0] != 3 or more.ndim < 2 or not torch.allclose(more[:2], fewer, rtol=1e-3, equal_nan=True):
        raise of.refuse("its aggregation gives a node another row among other nodes")
    learned = [one for one, grad in zip(parameters, found, strict=False) if grad is not None]
    return tuple(more.shape[1:]), learned
