"""Segments: consecutive operations of a program that run on a batch by one call of compiled code each way.

The attention of GAT and GATv2 can be part of a :class:`NativeSegment`, that of dot products, as
TransformerConv's, the sum of GINE, and messages made of a kernel's steps. On small batches Python and the
calls between kernels take most of a step without it. It runs the same kernels in the same order as the
operations by themselves, so the bits are the same, but for GAT whose attention sums before the product in
front of it (``csrc/segments/gat_sums.cpp``), and for what PyTorch adds up in another order: means of
five heads or more, sums of a message's columns, and three gradients or more of a value that messages read.
Gradients of GINE's map of a few edge features are sums in another order, too: it is computed edge by edge.
:class:`.JoinedOps`, and the operations by themselves, run other dtypes, other devices and records of calls.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid import native
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.batches.edges import Levels, map_fields, plain_map
from graphbraid.fullgraph.batches.joined_ops import (
    FREED,
    JoinedOps,
    any_learns,
    can_join,
    ends_of,
    epilogue_of,
    is_part,
    operands_of,
    terms_of,
)
from graphbraid.machine.hardware import Rates
from graphbraid.ops.attention import first_keys
from graphbraid.ops.epilogue import ACTIVATION_CODES, LEAKY_SLOPE
from graphbraid.ops.kernels import watching
from graphbraid.ops.library import once_differentiable
from graphbraid.ops.message_kernel import keeps_logits
from graphbraid.ops.message_programs import kinds_of, native_programs, parameters_read
from graphbraid.ops.message_reductions import SeveralReductions
from graphbraid.ops.message_steps import SIDES, DotProducts, dot_products
from graphbraid.ops.rng import row_ids, seed_of_call

if TYPE_CHECKING:
    from graphbraid.fullgraph.batches.operations import BatchRun


def _views_of(op: ir.Operation) -> list[tuple[int, bool]]:
    """Return for each operand the number of a stack's matrix, or -1, and whether it is transposed."""
    views = [(-1, False)] * len(operands_of(op))
    for place, term in enumerate(terms_of(op)):
        if term is not None and is_part(term):
            views[place] = (*term.view.at, -1)[0], term.view.turned
    return views


def _compiles(op: ir.Operation) -> bool:
    """Return whether an operation can be part of a segment in compiled code."""
    if isinstance(op, ir.Messages):
        return _compiles_messages(op) or _dot_products_of(op) is not None
    if isinstance(op, ir.Attention):  # of GAT, without rows of its own for the coefficients
        return op.kind == "gatv2" or len(op.inputs) == 1
    if isinstance(op, ir.Concat):
        return len(op.inputs) in (2, 3)
    is_mean = isinstance(op, ir.AlongRow) and op.kind == "mean" and op.width_out > 1 and not op.by_head
    return is_mean or isinstance(op, ir.Gine) or can_join(op)


_MOST_MAPPED = 16
"""Features of an edge that GINE's kernels map as they read them, instead of a product for all edges."""


def _maps_edges(op: ir.Operation) -> bool:
    """Return whether an operation reads rows of edges through a linear map, which is a product of its own."""
    return isinstance(op, ir.Gine) and op.weight is not None and op.edge_channels > _MOST_MAPPED


def _edge_names(op: ir.Operation) -> tuple[str, str]:
    """Return what the rows of edges that an operation reads, and the mapped ones, are called as values."""
    return f"edges of {op.out}", f"mapped edges of {op.out}"


def _dot_products_of(op: ir.Messages) -> DotProducts | None:
    """Return the operands of messages that are only dot-product attention, if all that they read has a part.

    They read node rows, and edge features if there is a map of these.
    """
    found = op.attends
    if found is None and op.steps and op.reduction == "sum":
        found = dot_products(op.steps)
    if found is None or op.edges is not None or not _learned(op, found.edge_map):
        return None
    may_read = (*_ENDS, ir.ReadRows.FEATURES) if found.edge_map else _ENDS
    return found if all(role in may_read for _, role, _ in op.reads) else None


def _learned(op: ir.Messages, parameters: Sequence[tuple[int, int]]) -> bool:
    """Return whether all parameters of messages are among some operands, or parts of their composed maps."""
    learned = {at for at, _ in parameters}.union(*((one.outer, one.inner, one.bias) for one in op.composed))
    return learned >= {*range(len(op.used))}


