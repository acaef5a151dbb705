"""Segments: consecutive operations of a program that run on a batch as one autograd function.

PyTorch's graph has one node for a segment in place of one for each operation. Forward and backward call the
operators of :mod:`graphbraid.ops` without checks of arguments, since these hold for every batch of a program.
Backward gives memory back after its last use.

In bfloat16 the products round their factors and results, as PyTorch's do under autocast. Sums add in float32;
those with coefficients, which are float32, keep that dtype.

A segment in compiled code, :class:`NativeSegment`, has one call for the forward pass and one for the
backward. The attention of GAT and GATv2 can be part of it, that of dot products, as TransformerConv's, the
sum of GINE, and messages made of a kernel's steps. On small batches Python and the calls between kernels take
most of a step without it. It runs the same kernels in the same order as the operations by themselves, so the
bits are the same, but for what PyTorch adds up in another order: means of five heads or more, sums of a
message's columns, and three gradients or more of a value that messages read. The operations by themselves run
other dtypes, other devices and records of calls.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from graphbraid import native
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.batches.edges import Levels, map_fields, plain_map
from graphbraid.machine.hardware import Rates
from graphbraid.ops.attention import first_keys
from graphbraid.ops.epilogue import ACTIVATION_CODES, LEAKY_SLOPE, EpilogueFunction
from graphbraid.ops.kernels import counts_memory, watching
from graphbraid.ops.library import AnySeed, CallContext, once_differentiable
from graphbraid.ops.linear import AggregateLinearFunction, LinearFunction, rows_as
from graphbraid.ops.message_kernel import keeps_logits
from graphbraid.ops.message_programs import kinds_of, native_programs, parameters_read
from graphbraid.ops.message_reductions import SeveralReductions
from graphbraid.ops.message_steps import SIDES, DotProducts, dot_products
from graphbraid.ops.rng import row_ids, seed_of_call
from graphbraid.ops.spmm import SpmmFunction

if TYPE_CHECKING:
    from graphbraid.fullgraph.batches.operations import BatchRun


OpCall = tuple[Any, ...]
"""An autograd function, and its arguments."""
CALLS: dict[type[ir.Operation], Callable[..., OpCall]] = {}
"""The call that an operation of each class makes, from the operation, the run and :func:`operands_of` it."""


def operands_of(op: ir.Operation, *, whole: bool = False) -> tuple[Tensor | None, ...]:
    """Return the matrices and the bias of an operation, as autograd sees them.

    Args:
        op: the operation.
        whole: whether a matrix of a stack, or a transposed one, comes as its whole parameter; then
            :func:`_views_of` says which part of it the operation reads.
    """
    if isinstance(op, ir.Messages):
        return op.operands()
    if isinstance(op, ir.Attention):
        return *op.vectors, op.edge_weight, op.edge_vector
    if isinstance(op, ir.Gine):
        return op.weight, op.bias
    matrices = (
        None if term is None else term.weight if whole and _is_part(term) else term.matrix(learns=True)
        for term in _terms_of(op)
    )
    after = op.after if isinstance(op, ir.Following) else op
    bias = after.added() if isinstance(after, ir.Epilogue) else None
    return *matrices, bias


def _terms_of(op: ir.Operation) -> tuple[ir.Linear | None, ...]:
    """Return the products of an operation; None for one that an aggregation does not have."""
    if isinstance(op, ir.AggregateLinear):
        return op, op.root
    return op.terms if isinstance(op, ir.LinearSum) else (op,) if isinstance(op, ir.Linear) else ()


def _is_part(term: ir.Linear) -> bool:
    """Return whether a product reads a parameter, or a matrix of a stack, as it is or transposed."""
    plain = replace(term.view, at=(), turned=False) == ir.WHOLE and term.mixed is None and not term.also
    return plain and len(term.view.at) == term.weight.ndim - 2 <= 1


def _views_of(op: ir.Operation) -> list[tuple[int, bool]]:
    """Return for each operand the number of a stack's matrix, or -1, and whether it is transposed."""
    views = [(-1, False)] * len(operands_of(op))
    for place, term in enumerate(_terms_of(op)):
        if term is not None and _is_part(term):
            views[place] = (*term.view.at, -1)[0], term.view.turned
    return views


def can_join(op: ir.Operation) -> bool:
    """Return whether an operation can be part of a segment."""
    if isinstance(op, ir.Epilogue):
        return op.act in ACTIVATION_CODES and not (op.bias is None and op.act == "none" and op.p == 0)
    return type(op) in CALLS and not (type(op) is ir.Linear and len(op.inputs) > 1)


