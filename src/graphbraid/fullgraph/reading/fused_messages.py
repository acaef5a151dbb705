"""Turns the trace of a message into the steps of one kernel, where it is made of elementwise functions.

A message may be the source's row alone, with or without a factor for each edge. It then becomes an
aggregation by a matrix, which costs less: the aggregation can be computed once where it reads the features,
it changes places with a linear map, and the next operations run on its rows while the cache holds them.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program import AdjacencyMatrix, ComputedEdges, FromCall, FromGraph, ReadRows
from graphbraid.fullgraph.program.graph_break import DTYPE, EDGE_LIST, EDGE_WEIGHT, NUM_NODES
from graphbraid.fullgraph.reading.before_edges import TracedMessage, is_plain_linear
from graphbraid.fullgraph.reading.message_trial import name_of_call
from graphbraid.fullgraph.reading.trace_context import softmax_of_edges
from graphbraid.ops.message_programs import fits_kernel
from graphbraid.ops.message_reductions import SeveralReductions
from graphbraid.ops.message_steps import (
    MOST_MATRICES,
    ComposedMap,
    DotProducts,
    MessageOp,
    MessageStep,
    dot_products,
)
from graphbraid.ops.messages import MessageReduction

MessageReads = Sequence[tuple[str, ReadRows, int]]
"""The message's parameters that receive rows, and the rows that they read, as in :class:`.Messages`."""
_BINARY = {"add": MessageOp.ADD, "sub": MessageOp.SUBTRACT, "mul": MessageOp.MULTIPLY}
_BINARY |= dict.fromkeys(("truediv", "div"), MessageOp.DIVIDE)
_UNARY = {name: MessageOp[name.upper()] for name in ("relu", "sigmoid", "tanh", "exp", "abs")}
_SHAPES = {"view", "reshape", "flatten", "unsqueeze", "squeeze"}
_ROWS = 1009
"""More rows than an edge has columns: a call that merges rows with columns gives another number."""


class _NotStepsError(Exception):
    """A call is none of the kernel's steps."""


_Columns = tuple[int, range]
"""Columns of a parameter, by its number; of the edge features, by -1; of linear maps of these, below -1."""


@dataclass(frozen=True)
class _StepValue:
    step: int
    shape: tuple[int, ...] | None
    """The shape of an edge's row; of a parameter, its own shape; None for one number for all edges."""
    is_parameter: bool = False


class Fused(NamedTuple):
    """What a kernel runs of a message: its steps, or attention whose coefficients drop out."""

    steps: tuple[MessageStep, ...] = ()
    composed: tuple[ComposedMap, ...] = ()
    """Linear maps that the steps read behind the parameters."""
    attends: DotProducts | None = None


NOT_FUSED = Fused()


def steps_of(
    message: TracedMessage,
    reads: MessageReads,
    *,
    encoders: Mapping[str, Any],
    used: Sequence[nn.Parameter],
    heads: int,
    reduction: MessageReduction | SeveralReductions,
    temperature: float | nn.Parameter | None = None,
) -> Fused:
    """Return a message as steps of a kernel; none if it is made of anything else.

    Args:
        message: the message. A check has shown that all of it but softmaxes over in-neighbours works row by
            row. Its shape is ``(columns,)`` or ``(heads, channels)``.
        reads: the rows that the message reads.
        encoders: by argument that gets edge features, the linear map that they have passed before.
        used: the parameters that the message reads.
        heads: number of heads of its rows.
        reduction: how messages become one row.
        temperature: if given, messages are multiplied by the softmax over in-neighbours of the message times
            it.
    """
    roles = [role for _, role, _ in reads]
    many = max(roles.count(ReadRows.SOURCE), roles.count(ReadRows.DESTINATION)) > MOST_MATRICES
    if (
        many
        or max(roles.count(ReadRows.FEATURES), roles.count(ReadRows.WEIGHT)) > 1
        or len(message.shape) > 2
    ):
        return NOT_FUSED
    try:
        made = _Steps(message, reads, encoders, used, heads)
        steps = made.all_of() if temperature is None else made.softened(temperature)
    except _NotStepsError:
        return NOT_FUSED
    composed = tuple(made.composed)
    operands = *used, *(one.of(used) for one in composed)
    if not fits_kernel(steps, operands, reduction):
        return NOT_FUSED
    if not made.dropouts:
        return Fused(steps, composed)
    attends = dot_products(steps) if reduction == "sum" else None
    [(p, dropped), *others] = made.dropouts
    if attends is None or others or p >= 1 or steps[dropped].op is not MessageOp.SOFTMAX:
        return NOT_FUSED
    return Fused((), composed, replace(attends, dropout=p))


