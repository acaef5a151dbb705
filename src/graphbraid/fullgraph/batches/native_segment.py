"""A segment in compiled code: one call of it for the forward pass on a small batch, and one for the backward.

On small batches Python and the calls between kernels take most of a step. The compiled segment runs the same
kernels in the same order as :class:`.JoinedOps`, so the bits are the same. JoinedOps runs larger batches,
other dtypes and devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid import native
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.batches.edges import LevelEdges, map_fields
from graphbraid.machine.rates import Rates
from graphbraid.ops.dropout import row_ids, seed_of_call
from graphbraid.ops.epilogue import ACTIVATION_CODES, LEAKY_SLOPE
from graphbraid.ops.kernels import LEAST_POOLED, counts_memory, new_rows, row_contiguous, watching
from graphbraid.ops.library import once_differentiable

if TYPE_CHECKING:
    from graphbraid.fullgraph.batches.operations import BatchRun

_KINDS: dict[type[ir.Operation], int] = {
    ir.AggregateLinear: 0,
    ir.Aggregate: 1,
    ir.Linear: 2,
    ir.LinearSum: 2,
    ir.Epilogue: 3,
    ir.DestinationRows: 4,
    ir.Add: 5,
}
"""Numbers of the kinds in ``segment.cpp``."""
_FLOAT32, _PLAIN = torch.float32, (Tensor, nn.Parameter)
FREED = """Trying to backward through the graph a second time: what backward reads has been freed. \
Specify retain_graph=True in the first backward pass if there is to be a second one."""


class NativeSegment:
    """Runs a segment's operations on small batches of float32.

    Args:
        ops: the operations.
        reads: the values that they read from before.
        writes: the values that are read after them.
        num_operands: the number of each one's operands.
        widths: number of columns of each value.
    """

    def __init__(
        self,
        ops: Sequence[ir.Operation],
        reads: Sequence[str],
        writes: Sequence[str],
        num_operands: Sequence[int],
        widths: Callable[[str], int],
    ) -> None:
        self._ops, self._reads, self.writes = ops, reads, writes
        values = *reads, *(op.out for op in ops)
        self._number = {value: number for number, value in enumerate(values)}
        self._first_operand = [0, *accumulate(num_operands)]
        self._widths = {value: widths(value) for value in values}
        self._row_bytes = 4 * max(self._widths.values())
        self._moving = [op for op in ops if isinstance(op, ir.AggregateLinear | ir.Aggregate)]
        self._edges = {op.out: number for number, op in enumerate(self._moving)}
        self._first_rows = [op for op in ops if type(op) is ir.DestinationRows]
        self._dropping = [op for op in ops if _epilogue_of(op).p > 0]
        self._made: Any = None

    def outs(
        self,
        run: BatchRun,
        values: Sequence[Tensor],
        operands: Sequence[Tensor | None],
        *,
        learns: bool,
    ) -> Sequence[Tensor] | None:
        """Return the rows that are read after the segment; None if it cannot run here.

        Args:
            run: the run.
            values: the rows of the values that are read.
            operands: all operands, operation by operation.
            learns: whether any of these want gradients.
        """
        x, num_rows = values[0], sum(run.levels.sizes[0])
        if num_rows * self._row_bytes >= LEAST_POOLED or run.is_half or watching() is not None:
            return None
        if x.dtype is not _FLOAT32 or not x.is_cpu or type(x) not in _PLAIN or counts_memory():
            return None
        kernels: Any = native.kernels()
        if kernels is None or any(one.is_inference() for one in values):
            return None
        if self._made is None:
            self._made = self._compiled(kernels)
        edges = [run.edges(op) for op in self._moving]
        maps = [one.map_fields(op.adjacency) for one, op in zip(edges, self._moving, strict=True)]
        counts = [run.num_rows(op) for op in self._first_rows]
        outs = [new_rows(x, run.rows_of(value), self._widths[value]) for value in self.writes]
        held = [*values, *operands]
        if learns:
            # A parameter's data may be replaced before backward, which frees the memory that it had. `.data`
            # takes two thirds of the time of `detach()`; versions are those of the tensors themselves.
            held = [None if one is None else one.data for one in held]
        begun = self._made.begin(held[: len(values)], held[len(values) :], maps, counts, outs)
        if begun is None:
            return None
        draws = []
        for op in self._dropping:
            run.draw_for(op)
            draws.append((seed_of_call(), row_ids(run.num_rows(op))))
        if learns:
            found: Sequence[Tensor] = _NativePass.apply(self, begun, edges, draws, outs, *values, *operands)  # type: ignore[no-untyped-call]
            return found
        begun.forward(draws, [False] * len(values), [False] * len(operands))
        return outs

    def _compiled(self, kernels: Any) -> Any:
        rates = Rates()
        fields = [self._fields(op, first) for op, first in zip(self._ops, self._first_operand, strict=False)]
        of_machine = rates.row_bytes, rates.stream_bytes, rates.multiply_flops
        writes = [self._number[value] for value in self.writes]
        num_operands = self._first_operand[-1]
        return kernels.Segment(fields, len(self._reads), num_operands, writes, of_machine, LEAKY_SLOPE)

    def _fields(self, op: ir.Operation, first: int) -> tuple[Any, ...]:
        """Return an operation's fields, in the order of ``segment.cpp``; -1 for a missing field."""
        x, other = [*(self._number[value] for value in op.inputs), -1][:2]
        kind, after = type(op), _epilogue_of(op)
        weight, other_weight = (first if isinstance(op, ir.Linear | ir.LinearSum) else -1), -1
        if kind is ir.AggregateLinear or kind is ir.LinearSum:
            other_weight = first + 1
        has_bias = kind not in (ir.Aggregate, ir.DestinationRows, ir.Add)
        bias = first + (weight >= 0) + (other_weight >= 0) if has_bias else -1
        named = self._number[op.out], weight, other_weight, bias, self._edges.get(op.out, -1)
        return _KINDS[kind], x, other, *named, ACTIVATION_CODES[after.act], after.p

    def reversed(self, edges: LevelEdges, number: int) -> tuple[int, tuple[Any, ...]]:
        """Return the transpose of a map over all edges of a batch, which their Csc keeps, with its number."""
        adjacency: ir.AdjacencyMatrix = self._moving[number].adjacency
        how = edges.aggregation(adjacency, _FLOAT32).transposed(_FLOAT32)
        return number, map_fields(how, how.csc, how.csc.num_src, how.csc.num_dst, how.weight)


