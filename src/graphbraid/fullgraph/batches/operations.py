"""How each operation of a program runs on a mini-batch: a call of a differentiable operator.

There is one function for each class of operation, in :data:`RUN`. It reads the rows of its inputs and the
edges between its two levels, and returns the result's rows. No operator keeps a row for each edge, except the
mapped edge features of GINE.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from graphbraid.errors import ConfigError
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.batches.edges import BatchEdges, LevelEdges, Levels, RelationEdges
from graphbraid.fullgraph.batches.fusing import BatchProgram
from graphbraid.fullgraph.batches.joined_ops import CALLS, JoinedOps, narrowed, operands_of
from graphbraid.fullgraph.batches.segments import NativeSegment, Parts
from graphbraid.fullgraph.reading.relational import attend
from graphbraid.fullgraph.step.features import joined_by_node
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import Relation
from graphbraid.ops import (
    batch_norm,
    bias_act_dropout,
    dense_linear,
    gat_attention,
    gatv2_attention,
    gine,
    layer_norm,
    library,
)
from graphbraid.ops.attention import AttendedFeatures, head_dot, scored_attention
from graphbraid.ops.linear import LinearFunction
from graphbraid.ops.message_kernel import aggregate_steps
from graphbraid.ops.messages import aggregate_messages
from graphbraid.ops.norm import settings_of
from graphbraid.ops.rng import mask_type
from graphbraid.ops.spmm import largest


class BatchRun:
    """One run of a program on a batch.

    Args:
        program: the program.
        levels: the program's levels on the batch.
        features: rows of the program's inputs, by name.
        given: values of the batch that graph breaks read, by the names in their calls.
        edge_attr: by the number of the relation, or 0 for all edges, ``(num_edges, num_edge_features)`` in
            the order of the user's list; none if none is read.
        edge_weight: ``(num_edges,)`` in that order, for messages; if None, they read the edges' own.
    """

    def __init__(
        self,
        program: BatchProgram,
        levels: Levels,
        features: Mapping[str, Tensor],
        given: Mapping[str, Any],
        edge_attr: Mapping[int, Tensor],
        *,
        edge_weight: Tensor | None = None,
    ) -> None:
        self._given = given
        self.kept: dict[str, dict[int, Any]] = {}
        """Results that graph breaks keep for later ones, by the names of their values."""
        self.program, self.levels = program, levels
        self._edge_attr, self._edge_weight = edge_attr, edge_weight
        self._loops: dict[tuple[int, str, torch.dtype], Tensor] = {}
        self._rows_of_edges: dict[Hashable, Tensor] = {}
        """Rows of edges in the edges' order, which a segment that gives up leaves to its operations."""
        counts = {name: levels.num_rows(program.place(name)) for name in features}
        self.features = {
            name: rows if rows.shape[0] == counts[name] else rows[: counts[name]]
            for name, rows in features.items()
        }
        """The rows of the inputs that are read, by name."""
        self.values = dict(self.features)
        """Rows by the names of values: of inputs, and of results that are read again."""

    def outputs(self) -> Tensor:
        """Run all operations in their order; return the rows of the last level."""
        if not self.program.is_half:
            return self._outputs()
        with torch.autocast("cpu", enabled=False):
            return self._outputs().to(self.program.out_dtype)

    def _outputs(self) -> Tensor:
        self._run(self.program.parts)
        out = self.values[self.program.output]
        # PyTorch's sum over edges does not keep its result for backward, so a caller may write over it.
        return self.watched(out.clone() if self.program.keeps_output else out)

    def watched(self, out: Tensor) -> Tensor:
        """Let backward refuse lists of edges and running statistics that were written over before it."""
        read = [*self.levels.sources, *self.program.statistics]
        if read and out.grad_fn is not None:
            versions = [one._version for one in read]

            def check(_: object) -> None:
                if [one._version for one in read] != versions:
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified by an "
                        "inplace operation: a list of edges, or running statistics of a normalisation"
                    )

            out.grad_fn.register_prehook(check)
        return out

    def _run(self, parts: Parts) -> None:
        for part, last_read in parts:
            if isinstance(part, NativeSegment):
                if not part.run(self):
                    self._run(part.parts)
            elif isinstance(part, JoinedOps):
                part.run(self)
            else:
                if self.program.is_half:
                    self.widen(part)
                self.draw_for(part)
                self.values[part.out] = RUN[type(part)](part, self)
            for value in last_read:  # without autograd, nothing else holds these rows
                del self.values[value]

    def widen(self, op: ir.Operation) -> None:
        """Make float32 of an operation's inputs that are bfloat16."""
        self.values |= {value: self.values[value].float() for value in op.inputs}

    @property
    def is_half(self) -> bool:
        """Whether products are of bfloat16."""
        return self.program.is_half

    def draw_for(self, op: ir.Operation) -> None:
        """Draw dropout's masks for the nodes that an operation makes rows of, where there are types."""
        if len(self.levels.sizes[0]) > 1:
            mask_type(self.program.place(op.out).node_type)

    @property
    def reads_edge_rows(self) -> bool:
        """Whether the run reads features or weights of edges that stand in the order of the user's list."""
        return bool(self._edge_attr) or self._edge_weight is not None

    def lines(self) -> list[str]:
        """Return the lines of ``explain()`` about the batch: rows of each level, and edges to the next."""
        moving = [op for op in self.program.ops if op.moves and not isinstance(op, ir.DestinationRows)]
        edges = [dict[LevelEdges, int]() for _ in self.levels.sizes]
        for op in moving:
            found = self.edges(op)
            edges[self.program.place(op.inputs[0]).level][found] = found.csc.num_edges
        return [
            f"  level {number}: {sum(counts):,} rows"
            + (f", {sum(read.values()):,} edges to the next" if read else "")
            for number, (counts, read) in enumerate(zip(self.levels.sizes, edges, strict=True))
        ]

    def made_of(self, inputs: Sequence[Tensor], op: ir.Break) -> Tensor:
        """Make the calls of a graph break, with these rows as its inputs."""

        def earlier(one: ir.FromBreak) -> Any:
            maker = ir.maker_of(self.program.producer, op.inputs[one.number])
            assert maker is not None
            return self.kept[maker.out][one.call]

        keep = self.kept[op.out] = {}
        return op.run(inputs, self._given, run_layer=run_layer, earlier=earlier, keep=keep)

    def rows_of(self, value: str) -> int:
        """Return the number of rows of a value."""
        return self.levels.num_rows(self.program.place(value))

    def read(self, op: ir.Operation, place: int = 0) -> Tensor:
        """Return the rows of an operation's input."""
        return self.values[op.inputs[place]]

    def edges(self, op: ir.Operation) -> LevelEdges:
        """Return the edges from the level of an operation's first input to the next level."""
        return self.levels.edges(*self.edges_between(op))

    def edges_between(self, op: ir.Operation) -> tuple[int, int]:
        """Return the level and the relation of :meth:`edges`."""
        return self.program.place(op.inputs[0]).level, 0 if op.walks is None else op.walks.number

    def relation_edges(self, op: ir.Operation, relation: Relation) -> LevelEdges:
        """Return a relation's edges from the level before an operation's result to the result's."""
        return self.levels.edges(self.program.place(op.out).level - 1, relation.number)

    def num_rows(self, op: ir.Operation) -> int:
        """Return the number of rows of an operation's result."""
        return self.levels.num_rows(self.program.place(op.out))

    def edge_attr(self, op: ir.Operation, dtype: torch.dtype) -> Tensor:
        """Return the features of :meth:`edges`, in their order."""
        level, number = self.edges_between(op)
        if (key := (level, number, dtype)) not in self._rows_of_edges:
            self._rows_of_edges[key] = self.edges(op).rows_of(self._edge_attr[number]).to(dtype)
        return self._rows_of_edges[key]

    def edge_weight(self, op: ir.Operation, dtype: torch.dtype) -> Tensor:
        """Return the weights of :meth:`edges`, in their order."""
        edges = self.edges(op)
        found = edges.csc.weight if self._edge_weight is None else edges.rows_of(self._edge_weight)
        assert found is not None
        return found.to(dtype)

    def edge_rows(self, op: ir.Gine | ir.Attention, dtype: torch.dtype) -> Tensor:
        """Return the features of :meth:`edges`, then those of self-loops that an attention adds."""
        edges, rows = self.edges(op), self.edge_attr(op, dtype)
        if not isinstance(op, ir.Attention) or not op.self_loops:
            return rows
        if not isinstance(op.fill, str):
            return torch.cat((rows, loop_rows(op, edges.csc, rows)))
        key, num_loops = (edges.group, op.fill, dtype), edges.csc.num_dst
        loops = self._loops.get(key)
        if loops is None or len(loops) < num_loops:  # later levels have the first rows of earlier ones
            loops = self._loops[key] = loop_rows(op, edges.csc, rows)
        return torch.cat((rows, loops[:num_loops]))

    def may_overwrite(self, op: ir.Operation) -> bool:
        """Return whether an operation may write its result over its input."""
        return op.out in self.program.in_place