def _compiles(op: ir.Operation) -> bool:
    """Return whether an operation can be part of a segment in compiled code."""
    if isinstance(op, ir.Messages):
        return _compiles_messages(op) or _dot_products_of(op) is not None
    if isinstance(op, ir.Attention):  # of GAT, without rows of its own for the coefficients
        return op.kind == "gatv2" or len(op.inputs) == 1
    is_mean = isinstance(op, ir.AlongRow) and op.kind == "mean" and op.width_out > 1
    return is_mean or isinstance(op, ir.Gine) or can_join(op)


def _maps_edges(op: ir.Operation) -> bool:
    """Return whether an operation reads rows of edges through a linear map, which is a product of its own."""
    return isinstance(op, ir.Gine) and op.weight is not None


def _edge_names(op: ir.Operation) -> tuple[str, str]:
    """Return what the rows of edges that an operation reads, and the mapped ones, are called as values."""
    return f"edges of {op.out}", f"mapped edges of {op.out}"


def _dot_products_of(op: ir.Messages) -> DotProducts | None:
    """Return the operands of messages that are only dot-product attention of node rows; else None."""
    if op.attends is not None:
        return op.attends if op.edges is None else None
    reads_nodes = all(role in _ENDS for _, role, _ in op.reads)
    is_plain = reads_nodes and op.reduction == "sum" and op.edges is None and not op.used
    return dot_products(op.steps) if is_plain and op.steps else None


def _compiles_messages(op: ir.Messages) -> bool:
    """Return whether messages are steps that read all rows of nodes and parameters that they are given."""
    if not op.steps or op.edges is not None or dot_products(op.steps) is not None:
        return False
    roles = [role for _, role, _ in op.reads]
    read = {side: {step.first for step in op.steps if step.op is side} for side in SIDES}
    are_read = all(read[side] == {*range(roles.count(role))} for side, role in zip(SIDES, _ENDS, strict=True))
    _, parameters = parameters_read(op.steps, len(op.used) + len(op.composed))
    learned = {at for at, _ in parameters}.union(*((one.outer, one.inner, one.bias) for one in op.composed))
    are_read = are_read and learned >= {*range(len(op.used))}
    return are_read and all(1 <= one.ndim <= 3 for one in op.used)


def has_coefficients(op: ir.Operation) -> bool:
    """Return whether an operation multiplies rows by coefficients of edges or nodes before it adds them."""
    if not isinstance(op, ir.AggregateLinear | ir.Aggregate):
        return False
    return op.adjacency.weighted or op.adjacency.kind not in ("sum", "mean")


