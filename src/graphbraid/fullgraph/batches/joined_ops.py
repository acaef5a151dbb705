"""Consecutive operations of a program that run on a batch as one autograd function.

PyTorch's graph has one node for them in place of one for each operation. Forward and backward call the
operators of :mod:`graphbraid.ops` without checks of arguments, since these hold for every batch of a program.
Backward gives memory back after its last use.

In bfloat16 the products round their factors and results, as PyTorch's do under autocast. Sums add in float32;
those with coefficients, which are float32, keep that dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from graphbraid.fullgraph import program as ir
from graphbraid.ops.epilogue import ACTIVATION_CODES, EpilogueFunction
from graphbraid.ops.library import AnySeed, CallContext, once_differentiable
from graphbraid.ops.linear import AggregateLinearFunction, LinearFunction, rows_as
from graphbraid.ops.rng import seed_of_call
from graphbraid.ops.spmm import SpmmFunction

if TYPE_CHECKING:
    from graphbraid.fullgraph.batches.operations import BatchRun

OpCall = tuple[Any, ...]
"""An autograd function, and its arguments."""
CALLS: dict[type[ir.Operation], Callable[..., OpCall]] = {}
"""The call that an operation of each class makes, from the operation, the run and :func:`operands_of` it."""
FREED = """Trying to backward through the graph a second time: what backward reads has been freed. \
Specify retain_graph=True in the first backward pass if there is to be a second one."""
_NOTHING = ir.Epilogue(out="", inputs=("",))


def operands_of(op: ir.Operation, *, whole: bool = False) -> tuple[Tensor | None, ...]:
    """Return the matrices and the bias of an operation, as autograd sees them.

    If ``whole``, a matrix of a stack, or a transposed one, comes as its whole parameter.
    """
    if isinstance(op, ir.Messages):
        return op.operands()
    if isinstance(op, ir.Attention):
        return *op.vectors, op.edge_weight, op.edge_vector
    if isinstance(op, ir.Gine):
        return op.weight, op.bias
    matrices = (
        None if term is None else term.weight if whole and is_part(term) else term.matrix(learns=True)
        for term in terms_of(op)
    )
    return *matrices, epilogue_of(op).added()


def epilogue_of(op: ir.Operation) -> ir.Epilogue:
    """Return the epilogue that an operation is or applies; an empty one without any."""
    after = op.after if isinstance(op, ir.Following) else op
    return after if isinstance(after, ir.Epilogue) else _NOTHING


def terms_of(op: ir.Operation) -> tuple[ir.Linear | None, ...]:
    """Return the products of an operation; None for one that an aggregation does not have."""
    if isinstance(op, ir.AggregateLinear):
        return op, op.root
    return op.terms if isinstance(op, ir.LinearSum) else (op,) if isinstance(op, ir.Linear) else ()


def is_part(term: ir.Linear) -> bool:
    """Return whether a product reads a parameter, or a matrix of a stack, as it is or transposed."""
    plain = replace(term.view, at=(), turned=False) == ir.WHOLE and term.mixed is None and not term.also
    return plain and len(term.view.at) == term.weight.ndim - 2 <= 1


def can_join(op: ir.Operation) -> bool:
    """Return whether an operation can be part of a segment."""
    if isinstance(op, ir.Epilogue):
        return op.act in ACTIVATION_CODES and not (op.bias is None and op.act == "none" and op.p == 0)
    return type(op) in CALLS and not (type(op) is ir.Linear and len(op.inputs) > 1)


def has_coefficients(op: ir.Operation) -> bool:
    """Return whether an operation multiplies rows by coefficients of edges or nodes before it adds them."""
    if not isinstance(op, ir.AggregateLinear | ir.Aggregate):
        return False
    return op.adjacency.weighted or op.adjacency.kind not in ("sum", "mean")


def narrowed(operands: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Return :func:`operands_of` an operation as products in bfloat16 read them: all but the bias rounded."""
    *matrices, bias = operands
    return *(None if one is None else one.to(torch.bfloat16) for one in matrices), bias


def _following(op: ir.Operation) -> tuple[int, float, AnySeed]:
    """Return activation code, dropout probability and seed of :func:`epilogue_of` an operation."""
    after = epilogue_of(op)
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
    return EpilogueFunction, run.read(op), bias, *_following(op), run.may_overwrite(op)


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
        self.reads, self.writes = ends_of(ops, later)
        self._calls = [CALLS[type(op)] for op in ops]
        self._held = frozenset(op.out for op in ops if epilogue_of(op).act != "none")
        """Results that backward reads: an activation's slope follows from them."""
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
        if any_learns((*values, *flat)):
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

        ``operands`` are :func:`operands_of` each operation. ``needing`` has the names of values, and numbers
        of operands, that need gradients; results are entered. ``steps`` receives the calls that backward
        needs; None if there is no backward.
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


def ends_of(ops: Sequence[ir.Operation], later: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the values that operations read from before, and those that are read after them."""
    made = {op.out for op in ops}
    read = (value for op in ops for value in op.inputs)
    reads = tuple(dict.fromkeys(value for value in read if value not in made))
    return reads, tuple(op.out for op in ops if op.out in later)


def any_learns(tensors: Collection[Tensor | None]) -> bool:
    """Return whether autograd records operations on these tensors."""
    records = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    return records and any(one is not None and one.requires_grad for one in tensors)