def check_device(op: ir.Operation, rows: Tensor) -> None:
    """Check that an operation runs where the rows are.

    Raises:
        NotLoweredError: it does not run there; the message says why.
    """
    if rows.device.type == "cpu":
        return
    if isinstance(op, ir.Attention) and op.reads_edges:
        what = f"attention to features of edges has no kernel on {rows.device}"
        raise ir.NotLoweredError(op.symbol, what, "the CPU, or edge_dim=None")
    if isinstance(op, ir.Messages) and op.draws:
        what = f"random numbers of a message on {rows.device} cannot be drawn again in backward"
        raise ir.NotLoweredError(op.symbol, what, "the CPU")
    if isinstance(op, ir.RelationAttention) and rows.dtype != torch.float32:
        what = f"attention over relations has no kernel of {rows.dtype} on {rows.device}"
        raise ir.NotLoweredError(op.symbol, what, "float32, or the CPU")


# ---- along edges


def _called(op: Any, run: BatchRun) -> Tensor:
    operands = operands_of(op)
    operands = narrowed(operands) if run.is_half else operands
    out: Tensor = library.run(*CALLS[type(op)](op, run, *operands))
    return out


def _messages(op: ir.Messages, run: BatchRun) -> Tensor:
    edges, dtype = run.edges(op), run.read(op).dtype
    csc, computed = edges.csc, tuple[Tensor, ...]()
    if op.edges is not None:
        csc, computed = edges.computed(op.edges, dtype)
    sources, destinations, of_edges = list[Tensor](), list[Tensor](), list[Tensor]()
    for _, role, place in op.reads:
        if role in (ir.ReadRows.SOURCE, ir.ReadRows.DESTINATION):
            (sources if role is ir.ReadRows.SOURCE else destinations).append(run.read(op, place))
        elif role is ir.ReadRows.FEATURES:
            of_edges.append(run.edge_attr(op, dtype))
        elif role is ir.ReadRows.COMPUTED:
            of_edges.append(computed[place])
        else:
            of_edges.append(run.edge_weight(op, dtype))
    how: dict[str, Any] = {"sources": tuple(sources), "destinations": tuple(destinations)}
    how |= {"edges": tuple(of_edges), "parameters": op.used, "ties": op.ties}
    learns_edges = torch.is_grad_enabled() and any(rows.requires_grad for rows in of_edges)
    if not learns_edges and _runs_as_steps(op, (*sources, *destinations, *of_edges, *op.used)):
        how |= {
            "reduction": op.several or op.reduction,
            "width": op.edge_width,
            "heads": op.heads,
            "parameters": op.operands(),
        }
        return aggregate_steps(csc, op.steps, **how, width_out=op.width_out)
    how |= {"reduction": op.reduction, "shape": (op.width_out,), "edge_width": op.edge_width}
    return aggregate_messages(csc, op.run, by_destination=op.by_destination, draws=op.draws, **how)