def narrowed(operands: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Return :func:`operands_of` an operation as products in bfloat16 read them: all but the bias rounded."""
    *matrices, bias = operands
    return *(None if one is None else one.to(torch.bfloat16) for one in matrices), bias


def _following(op: ir.Following) -> tuple[int, float, AnySeed]:
    """Return activation code, dropout probability and seed of the epilogue that a product applies."""
    after = op.after
    if after is None:
        return 0, 0.0, 0
    return ACTIVATION_CODES[after.act], after.p, seed_of_call() if after.p > 0 else 0


def _aggregate_linear(
    op: ir.AggregateLinear, run: BatchRun, matrix: Tensor, root: Tensor | None, bias: Tensor | None
) -> OpCall:
    x = run.read(op)
    how = run.edges(op).aggregation(op.adjacency, x.dtype)
    wide = run.is_half and has_coefficients(op)
    return AggregateLinearFunction, x, matrix, root, how, bias, *_following(op), wide


def _aggregate(op: ir.Aggregate, run: BatchRun, _: None) -> OpCall:
    x, addend = run.read(op), run.read(op, 1) if len(op.inputs) > 1 else None
    return SpmmFunction, x, None, addend, run.edges(op).aggregation(op.adjacency, x.dtype), False


def _linear(op: ir.Linear, run: BatchRun, matrix: Tensor, bias: Tensor | None) -> OpCall:
    return LinearFunction, run.read(op), matrix, None, None, bias, *_following(op)


def _linear_sum(op: ir.LinearSum, run: BatchRun, one: Tensor, other: Tensor, bias: Tensor | None) -> OpCall:
    return LinearFunction, run.read(op), one, run.read(op, 1), other, bias, *_following(op)


def _epilogue(op: ir.Epilogue, run: BatchRun, bias: Tensor | None) -> OpCall:
    seed = seed_of_call() if op.p > 0 else 0
    return EpilogueFunction, run.read(op), bias, ACTIVATION_CODES[op.act], op.p, seed, run.may_overwrite(op)


class _FirstRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, num_rows: int) -> Tensor:
        ctx.num_rows = len(x)
        return x[:num_rows]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        whole = grad.new_zeros(ctx.num_rows, grad.shape[1])
        whole[: len(grad)] = grad
        return whole, None


class _RowSum(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        return one + other

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


CALLS |= {
    ir.AggregateLinear: _aggregate_linear,
    ir.Aggregate: _aggregate,
    ir.Linear: _linear,
    ir.LinearSum: _linear_sum,
    ir.Epilogue: _epilogue,
    ir.DestinationRows: lambda op, run, _: (_FirstRows, run.read(op), run.num_rows(op)),
    ir.Add: lambda op, run, _: (_RowSum, run.read(op), run.read(op, 1)),
}


def _reads_result(op: ir.Operation) -> bool:
    """Return whether an operation's backward reads its result: the activation's slope follows from that."""
    after = op.after if isinstance(op, ir.Following) else op
    return isinstance(after, ir.Epilogue) and after.act != "none"


class _CalledOp(NamedTuple):
    """One operation's call, as backward needs it."""

    value: str
    """Name of the result."""
    function: Any
    context: CallContext
    sources: tuple[str | int | None, ...]
    """For each argument the name of the value, or the number of the operand, that takes its gradient."""
    versions: list[int]
    """Versions of the context's tensors."""
    dtype: torch.dtype
    """Dtype of the result."""


class JoinedOps:
    """Consecutive operations that run as one autograd function, if any of their inputs need gradients.

    Args:
        ops: the operations; :func:`can_join` must be true of each.
        last_read: for each operation, the values that no later operation reads.
        later: the values that are read after the segment.
    """

    def __init__(
        self, ops: Sequence[ir.Operation], last_read: Sequence[tuple[str, ...]], later: Collection[str]
    ) -> None:
        self._ops, self._last_read = ops, last_read
        self.reads, self.writes = _ends(ops, later)
        self._calls = [CALLS[type(op)] for op in ops]
        self._held = frozenset(op.out for op in ops if _reads_result(op))
        self._sources: dict[int, tuple[str | int | None, ...]] = {}
        """By an operation's place, for its arguments the values and the numbers of operands that they are."""
        operands = [operands_of(op) for op in ops]
        is_kept = all(isinstance(one, nn.Parameter | None) for of_op in operands for one in of_op)
        self._operands = operands if is_kept else None
        """All operands, if they are whole parameters."""

    def run(self, run: BatchRun) -> None:
        """Compute the values of the operations, and forget those that no later operation reads."""
        operands = self._operands or [operands_of(op) for op in self._ops]
        values = [run.values[name] for name in self.reads]
        flat = [one for of_op in operands for one in of_op]
        if _learns((*values, *flat)):
            outs = _Pass.apply(self, run, operands, *values, *flat)  # type: ignore[no-untyped-call]
            run.values.update(zip(self.writes, outs, strict=True))
        else:
            self.forward(run, operands, set(), None)

    def forward(
        self,
        run: BatchRun,
        operands: Sequence[tuple[Tensor | None, ...]],
        needing: set[str | int],
        steps: list[_CalledOp] | None,
    ) -> None:
        """Run the operations without autograd.

        Args:
            run: the run, whose values are read and written.
            operands: :func:`operands_of` each operation.
            needing: names of values, and numbers of operands, that need gradients; results are entered.
            steps: receives the calls that backward needs. None if there is no backward.
        """
        number, is_half = 0, run.is_half
        for place, (op, of_op, last_read) in enumerate(
            zip(self._ops, map(narrowed, operands) if is_half else operands, self._last_read, strict=True)
        ):
            if is_half:
                dtypes = {run.values[value].dtype for value in op.inputs}
                if type(op) is ir.Aggregate and (len(dtypes) > 1 or has_coefficients(op)):
                    run.widen(op)
            run.draw_for(op)
            function, *arguments = self._calls[place](op, run, *of_op)
            if place not in self._sources:  # the first run finds them for all later ones
                known: dict[int, str | int] = {id(one): number + i for i, one in enumerate(of_op)}
                known |= {id(run.values[value]): value for value in op.inputs}
                self._sources[place] = tuple(
                    known.get(id(one)) if isinstance(one, Tensor) else None for one in arguments
                )
            number += len(of_op)
            sources = self._sources[place]
            context = CallContext([source in needing for source in sources])
            context.holds_rows = op.inputs[0] in run.features or op.inputs[0] in self._held
            run.values[op.out] = function.forward(context, *arguments)
            if steps is not None and any(context.needs_input_grad):
                needing.add(op.out)
                versions = _versions(context)
                dtype = run.values[op.out].dtype
                steps.append(_CalledOp(op.out, function, context, sources, versions, dtype))
            del arguments
            for value in last_read:
                del run.values[value]


_MAKES_GRADIENTS = frozenset({LinearFunction, AggregateLinearFunction})
"""Functions whose gradients of rows are new memory, no view of the incoming gradient."""


def _versions(context: CallContext) -> list[int]:
    """Return versions of the tensors kept for backward; inference tensors have none."""
    return [0 if one.is_inference() else one._version for one in context.saved_tensors if one is not None]


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        segment: JoinedOps,
        run: BatchRun,
        operands: Sequence[tuple[Tensor | None, ...]],
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        needs, num_values = ctx.needs_input_grad[3:], len(segment.reads)
        needing: set[str | int] = {one for one, need in zip(segment.reads, needs, strict=False) if need}
        needing |= {place for place, need in enumerate(needs[num_values:]) if need}
        ctx.segment, ctx.num_operands, ctx.steps = segment, len(tensors) - num_values, []
        # A parameter's data may be replaced before backward, which must read the old data.
        operands = [tuple(None if one is None else one.detach() for one in of_op) for of_op in operands]
        segment.forward(run, operands, needing, ctx.steps)
        # Other objects than backward keeps, since the results refer to this context.
        outs = tuple(run.values[value].detach() for value in segment.writes)
        ctx.mark_non_differentiable(
            *(out for value, out in zip(segment.writes, outs, strict=True) if value not in needing)
        )
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.steps is None:
            raise RuntimeError(FREED)
        steps, keeps_graph = list(ctx.steps), torch._C._autograd._get_current_graph_task_keep_graph()
        if not keeps_graph:
            ctx.steps = None  # each step is freed as soon as it is done
        segment: JoinedOps = ctx.segment
        held: dict[str | int, Tensor] = {
            value: grad for value, grad in zip(segment.writes, grads, strict=True) if grad is not None
        }
        own = set[str | int]()
        """Values whose gradients lie in memory of their own, which only their operation reads."""
        while steps:
            step = steps.pop()
            if step.value not in held:
                continue
            context = step.context
            if _versions(context) != step.versions:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace "
                    f"operation: a tensor that {step.value} was computed from, or {step.value} itself"
                )
            context.gives_up, context.owns_gradient = not keeps_graph, step.value in own
            found = _raw_backward(step.function)(context, rows_as(held.pop(step.value), step.dtype))
            for source, needed, of_source in zip(step.sources, context.needs_input_grad, found, strict=True):
                if needed and of_source is not None:
                    before = held.get(source)
                    held[source] = of_source if before is None else before + of_source
                    if before is not None or step.function in _MAKES_GRADIENTS:
                        own.add(source)
            del found, of_source, context, step
        of_values = [held.get(value) for value in segment.reads]
        return None, None, None, *of_values, *(held.get(number) for number in range(ctx.num_operands))