def _compiles_messages(op: ir.Messages) -> bool:
    """Return whether messages are steps that read all rows of nodes and parameters that they are given."""
    if not op.steps or op.edges is not None or dot_products(op.steps) is not None:
        return False
    roles = [role for _, role, _ in op.reads]
    read = {side: {step.first for step in op.steps if step.op is side} for side in SIDES}
    are_read = all(read[side] == {*range(roles.count(role))} for side, role in zip(SIDES, _ENDS, strict=True))
    _, parameters = parameters_read(op.steps, len(op.used) + len(op.composed))
    return are_read and _learned(op, parameters) and all(1 <= one.ndim <= 3 for one in op.used)


Parts = list[tuple["NativeSegment | JoinedOps | ir.Operation", tuple[str, ...]]]
"""Segments, and operations by themselves, with the values that nothing after each one reads."""


def segments_of(
    ops: Sequence[ir.Operation],
    last_read: Sequence[tuple[str, ...]],
    output: str,
    widths: Callable[[str], int],
) -> Parts:
    """Divide a program's operations into segments, and operations that run by themselves.

    ``last_read`` has, for each operation, the values that no later operation reads. ``widths`` gives a
    value's number of columns, and ``output`` is the value that the program returns.
    """
    later = [
        {output, *(value for op in ops[place + 1 :] for value in op.inputs)} for place in range(len(ops))
    ]

    def divided(places: Sequence[int], joins: Callable[[ir.Operation], bool]) -> list[tuple[bool, slice]]:
        groups = ((key, [*some]) for key, some in itertools.groupby(places, lambda place: joins(ops[place])))
        return [(key, slice(some[0], some[-1] + 1)) for key, some in groups]

    found: Parts = []
    for compiles, whole in divided(range(len(ops)), _compiles):
        parts: Parts = []
        for joins, part in divided(range(whole.start, whole.stop), can_join):
            if joins:
                parts.append((JoinedOps(ops[part], last_read[part], later[part.stop - 1]), ()))
            else:
                parts += zip(ops[part], last_read[part], strict=True)
        if compiles:
            segment = NativeSegment(ops[whole], parts, last_read[whole], later[whole.stop - 1], widths)
            parts = [(segment, ())]
        found += parts
    return found


_KINDS: dict[type[ir.Operation], int] = {
    ir.AggregateLinear: 0,
    ir.Aggregate: 1,
    ir.Linear: 2,
    ir.LinearSum: 2,
    ir.Epilogue: 3,
    ir.DestinationRows: 4,
    ir.Add: 5,
    ir.AlongRow: 6,
    ir.Concat: 7,
    ir.Messages: 11,
    ir.Gine: 12,
}
_ATTENTIONS, _DOT = {"gat": 8, "gatv2": 9}, 10
"""Numbers of the kinds in ``csrc/segments/plan.h``; those of attentions by their own kind."""
_FLOAT32, _PLAIN = torch.float32, (Tensor, nn.Parameter)
_EDGES = ir.AdjacencyMatrix(kind="sum")
"""The edges of an attention or of messages, without coefficients."""
_ENDS = ir.ReadRows.SOURCE, ir.ReadRows.DESTINATION