def _runs_as_steps(op: ir.Messages, read: Sequence[Tensor]) -> bool:
    """Return whether the kernel of messages made of steps runs a message that reads these tensors."""
    fits = all(rows.dtype == torch.float32 for rows in read)
    return fits and bool(op.steps) and (op.has_device_kernel or read[0].device.type == "cpu")


def loop_rows(op: ir.Attention, csc: Csc, rows: Tensor) -> Tensor:
    """Return the features of the self-loops that an attention adds, one row for each destination.

    ``csc`` lacks these self-loops. ``rows`` are the ``(num_edges, features)`` features of its edges.
    """
    if isinstance(op.fill, str):
        return joined_by_node(csc, rows, op.fill).to(rows.dtype)
    fill = torch.as_tensor(op.fill).detach().to(rows)
    return fill.reshape(1, -1).expand(csc.num_dst, rows.shape[1])


def _gine(op: ir.Gine, run: BatchRun) -> Tensor:
    x = run.read(op)
    edges = run.edge_rows(op, x.dtype)
    if op.weight is not None:  # with its bias, as a segment has it
        edges = library.run(LinearFunction, edges, op.weight, None, None, op.bias, 0, 0.0, 0)
    return gine(run.edges(op).csc, x, edges, loop_scale=op.loop_scale)