@functools.cache
def _raw_backward(function: Any) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return a function's ``backward`` without its check for second derivatives, which the segment makes."""
    raw: Callable[..., tuple[Tensor | None, ...]] = getattr(
        function.backward, "__wrapped__", function.backward
    )
    return raw


Parts = list[tuple["NativeSegment | JoinedOps | ir.Operation", tuple[str, ...]]]
"""Segments, and operations by themselves, with the values that nothing after each one reads."""


def segments_of(
    ops: Sequence[ir.Operation],
    last_read: Sequence[tuple[str, ...]],
    output: str,
    widths: Callable[[str], int],
) -> Parts:
    """Divide a program's operations into segments, and operations that run by themselves.

    Args:
        ops: the operations.
        last_read: for each operation, the values that no later operation reads.
        output: the value that the program returns.
        widths: gives a value's number of columns.
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


def _ends(ops: Sequence[ir.Operation], later: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the values that operations read from before, and those that are read after them."""
    made = {op.out for op in ops}
    read = (value for op in ops for value in op.inputs)
    reads = tuple(dict.fromkeys(value for value in read if value not in made))
    return reads, tuple(op.out for op in ops if op.out in later)


def _learns(tensors: Collection[Tensor | None]) -> bool:
    """Return whether autograd records operations on these tensors."""
    records = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    return records and any(one is not None and one.requires_grad for one in tensors)