class _NativePass(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        segment: NativeSegment,
        begun: Any,
        edges: Sequence[LevelEdges],
        draws: Sequence[Any],
        outs: Sequence[Tensor],
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        needs, num_values = ctx.needs_input_grad[5:], len(segment._reads)
        reads, constant = begun.forward(draws, needs[:num_values], needs[num_values:])
        held: tuple[Any, ...] = (*tensors, *outs)
        ctx.versions = [(held[place], held[place]._version) for place in reads]
        ctx.segment, ctx.begun, ctx.edges = segment, begun, edges
        ctx.wanted = [one if need else None for one, need in zip(tensors, needs, strict=True)]
        # Other objects than backward keeps, since the results refer to this context.
        found = tuple(out.detach() for out in outs)
        if constant:
            ctx.mark_non_differentiable(*(found[place] for place in constant))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        begun, segment = ctx.begun, ctx.segment
        if begun is None:
            raise RuntimeError(FREED)
        for one, version in ctx.versions:
            if one._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace "
                    f"operation: a tensor that {segment.writes[-1]} was computed from, or a result"
                )
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.begun = None
        made = [None if one is None else torch.empty(one.shape, dtype=_FLOAT32) for one in ctx.wanted]
        given = [None if grad is None else row_contiguous(grad) for grad in grads]
        turned = [
            segment.reversed(ctx.edges[number], number)
            for number in begun.transposed_maps()
            if ctx.edges[number].is_whole
        ]
        for place in begun.backward(given, turned, made):
            made[place] = None
        return None, None, None, None, None, *made


def _epilogue_of(op: ir.Operation) -> ir.Epilogue:
    """Return the epilogue that an operation is or applies; an empty one without any."""
    after = op.after if isinstance(op, ir.Following) else op
    return after if isinstance(after, ir.Epilogue) else _NOTHING


_NOTHING = ir.Epilogue(out="", inputs=("",))