class NativeSegment:
    """Runs consecutive operations on float32 rows of the CPU.

    Args:
        ops: the operations; ``_compiles`` must be true of each.
        parts: the same, as they run where compiled code cannot.
        last_read: for each operation, the values that no later operation reads.
        later: the values that are read after the segment.
        widths: number of columns of each value.
    """

    def __init__(
        self,
        ops: Sequence[ir.Operation],
        parts: Parts,
        last_read: Sequence[tuple[str, ...]],
        later: Collection[str],
        widths: Callable[[str], int],
    ) -> None:
        self._ops, self.parts = ops, parts
        self._reads, self.writes = ends_of(ops, later)
        self._forgotten = tuple(chain.from_iterable(last_read))
        self._of_edges = [op for op in ops if isinstance(op, ir.Gine | ir.Attention) and op.reads_edges]
        """Operations that read rows of edges as values. These follow the values that are read."""
        self._num_values = len(self._reads) + len(self._of_edges)
        values = [*self._reads, *(_edge_names(op)[0] for op in self._of_edges)]
        for op in ops:
            values += (_edge_names(op)[1], op.out) if _maps_edges(op) else (op.out,)
        self._number = {value: number for number, value in enumerate(values)}
        operands = [operands_of(op, whole=True) for op in ops]
        self._first_operand = [0, *accumulate(map(len, operands))]
        flat = [one for of_op in operands for one in of_op]
        self._views = list[tuple[int, int, bool]]()
        """For each operand the number of its tensor, and :func:`_views_of` its operation."""
        uses, first = Counter[tuple[int, int]](), dict[tuple[int, bool, int], int]()
        for place, (at, turned) in enumerate(chain.from_iterable(map(_views_of, ops))):
            part = id(flat[place]), at
            # The matrices of a stack are of one tensor. One that is read again is of a further one, so that
            # autograd adds up both gradients.
            first.setdefault(key := (part[0], at < 0, uses[part]), place)
            self._views.append(([*first].index(key), at, turned))
            uses[part] += 1
        self._tensors = [*first.values()]
        """For each tensor the number of an operand that it is."""
        flat = [flat[place] for place in self._tensors]
        self._operands = flat if all(isinstance(one, nn.Parameter | None) for one in flat) else None
        """The tensors of all operands, if they are parameters."""
        self._widths = {value: widths(value) for value in (*self._reads, *(op.out for op in ops))}
        moving = ir.AggregateLinear | ir.Aggregate | ir.Attention | ir.Messages | ir.Gine
        self._moving = [op for op in ops if isinstance(op, moving)]
        self._dots = {op.out: _dot_products_of(op) for op in ops if isinstance(op, ir.Messages)}
        """By the value that messages give, what they are as dot-product attention; None if they are not."""
        self._messages = [
            (op, {role for _, role, _ in op.reads}, getattr(self._dots[op.out], "num_features", None))
            for op in ops
            if isinstance(op, ir.Messages)
        ]
        """Messages, the roles of what they read, and of dot products how many features of edges."""
        self._maps: list[tuple[Any, ...]] = []
        """Each moving operation's level, relation, adjacency and :func:`plain_map`, once it has run."""
        self._edges = {op.out: number for number, op in enumerate(self._moving)}
        self._first_rows = [op for op in ops if type(op) is ir.DestinationRows]
        self._dropping = [op for op in ops if _dropout_of(op) > 0]
        self._made: Any = None

    def run(self, run: BatchRun) -> bool:
        """Compute the values that are read after the operations, and forget those that are not.

        Returns:
            Whether compiled code can run them here. If not, nothing has run.
        """
        if (operands := self._operands) is None:
            every = [one for op in self._ops for one in operands_of(op, whole=True)]
            operands = [every[place] for place in self._tensors]
        values = [run.values[name] for name in self._reads]
        outs = self._outs(run, values, operands, learns=any_learns((*values, *operands)))
        if outs is None:
            return False
        run.values.update(zip(self.writes, outs, strict=True))
        for value in self._forgotten:
            run.values.pop(value, None)
        return True

    def _outs(
        self, run: BatchRun, values: Sequence[Tensor], operands: Sequence[Tensor | None], *, learns: bool
    ) -> Sequence[Tensor] | None:
        """Return the rows that are read after the segment; None if it cannot run here.

        ``learns`` says whether any of the operands want gradients.
        """
        x = values[0]
        if run.is_half or watching() is not None:
            return None
        if x.dtype is not _FLOAT32 or not x.is_cpu or type(x) not in _PLAIN:
            return None
        kernels: Any = native.kernels()
        of_edges = [_of_edges(*one, run) for one in self._messages]
        of_values = [run.edge_rows(op, _FLOAT32) for op in self._of_edges]
        rows = of_values + [one for two in of_edges for one in two if one is not None]
        learns_edges, values = any(one.requires_grad for one in rows), [*values, *of_values]
        if kernels is None or learns_edges or any(one.is_inference() for one in (*values, *rows)):
            return None
        if self._made is None:
            adjacencies = [getattr(op, "adjacency", _EDGES) for op in self._moving]
            self._maps = [
                (*run.edges_between(op), adjacency, plain_map(adjacency))
                for op, adjacency in zip(self._moving, adjacencies, strict=True)
            ]
            self._made = self._compiled(kernels)
        levels = run.levels
        maps = [levels.map_fields(*one) for one in self._maps]
        counts = [run.num_rows(op) for op in self._first_rows]
        begun = self._made.begin(values, operands, maps, counts, of_edges)
        if begun is None:
            return None
        draws = []
        for op in self._dropping:
            run.draw_for(op)
            keys = first_keys if isinstance(op, ir.Attention | ir.Messages) else row_ids
            draws.append((seed_of_call(), keys(run.num_rows(op))))
        if learns:
            of_maps = [fields[5] for fields, *_ in maps]
            weights = [None if one is None or one.is_inference() else one for one in of_maps]
            weights += [one for of_one in zip(*of_edges, strict=True) for one in of_one]
            how = self, begun, levels, draws, weights
            # autograd's own `apply` is that of Function's base; Function adds only what torch.func needs.
            in_transform = torch._C._are_functorch_transforms_active()
            function: Any = _NativePass if in_transform else super(torch.autograd.Function, _NativePass)
            found: Sequence[Tensor] = function.apply(how, *values, *operands)
            return found
        outs: Sequence[Tensor] = begun.forward(draws, [False] * (len(values) + len(operands)))[0]
        return outs

    def _compiled(self, kernels: Any) -> Any:
        rates = Rates()
        placed = [*zip(self._ops, self._first_operand, strict=False)]
        fields = [one for op, first in placed for one in self._fields(op, first)]
        of_steps = {op.out for op, _, _ in self._messages}
        messages = [self._message_fields(op, at) for op, at in placed if op.out in of_steps]
        of_machine = rates.row_bytes, rates.stream_bytes, rates.multiply_flops
        writes = [self._number[value] for value in self.writes]
        counts = self._num_values, self._first_operand[-1]
        looks = native.look_microseconds()
        return kernels.Segment(fields, *counts, writes, of_machine, LEAKY_SLOPE, looks, messages, self._views)

    def _fields(self, op: ir.Operation, first: int) -> list[tuple[Any, ...]]:
        """Return an operation's fields, in the order of ``segment.cpp``; -1 for a missing field.

        If edges are mapped for it, those of the map come first.
        """
        kind, after, key = type(op), epilogue_of(op), -1
        before, rows = list[tuple[Any, ...]](), _edge_names(op)[_maps_edges(op)]
        number, read, how = _KINDS.get(kind, -1), op.inputs, (0.0, 1, False, False)
        weight = first if isinstance(op, ir.Linear | ir.LinearSum | ir.Attention) else -1
        other_weight = first + 1 if kind is ir.AggregateLinear or kind is ir.LinearSum else -1
        has_bias = isinstance(op, ir.Linear | ir.LinearSum | ir.Epilogue)
        bias = first + (weight >= 0) + (other_weight >= 0) if has_bias else -1
        if isinstance(op, ir.Attention):
            number, how = _ATTENTIONS[op.kind], (op.negative_slope, op.heads, op.self_loops, op.averages)
            other_weight = first + 1 if len(op.vectors) > 1 else -1
            read = read if op.kind == "gat" else (read[0], read[-1])  # one value if both ends share a map
            key = self._number.get(rows, -1)
            bias = first + len(op.vectors) if key >= 0 else -1
        elif isinstance(op, ir.Gine):
            read, how = (read[0], rows), (op.loop_scale, 1, False, False)
            if op.weight is not None and not _maps_edges(op):
                weight, bias = first, first + 1
        elif isinstance(op, ir.Messages) and (found := self._dots[op.out]) is not None:
            sources, destinations = (
                [op.inputs[place] for _, role, place in op.reads if role is end] for end in _ENDS
            )
            number, read = _DOT, (sources[found.value], destinations[found.query])
            key = self._number[sources[found.key]]
            how = found.scale, op.heads, len(found.edge_map) > found.num_features, False
        elif isinstance(op, ir.Messages):
            read = read[:1]  # see _message_fields
        elif isinstance(op, ir.Concat) and len(op.inputs) > 2:
            key = self._number[op.inputs[2]]
        elif isinstance(op, ir.AlongRow):
            how = 0.0, self._widths[read[0]] // op.width_out, False, False
        if _maps_edges(op):
            edges, mapped = (self._number[name] for name in _edge_names(op))
            by = first, -1, first + 1
            before = [(_KINDS[ir.Linear], edges, -1, -1, mapped, *by, -1, 0, 0.0, 0.0, 1, False, False)]
        x, other = [*(self._number[value] for value in read), -1][:2]
        named = self._number[op.out], weight, other_weight, bias, self._edges.get(op.out, -1)
        return [*before, (number, x, other, key, *named, ACTIVATION_CODES[after.act], _dropout_of(op), *how)]

    def _message_fields(self, op: Any, first: int) -> tuple[Any, ...]:
        """Return the fields of messages beside an operation's, in the order of ``messages.h``."""
        sources, destinations = (
            [self._number[op.inputs[place]] for _, role, place in op.reads if role is end] for end in _ENDS
        )
        several = op.several if isinstance(op.several, SeveralReductions) else None
        kinds = kinds_of(several or ("sum" if op.several else op.reduction))
        operands = op.operands()
        steps, read = parameters_read(op.steps, len(operands))
        if (found := self._dots[op.out]) is not None:
            read = found.edge_map
        alike = tuple((len(operands[at]) if column else operands[at].numel()) == 1 for at, column in read)
        # Not a method of this object, which the compiled segment would keep alive for ever.
        how_made: dict[str, Any] = {"steps": steps, "alike": alike, "kinds": kinds, "is_one": several is None}
        find = functools.partial(native_programs, **how_made)
        parameters, ties = [(first + at, column) for at, column in read], (several or op).ties
        made = several.numbers() if several else None
        how = kinds, op.reduction == "mean", ties == "shared with zero", find, made
        return sources, destinations, parameters, op.heads, op.edge_width, *how

    def reversed(self, levels: Levels, number: int) -> tuple[tuple[int, tuple[Any, ...], Tensor | None], ...]:
        """Return a map's number and transpose if it takes all edges of a list, whose Csc keeps it; or ().

        Behind them stand the places of the edges, if an attention's dropout, its dot products or rows of
        edges need them.
        """
        level, relation, adjacency, _ = self._maps[number]
        if not (edges := levels.edges(level, relation)).is_whole:
            return ()
        op = self._moving[number]
        reads_edges = _edge_names(op)[0] in self._number
        is_gat = isinstance(op, ir.Attention) and op.kind == "gat"  # which may sum first
        needs_places = reads_edges or is_gat
        needs_places |= isinstance(op, ir.Attention | ir.Messages) and _dropout_of(op) > 0
        if isinstance(op, ir.Messages):
            dots = self._dots[op.out] is not None and keeps_logits(edges.csc, op.heads, _FLOAT32.itemsize)
            needs_places = needs_places or dots or any(role not in _ENDS for _, role, _ in op.reads)
        places = edges.csc.transpose()[1] if needs_places else None
        how = edges.aggregation(adjacency, _FLOAT32).transposed(_FLOAT32)
        return ((number, map_fields(how, how.csc, how.csc.num_src, how.csc.num_dst, how.weight), places),)