def _attention(op: ir.Attention, run: BatchRun) -> Tensor:
    csc, rows = run.edges(op).csc, run.read(op)
    how: dict[str, Any] = {"negative_slope": op.negative_slope, "self_loops": op.self_loops}
    how["dropout"], last = op.dropout, run.read(op, -1)
    own, edge_map = last[: csc.num_dst], op.edge_map()
    edges = None if edge_map is None else run.edge_rows(op, rows.dtype)
    if op.kind == "gat":
        how["edge_logit"] = None if edges is None or edge_map is None else dense_linear(edges, edge_map)
        if op.own_rows:
            logits = head_dot(rows, op.vectors[0]), head_dot(own, op.vectors[1])
            out = gat_attention(csc, rows, *logits, **how)
        else:
            out = scored_attention(csc, rows, last, op.vectors, **how)
    else:
        if edges is not None and edge_map is not None:
            how["edges"] = AttendedFeatures(edges[: csc.num_edges], edges[csc.num_edges :], edge_map)
        out = gatv2_attention(csc, rows, own, op.vectors[0][0], **how)
    return out.view(-1, op.heads, op.channels).mean(1) if op.averages else out


def _relation_attention(op: ir.RelationAttention, run: BatchRun) -> Tensor:
    rows = [run.read(op, place) for place in range(1, len(op.inputs))]
    cscs = [run.relation_edges(op, relation).csc for relation in op.relations]
    return attend(op.layer, run.read(op), rows, [one.edge_type for one in op.relations], cscs)


# ---- row by row


def _linear(op: ir.Linear, run: BatchRun) -> Tensor:
    out = _called(op, run)
    return out + run.read(op, 1) if len(op.inputs) > 1 else out


def _epilogue(op: ir.Epilogue, run: BatchRun) -> Tensor:
    return bias_act_dropout(run.read(op), op.added(), op.act, op.p, inplace=run.may_overwrite(op))


def _normalise(op: ir.Normalise, run: BatchRun) -> Tensor:
    x, norm = run.read(op), cast("Any", op.module)
    if op.kind == "layer":
        return layer_norm(x, norm.weight, norm.bias, norm.eps)
    return normalised(x, norm, run.program.place(op.out).node_type)


def normalised(x: Tensor, norm: Any, node_type: int) -> Tensor:
    """Normalise rows of a node type by a module of batch normalisation.

    A :class:`~torch.overrides.TorchFunctionMode` can stand for it, as for functions of PyTorch.
    """
    if has_torch_function_unary(x):
        out: Tensor = handle_torch_function(normalised, (x,), x, norm, node_type)
        return out
    if len(x) == 1:
        refused: Tensor = norm(x)  # PyTorch's own error
        return refused
    return batch_norm(x, weight=norm.weight, bias=norm.bias, **settings_of(norm))


def _break(op: ir.Break, run: BatchRun) -> Tensor:
    out = run.made_of([run.read(op, place) for place in range(len(op.inputs))], op)
    if (shape := (run.num_rows(op), op.width_out)) != out.shape:
        what = f"it returned {tuple(out.shape)} where {shape} is expected"
        raise ConfigError(f"{op.details()} cannot be a graph break: {what}")
    return out


def _combine(op: ir.Combine, run: BatchRun) -> Tensor:
    out = run.read(op) * op.factors[0]
    for place, factor in enumerate(op.factors[1:], 1):
        out = torch.add(out, run.read(op, place), alpha=factor)
    return out


def _largest(op: ir.Largest, run: BatchRun) -> Tensor:
    out = run.read(op)
    for place in range(1, len(op.inputs)):
        other = run.read(op, place)
        out = torch.where((other > out) | other.isnan(), other, out)  # the first of equals has the gradient
    return out


def _row_function(op: ir.RowFunction, run: BatchRun) -> Tensor:
    x = run.read(op)
    if op.kind in ("softmax", "log_softmax"):
        return (x.softmax if op.kind == "softmax" else x.log_softmax)(1)
    if op.kind == "gelu":
        return F.gelu(x, approximate=str(op.arguments[0]))
    name = "add" if op.kind == "plus" else op.kind
    out: Tensor = getattr(torch.ops.aten, name)(x, *op.arguments)
    return out