_KINDS: dict[type[ir.Operation], int] = {
    ir.AggregateLinear: 0,
    ir.Aggregate: 1,
    ir.Linear: 2,
    ir.LinearSum: 2,
    ir.Epilogue: 3,
    ir.DestinationRows: 4,
    ir.Add: 5,
    ir.AlongRow: 6,
    ir.Messages: 10,
    ir.Gine: 11,
}
_ATTENTIONS, _DOT = {"gat": 7, "gatv2": 8}, 9
"""Numbers of the kinds in ``segment.cpp``; those of attentions by their own kind."""
_FLOAT32, _PLAIN = torch.float32, (Tensor, nn.Parameter)
_EDGES = ir.AdjacencyMatrix(kind="sum")
"""The edges of an attention or of messages, without coefficients."""
_ENDS = ir.ReadRows.SOURCE, ir.ReadRows.DESTINATION
FREED = """Trying to backward through the graph a second time: what backward reads has been freed. \
Specify retain_graph=True in the first backward pass if there is to be a second one."""


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
        self._reads, self.writes = _ends(ops, later)
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
        self._messages = [
            (op, {role for _, role, _ in op.reads})
            for op in ops
            if isinstance(op, ir.Messages) and _dot_products_of(op) is None
        ]
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
        outs = self._outs(run, values, operands, learns=_learns((*values, *operands)))
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

        Args:
            run: the run.
            values: the rows of the values that are read.
            operands: the tensors of all operands.
            learns: whether any of these want gradients.
        """
        x = values[0]
        if run.is_half or watching() is not None:
            return None
        if x.dtype is not _FLOAT32 or not x.is_cpu or type(x) not in _PLAIN or counts_memory():
            return None
        kernels: Any = native.kernels()
        of_edges = [_of_edges(op, roles, run) for op, roles in self._messages]
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
        of_steps = {op.out for op, _ in self._messages}
        messages = [self._message_fields(op, at) for op, at in placed if op.out in of_steps]
        of_machine = rates.row_bytes, rates.stream_bytes, rates.multiply_flops
        writes = [self._number[value] for value in self.writes]
        counts = self._num_values, self._first_operand[-1]
        return kernels.Segment(fields, *counts, writes, of_machine, LEAKY_SLOPE, messages, self._views)

    def _fields(self, op: ir.Operation, first: int) -> list[tuple[Any, ...]]:
        """Return an operation's fields, in the order of ``segment.cpp``; -1 for a missing field.

        If edges are mapped for it, those of the map come first.
        """
        kind, after, key = type(op), _epilogue_of(op), -1
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
        elif isinstance(op, ir.Messages) and (found := _dot_products_of(op)) is not None:
            sources, destinations = (
                [op.inputs[place] for _, role, place in op.reads if role is end] for end in _ENDS
            )
            number, read = _DOT, (sources[found.value], destinations[found.query])
            key = self._number[sources[found.key]]
            how = found.scale, op.heads, False, False
        elif isinstance(op, ir.Messages):
            read = read[:1]  # see _message_fields
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
        needs_places = reads_edges or (isinstance(op, ir.Attention | ir.Messages) and _dropout_of(op) > 0)
        if isinstance(op, ir.Messages):
            dots = _dot_products_of(op) is not None and keeps_logits(edges.csc, op.heads, _FLOAT32.itemsize)
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
    op: ir.Messages, roles: Collection[ir.ReadRows], run: BatchRun
) -> tuple[Tensor | None, Tensor | None]:
    """Return the features and the weights of edges that messages read."""
    features = run.edge_attr(op, _FLOAT32) if ir.ReadRows.FEATURES in roles else None
    return features, run.edge_weight(op, _FLOAT32) if ir.ReadRows.WEIGHT in roles else None


def _dropout_of(op: ir.Operation) -> float:
    """Return the probability that an operation drops elements with; of an attention, coefficients."""
    if isinstance(op, ir.Messages):
        return 0.0 if op.attends is None else op.attends.dropout
    return op.dropout if isinstance(op, ir.Attention) else _epilogue_of(op).p


def _epilogue_of(op: ir.Operation) -> ir.Epilogue:
    """Return the epilogue that an operation is or applies; an empty one without any."""
    after = op.after if isinstance(op, ir.Following) else op
    return after if isinstance(after, ir.Epilogue) else _NOTHING


_NOTHING = ir.Epilogue(out="", inputs=("",))