class _NativePass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        segment, begun, levels, draws, weights = how
        ctx.set_materialize_grads(False)
        outs, reads, constant = begun.forward(draws, ctx.needs_input_grad[1:])
        held: tuple[Tensor | None, ...] = (*tensors, *outs, *weights)
        ctx.read = [one for place in reads if (one := held[place]) is not None]
        ctx.versions = [one._version for one in ctx.read]
        ctx.segment, ctx.begun, ctx.levels = segment, begun, levels
        # Other objects than backward keeps, since the results refer to this context.
        found = tuple(map(Tensor.detach, outs))
        if constant:
            ctx.mark_non_differentiable(*(found[place] for place in constant))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        begun, segment = ctx.begun, ctx.segment
        if begun is None:
            raise RuntimeError(FREED)
        if [one._version for one in ctx.read] != ctx.versions:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: a tensor that {segment.writes[-1]} was computed from, or a result"
            )
        gives_up = not torch._C._autograd._get_current_graph_task_keep_graph()
        if gives_up:
            ctx.begun = None
        turned: list[Any] = []
        if not ctx.levels.are_drawn:  # whose edges no later batch has
            turned = [one for n in begun.transposed_maps() for one in segment.reversed(ctx.levels, n)]
        return None, *begun.backward(grads, turned, gives_up)


def _of_edges(
    op: ir.Messages, roles: Collection[ir.ReadRows], num_features: int | None, run: BatchRun
) -> tuple[Tensor | None, Tensor | None]:
    """Return the features and the weights of edges that messages read."""
    features = run.edge_attr(op, _FLOAT32) if ir.ReadRows.FEATURES in roles else None
    if features is not None and num_features is not None and num_features < features.shape[1]:
        features = features[:, :num_features]
    return features, run.edge_weight(op, _FLOAT32) if ir.ReadRows.WEIGHT in roles else None


def _dropout_of(op: ir.Operation) -> float:
    """Return the probability that an operation drops elements with; of an attention, coefficients."""
    if isinstance(op, ir.Messages):
        return 0.0 if op.attends is None else op.attends.dropout
    return op.dropout if isinstance(op, ir.Attention) else epilogue_of(op).p