def _along_row(op: ir.AlongRow, run: BatchRun) -> Tensor:
    x = run.read(op)
    if op.kind == "norm":
        length: Tensor = x.norm(dim=1, keepdim=True)
        return length
    return op.pieces(x).sum(1) if op.kind == "sum" else op.pieces(x).mean(1)


RUN: dict[type[ir.Operation], Callable[[Any, BatchRun], Tensor]] = {
    **dict.fromkeys((ir.AggregateLinear, ir.Aggregate, ir.LinearSum), _called),
    ir.Messages: _messages,
    ir.Gine: _gine,
    ir.Attention: _attention,
    ir.RelationAttention: _relation_attention,
    ir.Linear: _linear,
    ir.Epilogue: _epilogue,
    ir.Normalise: _normalise,
    ir.Break: _break,
    ir.Combine: _combine,
    ir.Largest: _largest,
    ir.RowFunction: _row_function,
    ir.AlongRow: _along_row,
    ir.Maximum: lambda op, run: largest(run.edges(op).csc, run.read(op), None, op.ties),
    ir.DestinationRows: lambda op, run: run.read(op)[: run.num_rows(op)],
    ir.Add: lambda op, run: run.read(op) + run.read(op, 1),
    ir.Concat: lambda op, run: torch.cat([run.read(op, place) for place in range(len(op.inputs))], 1),
    ir.Prelu: lambda op, run: F.prelu(run.read(op), op.slope),
    ir.Scale: lambda op, run: run.read(op) * (1 + op.factor),
    ir.UnitRows: lambda op, run: F.normalize(run.read(op), p=2.0, dim=1, eps=op.eps),
    ir.Product: lambda op, run: run.read(op) * run.read(op, 1),
    ir.ColumnRange: lambda op, run: run.read(op)[:, op.first : op.last],
    ir.RowOfParameters: lambda op, run: (torch.add if op.adds else torch.mul)(
        run.read(op), op.row.tensor().reshape(-1)
    ),
}
"""The function of each class of operation."""


# ---- single layers inside graph breaks: each runs by its own program on the edges that it is called with

_FUSED: WeakKeyDictionary[ir.LoweredLayer, BatchProgram] = WeakKeyDictionary()


def run_layer(
    layer: ir.LoweredLayer,
    rows: tuple[Tensor, ...],
    edge_index: Tensor,
    weight: Tensor | None,
    edge_attr: Tensor | None,
) -> Tensor:
    """Return the rows of all nodes that a layer computes; differentiable.

    An edge list that is passed again, unchanged, is sorted once.

    Args:
        layer: the layer.
        rows: ``(num_nodes, width)`` matrices of node rows.
        edge_index: ``(2, num_edges)`` int32 or int64 ids of nodes, sources in row 0.
        weight: ``(num_edges,)`` weights; may require a gradient if ``layer.learns_weights``.
        edge_attr: ``(num_edges, num_edge_features)``; may require a gradient.

    Raises:
        DataError: ``edge_index`` is no edge list, or an id is out of range.
        ConfigError: the layer was read with edge values that need no gradient, and they need one now.
    """
    if torch.is_grad_enabled():
        _check_edge_gradients(layer, weight, edge_attr)
    if layer not in _FUSED:
        _FUSED[layer] = BatchProgram(layer.program)
    program, x = _FUSED[layer], rows[0] if len(rows) == 1 else torch.cat(rows, 1)
    num_nodes = x.shape[0]
    of_list = RelationEdges.of_list(
        edge_index, num_nodes, num_nodes, None if layer.learns_weights else weight
    )
    levels = Levels(
        BatchEdges(relations=(of_list,), num_nodes=(num_nodes,)), [(num_nodes,)] * program.num_levels
    )
    attr = {} if edge_attr is None else {0: edge_attr}
    return BatchRun(program, levels, {ir.INPUT: x}, {}, attr, edge_weight=weight).outputs()


def _check_edge_gradients(layer: ir.LoweredLayer, weight: Tensor | None, edge_attr: Tensor | None) -> None:
    """Refuse values of edges whose gradients the layer's program would not compute."""
    for name, values in (("edge_weight", weight), ("edge_attr", edge_attr)):
        if values is None or not values.requires_grad:
            continue
        if any(ir.stops_gradient(op, of_features=name == "edge_attr") for op in layer.program.ops):
            raise ConfigError(
                f"{type(layer.module).__name__} is given values of edges that require a gradient, which "
                f"its program does not compute; detach them, or name that argument of the model's "
                f"forward {name}: the model then runs as it is written"
            )
