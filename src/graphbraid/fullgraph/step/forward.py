"""Planning of the forward pass: the tasks that compute each operation's value, in program order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphbraid.fullgraph.program import (
    Add,
    Aggregate,
    Attention,
    Combine,
    Concat,
    Epilogue,
    Exchange,
    Gine,
    Hoisted,
    Largest,
    Learned,
    Linear,
    Maximum,
    Module,
    Normalise,
    Operation,
    Own,
    Prelu,
    RowFunction,
    Scale,
    UnitRows,
)
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.rows import FirstRows, add, copy, tensor_of
from graphbraid.fullgraph.step.planned.attention.gat import plan_attention
from graphbraid.fullgraph.step.planned.combine import forward_combine, forward_concat, forward_largest
from graphbraid.fullgraph.step.planned.epilogues import after_of, mask_of, seed_of
from graphbraid.fullgraph.step.planned.exchanges.early_rows import early_chains
from graphbraid.fullgraph.step.planned.exchanges.exchange import depart_early, forward_exchange
from graphbraid.fullgraph.step.planned.functions import forward_function, forward_prelu
from graphbraid.fullgraph.step.planned.gine import forward_gine
from graphbraid.fullgraph.step.planned.hoisted import forward_hoisted
from graphbraid.fullgraph.step.planned.learned import forward_learned
from graphbraid.fullgraph.step.planned.maximum import forward_maximum
from graphbraid.fullgraph.step.planned.norm import plan_norm
from graphbraid.fullgraph.step.planned.small_rows import forward_scale, forward_unit_rows
from graphbraid.fullgraph.step.planned.torch_ops import TorchOp
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.linear import tall_product


def plan_forward(plan: StepPlan) -> None:
    """Plan the forward tasks of every operation."""
    chains = early_chains(plan)
    for op in plan.program.ops:
        plan.planning = op.out
        if op.out in chains:
            depart_early(plan, *chains[op.out])
        _PLANS[type(op)](plan, op)


def _linear(plan: StepPlan, op: Linear) -> None:
    out, adds, (after, seed) = _result(plan, op), len(op.inputs) == 2, after_of(plan, op)
    factor = plan.factor_of(op.inputs[0])
    if factor is not None:
        form, turned = factor, plan.turned_weight(op)

        def multiply() -> None:
            form().multiply(op.matrix(), out.tensor, add=adds, turned=tensor_of(turned), after=after(out))

        if plan.is_one_call(op.inputs[0]):
            plan.repeat(op.out, multiply, out, seed=seed)
        else:
            plan.do(op.out, multiply, out, *turned)
        return
    x = plan.read(op.inputs[0])

    def run() -> None:
        tall_product(x.get(), op.matrix().t(), out=out.tensor, add=adds, after=after(out))

    plan.repeat(op.out, run, out, *x.touches, seed=seed)


def _aggregate(plan: StepPlan, op: Aggregate) -> None:
    overwrites = len(op.inputs) == 2 and plan.may_overwrite(op.inputs[1])
    out = plan.values[op.out] = plan.values[op.inputs[1]] if overwrites else plan.new(op.out, op)
    after, seed = after_of(plan, op)
    addends = [plan.read(addend) for addend in op.inputs[1:]]
    if op.inputs[0] in plan.overlapped:
        plan.overlapped[op.inputs[0]].plan_forward(out, addends, after, seed)
        return
    how, x = plan.aggregation(op), plan.rounded(op, plan.read(op.inputs[0]))

    def run() -> None:
        kernels.aggregate(how, x.get(), out.tensor, addends[0].get() if addends else None, after(out))

    touches = (*x.touches, *(rows for addend in addends for rows in addend.touches))
    plan.repeat(op.out, run, out, *touches, seed=seed)


def _add(plan: StepPlan, op: Add) -> None:
    out = _result(plan, op)
    first = plan.read(op.inputs[0])
    plan.do(op.out, lambda: add(first.get(), out.tensor), out, *first.touches)


def _result(plan: StepPlan, op: Operation) -> FirstRows:
    """Return the rows that ``op`` adds into: its second input if nothing else reads that, or a copy of it."""
    if len(op.inputs) < 2:
        plan.values[op.out] = plan.new(op.out, op)
    elif plan.may_overwrite(op.inputs[1]):
        plan.values[op.out] = plan.values[op.inputs[1]]
    else:
        out = plan.values[op.out] = plan.new(op.out, op)
        addend = plan.read(op.inputs[1])
        plan.do(f"{op.out}: copy", lambda: copy(addend.get(), out.tensor), out, *addend.touches)
    return plan.values[op.out]


def _own(plan: StepPlan, op: Own) -> None:
    source, count = op.inputs[0], plan.count_of(op.out)
    if plan.streams is not None and op.out in plan.streams:  # its first rows
        return
    if source in plan.program.inputs:
        plan.constants[op.out] = plan.features_of(source).rows_of(plan.program.level(op.out))
    elif source in plan.constants:
        plan.constants[op.out] = plan.constants[source].first(count)
    else:
        plan.values[op.out] = FirstRows(plan.values[source].buffer, count)


def _epilogue(plan: StepPlan, op: Epilogue) -> None:
    source, mask = op.inputs[0], mask_of(plan, op)
    x = plan.read(source)
    out = plan.values[source] if plan.may_overwrite(source) else plan.new(op.out, op)
    plan.values[op.out] = out

    def run() -> None:
        kernels.epilogue(x.get(), op.bias_row(), op.act, mask(), out.tensor)

    plan.repeat(op.out, run, out, *x.touches, seed=seed_of(plan, op, mask))


def _normalise(plan: StepPlan, op: Normalise) -> None:
    plan.norms[op.out] = plan_norm(plan, op)


def _attention(plan: StepPlan, op: Attention) -> None:
    plan.attentions[op.out] = plan_attention(plan, op)


def _module(plan: StepPlan, op: Module) -> None:
    x = plan.read(op.inputs[0])
    out = plan.values[op.out] = plan.new(op.out, op)
    torch_op = plan.torch_ops[op.out] = TorchOp(op.module, op.parameters(), keep_graph=plan.training)
    plan.do(op.out, lambda: copy(torch_op.forward(x.get()), out.tensor), out, *x.touches)


_PLANS: dict[type[Operation], Callable[[StepPlan, Any], None]] = {
    Linear: _linear,
    Aggregate: _aggregate,
    Own: _own,
    Add: _add,
    Epilogue: _epilogue,
    Hoisted: forward_hoisted,
    Learned: forward_learned,
    Normalise: _normalise,
    Attention: _attention,
    Module: _module,
    Exchange: forward_exchange,
    Maximum: forward_maximum,
    Gine: forward_gine,
    Scale: forward_scale,
    Combine: forward_combine,
    Concat: forward_concat,
    Largest: forward_largest,
    RowFunction: forward_function,
    Prelu: forward_prelu,
    UnitRows: forward_unit_rows,
}