def heads_of(shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of heads of a message: of its own shape, or that its arguments have."""
    by_head = [one for one in (shape, *shapes.values()) if len(one) == 2]
    return by_head[0][0] if by_head and math.prod(by_head[0]) == math.prod(shape) else 1


class _Steps:
    def __init__(
        self,
        message: TracedMessage,
        reads: MessageReads,
        encoders: Mapping[str, Any],
        used: Sequence[nn.Parameter],
        heads: int,
    ) -> None:
        self._message, self._encoders, self._used = message, encoders, used
        self._roles = {name: role for name, role, _ in reads}
        self._width, self._heads = math.prod(message.shape), heads
        self._steps: list[MessageStep] = []
        self._values: dict[fx.Node, _StepValue] = {}
        self._columns: dict[fx.Node, _Columns] = {}
        """What linear maps of edge features read."""
        self._maps: list[tuple[int, int, range]] = []
        """Linear maps of edge features: the numbers of weight and bias, and the columns that they read."""
        self.composed: list[ComposedMap] = []
        """Linear maps of such maps, which steps read behind the parameters."""
        self.dropouts: list[tuple[float, int]] = []
        """Probabilities of dropouts, and the steps whose rows they drop."""

    def all_of(self) -> tuple[MessageStep, ...]:
        """Return the steps; the last one gives the message."""
        graph, needed = self._message.graph, set[fx.Node]()  # others only compare sizes, as in PyG's GENConv
        for node in reversed(graph.nodes):
            if node.op == "output" or node in needed:
                needed.update(node.all_input_nodes)
        for node in graph.nodes:
            if node.op == "output":
                out = self._made(node.args[0])
                if out.shape is None or out.is_parameter or math.prod(out.shape) != self._width:
                    raise _NotStepsError
                if out.step != len(self._steps) - 1:  # the kernel returns its last step
                    self._add(MessageOp.ADD, out, self._number(0.0))
            elif node in needed and not (node.op == "placeholder" and str(node.target) not in self._roles):
                self._enter(node)
        return tuple(self._steps)

    def softened(self, temperature: float | nn.Parameter) -> tuple[MessageStep, ...]:
        """Return the steps of the message times the softmax of the message times a temperature."""
        shape = (self._width,)
        message = score = _StepValue(len(self.all_of()) - 1, shape)
        if isinstance(temperature, nn.Parameter):
            if temperature.numel() not in (1, self._width):
                raise _NotStepsError
            score = self._entered(MessageOp.MULTIPLY, shape, message, self._parameter(temperature))
        elif temperature != 1:
            score = self._entered(MessageOp.MULTIPLY, shape, message, self._number(float(temperature)))
        factor = self._entered(MessageOp.SOFTMAX, shape, score)
        self._entered(MessageOp.MULTIPLY, shape, message, factor)
        return tuple(self._steps)

    def _enter(self, node: fx.Node) -> None:
        """Enter a value as a step; or as columns, which become steps if others than linear maps read it."""
        if (columns := self._columns_of(node)) is None:
            self._values[node] = self._value(node)
        else:
            self._columns[node] = columns

    def _columns_of(self, node: fx.Node) -> _Columns | None:
        """Return what linear maps read: columns of edge features, of a map of these, or of a weight."""
        name = str(node.target)
        if node.op == "placeholder":
            shape, encoder = self._message.shapes[name], self._encoders.get(name)
            if self._roles[name] is not ReadRows.FEATURES or len(shape) != 1:
                return None
            if encoder is None:
                return -1, range(*shape)
            rows = -1, range(encoder.weight.shape[1])
            return self._mapped(rows, self._all_columns(encoder.weight), encoder.bias)
        if node.op == "get_attr":
            return self._all_columns(self._message.tensors[name])
        found = self._map_of(node)
        return self._part_of(node) if found is None else self._mapped(*found)

    def _part_of(self, node: fx.Node) -> _Columns | None:
        """Return some of the columns of a value, if a call takes them."""
        args = node.args
        found = self._columns.get(args[0]) if args and isinstance(args[0], fx.Node) else None
        if found is None or node.kwargs:
            return None
        if node.target is torch.flatten and found[0] < 0 and args[1:] == (1,):
            return found
        chosen = args[1] if node.target is operator.getitem else None
        if isinstance(chosen, tuple) and len(chosen) == 2 and chosen[0] == slice(None):
            ends = (chosen[1].start, chosen[1].stop) if isinstance(chosen[1], slice) else ("", "")
            return (found[0], found[1][slice(*ends)]) if all(isinstance(one, int) for one in ends) else None
        return None

    def _map_of(self, node: Any) -> tuple[_Columns | None, _Columns | None, Any] | None:
        """Return the columns of rows and weight, and the bias, if a call is a linear map."""
        if node.op == "call_module" and is_plain_linear(module := self._message.module(node)):
            return self._columns.get(node.args[0]), self._all_columns(module.weight), module.bias
        if node.target is not F.linear:
            return None
        given: dict[str, Any] = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
        bias = given.get("bias")
        if bias is not None and bias.op != "get_attr":
            raise _NotStepsError
        held = None if bias is None else self._message.tensors[str(bias.target)]
        return self._columns.get(given["input"]), self._columns.get(given["weight"]), held

    def _mapped(self, rows: _Columns | None, weight: _Columns | None, bias: Any) -> _Columns | None:
        """Return the columns of a linear map of edge features; None if it is none that another may follow."""
        of_bias = -1 if bias is None else self._number_of(bias)
        if rows is None or weight is None or of_bias is None or rows[0] != -1 or weight[0] < 0:
            return None
        num_rows, num_columns = self._used[weight[0]].shape
        if not len(rows[1]) == len(weight[1]) == num_columns:
            return None
        self._maps.append((weight[0], of_bias, rows[1]))
        return -1 - len(self._maps), range(num_rows)

    def _value(self, node: fx.Node) -> _StepValue:
        if node.op == "placeholder":
            return self._read(str(node.target))
        if node.op == "get_attr":
            return self._parameter(self._message.tensors[str(node.target)])
        if (found := self._map_of(node)) is not None:
            return self._linear(*found)
        if node.op == "call_module":
            return self._module(self._message.module(node), node.args[0])
        if node.target is softmax_of_edges():
            return self._add(
                MessageOp.SOFTMAX, self._made(node.args[0] if node.args else node.kwargs.get("src"))
            )
        return self._call(name_of_call(node.target), node.args, dict(node.kwargs))

    def _module(self, module: nn.Module, x: Any) -> _StepValue:
        if type(module) is nn.Dropout:
            return self._dropped(self._made(x), module.p if module.training else 0.0)
        if type(module) is nn.Identity:
            return self._made(x)
        slope = (module.negative_slope,) if isinstance(module, nn.LeakyReLU) else ()
        return self._call(name_of_call(type(module)), (x, *slope), {})

    def _linear(self, rows: _Columns | None, weight: _Columns | None, bias: Any) -> _StepValue:
        """Return a linear map of edge features as a sum of their numbers times columns of the weight.

        The weight is ``(out_channels, in_channels)``.
        """
        if rows is None or weight is None or rows[0] >= 0 or weight[0] < 0 or len(rows[1]) != len(weight[1]):
            raise _NotStepsError
        shape = (self._used[weight[0]].shape[0],)
        if shape[0] not in (self._width, self._heads):
            raise _NotStepsError
        terms = [] if bias is None else [self._parameter(bias)]
        if rows[0] < -1:
            inner, of_inner, columns = self._maps[-2 - rows[0]]
            if len(rows[1]) != self._used[inner].shape[0]:
                raise _NotStepsError
            self.composed.append(ComposedMap(weight[0], weight[1].start, weight[1].stop, inner, of_inner))
            weight = len(self._used) + len(self.composed) - 1, range(len(columns))
            rows = -1, columns
            if of_inner >= 0:
                terms.append(self._column(weight[0], len(columns), shape))
        for number, column in zip(rows[1], weight[1], strict=True):
            factor = self._column(weight[0], column, shape)
            of_edge = self._leaf(MessageOp.EDGE_NUMBER, None, at=number, alike=True)
            terms.append(self._entered(MessageOp.MULTIPLY, shape, of_edge, factor))
        return functools.reduce(lambda one, other: self._entered(MessageOp.ADD, shape, one, other), terms)

    def _column(self, matrix: int, column: int, shape: tuple[int, ...]) -> _StepValue:
        """Return a column of a parameter, or of a composed map behind these."""
        narrow = shape[0] != self._width
        self._steps.append(MessageStep(MessageOp.PARAMETER, matrix, column + 1, narrow=narrow))
        return _StepValue(len(self._steps) - 1, shape)

    def _number_of(self, tensor: Any) -> int | None:
        return next((at for at, one in enumerate(self._used) if one is tensor), None)

    def _all_columns(self, tensor: Any) -> _Columns | None:
        at = self._number_of(tensor)
        return None if at is None or tensor.ndim != 2 else (at, range(tensor.shape[1]))

    def _read(self, name: str) -> _StepValue:
        role, shape = self._roles[name], self._message.shapes[name]
        if (encoder := self._encoders.get(name)) is not None:
            rows = -1, range(encoder.weight.shape[1])
            return self._linear(rows, self._all_columns(encoder.weight), encoder.bias)
        if (shape == ()) != (role is ReadRows.WEIGHT) and not (shape == () and self._heads == 1):
            raise _NotStepsError
        same = [key for key, other in self._roles.items() if other is role]
        kind = {
            ReadRows.SOURCE: MessageOp.SOURCE,
            ReadRows.DESTINATION: MessageOp.DESTINATION,
            ReadRows.FEATURES: MessageOp.EDGE,
            ReadRows.WEIGHT: MessageOp.WEIGHT,
        }[role]
        if role is ReadRows.WEIGHT and self._heads > 1:
            raise _NotStepsError  # one number for all heads has no place in rows by head
        return self._leaf(kind, shape, at=same.index(name), alike=role is ReadRows.WEIGHT)

    def _parameter(self, tensor: Tensor) -> _StepValue:
        if (at := self._number_of(tensor)) is None:
            raise _NotStepsError
        if tensor.numel() == 1:
            return self._leaf(MessageOp.PARAMETER, None, at=at, alike=True)
        made = self._leaf(MessageOp.PARAMETER, tuple(tensor.shape), at=at)
        return _StepValue(made.step, made.shape, is_parameter=True)

    def _call(self, name: str, args: Any, named: dict[str, Any]) -> _StepValue:
        if name in _BINARY and len(args) == 2 and not named:
            return self._add(_BINARY[name], *map(self._made, args))
        if name in ("leaky_relu", "leakyrelu"):
            slope = named.get("negative_slope", args[1] if len(args) > 1 else 0.01)
            return self._add(MessageOp.LEAKY_RELU, self._made(args[0]), number=float(slope))
        if name == "square" or (name == "pow" and args[1:] == (2,) and not named):
            x = self._made(args[0])
            return self._add(MessageOp.MULTIPLY, x, x)
        if len(args) == 1 and set(named) <= {"inplace"}:
            return self._of_one(name, self._made(args[0]))
        return self._shaped(name, args, named)

    def _of_one(self, name: str, x: _StepValue) -> _StepValue:
        if name in _UNARY:
            return self._add(_UNARY[name], x)
        if name == "neg":
            return self._add(MessageOp.MULTIPLY, x, self._number(-1.0))
        if name == "silu":
            return self._add(MessageOp.MULTIPLY, x, self._add(MessageOp.SIGMOID, x))
        raise _NotStepsError

    def _dropped(self, x: _StepValue, p: Any) -> _StepValue:
        if not isinstance(p, int | float):
            raise _NotStepsError
        if p > 0:
            self.dropouts.append((p, x.step))
        return x

    def _shaped(self, name: str, args: Any, named: dict[str, Any]) -> _StepValue:
        """Return the sum of each head's columns, or the same numbers in another shape."""
        if name == "stack" and len(args[0]) == 1:  # as PNAConv joins a single tower
            name, args, named = "unsqueeze", (*args[0], *args[1:], *named.values()), {}
        x = self._made(args[0] if args else None)
        if name == "dropout":
            given = dict(zip(("p", "training"), args[1:], strict=False)) | named
            return self._dropped(x, given.get("p", 0.5) if given.get("training", True) else 0.0)
        if x.shape is None or x.is_parameter:
            raise _NotStepsError
        if name == "sum":
            given = {**dict(zip(("dim", "keepdim"), args[1:], strict=False)), **named}
            last = len(x.shape), -1
            known = set(given) <= {"dim", "keepdim"} and math.prod(x.shape) == self._width
            if not known or x.shape[-1:] != (self._width // self._heads,):
                raise _NotStepsError
            if given.get("dim") not in (*last, *((one,) for one in last), *([one] for one in last)):
                raise _NotStepsError
            kept = (1,) if given.get("keepdim", False) else ()
            return self._entered(MessageOp.SUM_COLUMNS, (*x.shape[:-1], *kept), x)
        return _StepValue(x.step, self._reshaped(name, x.shape, args[1:], named))

    def _reshaped(
        self, name: str, shape: tuple[int, ...], args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[int, ...]:
        """Return the shape that a call gives an edge's row, which it shows on rows without numbers."""
        try:
            if name not in _SHAPES:
                raise TypeError("it may give other numbers")
            made = getattr(torch.empty(_ROWS, *shape, device="meta"), name)(*args, **named)
        except (TypeError, IndexError, RuntimeError) as error:
            raise _NotStepsError from error
        columns, to = self._width // self._heads, tuple(made.shape[1:])
        known = {(self._width,), (self._heads, columns), (self._heads,), (self._heads, 1)}
        known |= {()} if self._heads == 1 else set()
        if len(made) != _ROWS or to not in known:
            raise _NotStepsError
        return to

    def _made(self, argument: Any) -> _StepValue:
        if isinstance(argument, fx.Node) and argument in self._columns and argument not in self._values:
            self._values[argument] = self._value(argument)
        if isinstance(argument, fx.Node) and argument in self._values:
            return self._values[argument]
        if isinstance(argument, int | float) and not isinstance(argument, bool):
            return self._number(float(argument))
        raise _NotStepsError

    def _number(self, value: float) -> _StepValue:
        return self._leaf(MessageOp.NUMBER, None, number=value, alike=True)

    def _leaf(
        self,
        op: MessageOp,
        shape: tuple[int, ...] | None,
        *,
        at: int = 0,
        number: float = 0.0,
        alike: bool = False,
    ) -> _StepValue:
        count = 1 if shape is None else math.prod(shape)
        if not alike and count not in (self._width, self._heads):
            raise _NotStepsError
        self._steps.append(MessageStep(op, at, 0, number, narrow=not alike and count != self._width))
        return _StepValue(len(self._steps) - 1, shape)

    def _add(self, op: MessageOp, *of: _StepValue, number: float = 0.0) -> _StepValue:
        """Append a step that computes rows from those of earlier ones, where PyTorch broadcasts them so."""
        told = [one for one in of if one.shape is not None]
        rows = [one.shape for one in told if not one.is_parameter and one.shape is not None]
        if not rows:
            shapes = {one.shape for one in told}
            if len(shapes) > 1:
                raise _NotStepsError
            made = self._entered(op, next(iter(shapes), None), *of, number=number)
            return _StepValue(made.step, made.shape, is_parameter=bool(told))
        rank = len(rows[0])
        aligned = []
        for one in told:
            assert one.shape is not None
            shape = one.shape
            if one.is_parameter:
                shape = shape[1:] if len(shape) == rank + 1 and shape[0] == 1 else shape
                shape = (*[1] * (rank - len(shape)), *shape)
            if len(shape) != rank or math.prod(shape) not in (self._width, self._heads):
                raise _NotStepsError  # PyTorch would take the numbers of edges for columns
            aligned.append(shape)
        if any(len({one for one in sizes if one != 1}) > 1 for sizes in zip(*aligned, strict=True)):
            raise _NotStepsError
        whole = tuple(max(sizes) for sizes in zip(*aligned, strict=True))
        if math.prod(whole) not in (self._width, self._heads):
            raise _NotStepsError
        return self._entered(op, whole, *of, number=number)

    def _entered(
        self, op: MessageOp, shape: tuple[int, ...] | None, *of: _StepValue, number: float = 0.0
    ) -> _StepValue:
        first, second = (*(one.step for one in of), 0)[:2]
        self._steps.append(MessageStep(op, first, second, number))
        return _StepValue(len(self._steps) - 1, shape)


# ---- messages that are the source's row, with or without a factor for each edge


def plain_sum(
    steps: Sequence[MessageStep],
    reads: MessageReads,
    shapes: Mapping[str, tuple[int, ...]],
    edges: ComputedEdges | None,
    reduction: MessageReduction | SeveralReductions,
    *,
    dtype: torch.dtype | None,
) -> tuple[AdjacencyMatrix, int] | None:
    """Return messages as a sum or mean of sources' rows by a matrix; None if they are anything else.

    Args:
        steps: the message's steps; none if it has no such form.
        reads: the rows that the message reads, as in :class:`.Messages`.
        shapes: by parameter, the shape of an edge's row: ``()`` for one number.
        edges: the edges that the messages run along; None for the graph's own.
        reduction: how messages become one row.
        dtype: dtype of the model's parameters.

    Returns:
        The matrix, and the number of the input whose rows it sums.
    """
    if reduction not in ("sum", "mean") or not steps:
        return None
    *others, last = steps
    # Its own factors are looked at, since nothing may read some of the other steps.
    factors = {steps[last.first].op, steps[last.second].op} if last.op is MessageOp.MULTIPLY else set()
    weighs = len(others) == 2 and factors == {MessageOp.SOURCE, MessageOp.WEIGHT}
    if not (weighs or (last.op is MessageOp.SOURCE and not others)):
        return None
    sources = [at for _, role, at in reads if role is ReadRows.SOURCE]
    [source] = [sources[step.first] for step in steps if step.op is MessageOp.SOURCE]
    if edges is None:
        return AdjacencyMatrix(kind=str(reduction), weighted=weighs), source
    weights = [edges.values[at] for key, role, at in reads if role is ReadRows.COMPUTED and not shapes[key]]
    if not weighs or reduction != "sum" or len(weights) != 1:
        return None
    matrix = _normalised(edges, weights[0], dtype)
    return None if matrix is None else (matrix, source)


def _normalised(
    edges: ComputedEdges, weight: FromCall | FromGraph, dtype: torch.dtype | None
) -> AdjacencyMatrix | None:
    """Return the matrix of edges and weights that a call of ``gcn_norm`` gives; None for any others."""
    ends, weights = (_part_of_call(edges, one) for one in (edges.edges, weight))
    if ends is None or weights is None or (ends[0], weights[0]) != (0, 1) or ends[1] != weights[1]:
        return None
    call = edges.calls[ends[1]]
    gcn_norm = getattr(sys.modules.get("torch_geometric.nn.conv.gcn_conv"), "gcn_norm", None)
    if gcn_norm is None or call.target is not inspect.unwrap(gcn_norm):  # a trace has replaced it
        return None
    # Any further call writes over the edges or the weights, or it would not be needed for them.
    if [one.target for one in edges.calls if one.target is not operator.getitem] != [call.target]:
        return None
    given = inspect.signature(call.target).bind(*call.args, **call.kwargs)
    given.apply_defaults()
    named = given.arguments
    weighted = named["edge_weight"] == FromGraph(EDGE_WEIGHT)
    is_of_graph = named["edge_index"] == FromGraph(EDGE_LIST) and named["num_nodes"] == FromGraph(NUM_NODES)
    if not is_of_graph or not (weighted or named["edge_weight"] is None):
        return None
    # Weights that it makes itself have the dtype that it is given, and may be less exact than the rows.
    is_exact = weighted or (named["dtype"] or torch.get_default_dtype()) in (FromGraph(DTYPE), dtype)
    if named["flow"] != "source_to_target" or not is_exact:
        return None
    # Without weights of the edges PyG gives every self-loop that it adds the weight 1, also if improved.
    loops = (2.0 if named["improved"] and weighted else 1.0) if named["add_self_loops"] else 0.0
    return AdjacencyMatrix(kind="gcn", loop_scale=loops, weighted=weighted)


def _part_of_call(edges: ComputedEdges, value: FromCall | FromGraph) -> tuple[Any, int] | None:
    """Return which part of a call's result a value is, and the number of that call; None if it is no part."""
    call = edges.calls[value.number] if isinstance(value, FromCall) else None
    if call is None or call.target is not operator.getitem or not isinstance(call.args[0], FromCall):
        return None
    return call.args[1], call.args[0].number
