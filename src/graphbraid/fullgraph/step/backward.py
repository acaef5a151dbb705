"""Planning of the backward pass: the tasks of each operation's adjoint, in reverse program order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from graphbraid.fullgraph.program import (
    WHOLE,
    Add,
    Aggregate,
    Attention,
    Combine,
    Concat,
    Epilogue,
    Exchange,
    Following,
    Gine,
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
from graphbraid.fullgraph.step.calls.rows import FirstRows, Read, add, copy, tensor_of
from graphbraid.fullgraph.step.planned.combine import backward_combine, backward_concat, backward_largest
from graphbraid.fullgraph.step.planned.epilogues import plan_epilogue_backward
from graphbraid.fullgraph.step.planned.exchanges.exchange import backward_exchange
from graphbraid.fullgraph.step.planned.functions import backward_function, backward_prelu
from graphbraid.fullgraph.step.planned.gine import backward_gine
from graphbraid.fullgraph.step.planned.learned import backward_learned
from graphbraid.fullgraph.step.planned.maximum import backward_maximum
from graphbraid.fullgraph.step.planned.small_rows import backward_scale, backward_unit_rows
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.linear import tall_gram, tall_product


def plan_backward(plan: StepPlan) -> None:
    """Plan the adjoints of all operations with gradients, starting from the output's gradient."""
    for op in reversed(plan.program.ops):
        plan.planning = op.out
        if plan.program.learns(op.out):
            _PLANS[type(op)](plan, op)
            plan.tell_of_whole(op)


def _linear(plan: StepPlan, op: Linear) -> None:
    if op.out in plan.ahead.gone_back | plan.ahead.first_back:  # planned while the halo's gradients travel
        return
    grad, source = plan.grads[op.out], op.inputs[0]
    _before(plan, op)
    if len(op.inputs) == 2:
        plan.pass_on(op, op.inputs[1])
    _weight(plan, op, grad)
    plan.tell_of_whole(op)
    if plan.program.learns(source):
        target, is_there = plan.grad_of(source)

        def run() -> None:
            tall_product(grad.tensor, op.matrix(), out=target.tensor, add=is_there)

        plan.repeat(f"gradient of {source}", run, grad, target)


def _weight(plan: StepPlan, op: Linear, grad: FirstRows) -> None:
    if not any(p.requires_grad for p in (op.weight, *(() if op.mixed is None else (op.mixed,)))):
        return
    name = f"gradient of {op.out}'s weight"
    factor = plan.factor_of(op.inputs[0])
    if op.view == WHOLE and (factor is None or plan.is_one_call(op.inputs[0])):
        _whole_weight(plan, op, name, grad)
        return
    if factor is not None:
        form, turned = factor, plan.turned_weight(op)

        def multiply() -> None:
            out = _matrix_for(plan, op)
            form().weight_grad(grad.tensor, out, turned=tensor_of(turned))
            _give_weight(plan, op, out)

        plan.do(name, multiply, grad, *turned)
        return
    x = plan.read(op.inputs[0])
    plan.do(
        name,
        lambda: _give_weight(plan, op, tall_gram(grad.tensor, x.get(), out=_matrix_for(plan, op))),
        grad,
        *x.touches,
    )


def _whole_weight(plan: StepPlan, op: Linear, name: str, grad: FirstRows) -> None:
    """Plan one kernel call that writes the gradient of a weight used as it is."""
    factor = plan.factor_of(op.inputs[0])
    if factor is not None:
        form = factor
        plan.repeat(name, lambda out: form().weight_grad(grad.tensor, out), grad, gradient_of=op.weight)
        return
    x = plan.read(op.inputs[0])

    def run(out: Tensor) -> None:
        tall_gram(grad.tensor, x.get(), out=out)

    plan.repeat(name, run, grad, *x.touches, gradient_of=op.weight)


def _matrix_for(plan: StepPlan, op: Linear) -> Tensor:
    """Return memory for the gradient of ``op``'s matrix; the weight's own if the matrix is all of it."""
    return plan.lend(op.weight) if op.view == WHOLE else op.weight.new_empty(op.shape)


def _give_weight(plan: StepPlan, op: Linear, grad: Tensor) -> None:
    if op.mixed is not None:
        found = zip((op.weight, op.mixed), op.mixed_gradients(grad), strict=True)
        for parameter, its in found:
            if parameter.requires_grad:
                plan.give(parameter, its)
    elif op.view == WHOLE:
        plan.give(op.weight, grad)
    else:
        plan.give_part(op.weight, op.view, grad)


def _aggregate(plan: StepPlan, op: Aggregate) -> None:
    grad, source = plan.grads[op.out], op.inputs[0]
    _before(plan, op)
    plan.tell_of_whole(op)
    if len(op.inputs) == 2:
        plan.pass_on(op, op.inputs[1])
    if not plan.program.learns(source):
        return
    if source in plan.overlapped:
        plan.overlapped[source].plan_backward(grad)
        return
    how = plan.aggregation(op)
    given = plan.rounded(op, Read(lambda: grad.tensor, (grad,)))
    target, is_there = plan.grad_of(source)

    def run() -> None:
        kernels.aggregate_backward(how, given.get(), target.tensor, target.tensor if is_there else None)

    plan.repeat(f"gradient of {source}", run, target, *given.touches)


def _own(plan: StepPlan, op: Own) -> None:
    """Plan nothing: the gradient is a prefix of the source's, and was written there."""


def _add(plan: StepPlan, op: Add) -> None:
    for value in op.inputs:
        plan.pass_on(op, value)


def _epilogue(plan: StepPlan, op: Epilogue) -> None:
    grad, source = plan.grads[op.out], op.inputs[0]
    alone = len(plan.program.consumers(source)) == 1 and source not in plan.grads
    in_place = alone and not isinstance(plan.program.producer(source), Own)
    if in_place:
        target = plan.grads[source] = grad
    else:
        target = plan.scratch(f"gradient through {op.out}", grad.count, grad.buffer.shape[1])
    plan_epilogue_backward(plan, op, grad, target)
    if not in_place and plan.program.learns(source):
        total, is_there = plan.grad_of(source)
        join = add if is_there else copy
        plan.do(f"gradient of {source}", lambda: join(target.tensor, total.tensor), target, total)


def _before(plan: StepPlan, op: Following) -> None:
    """Plan to turn the gradient of ``op``'s fused epilogue into that of its own rows, in place."""
    if op.after is not None:
        grad = plan.grads[op.out]
        plan_epilogue_backward(plan, op.after, grad, grad)


def _normalise(plan: StepPlan, op: Normalise) -> None:
    plan.norms[op.out].plan_backward()


def _attention(plan: StepPlan, op: Attention) -> None:
    plan.attentions[op.out].plan_backward()


def _module(plan: StepPlan, op: Module) -> None:
    grad, torch_op, source = plan.grads[op.out], plan.torch_ops[op.out], op.inputs[0]
    target, is_there = plan.grad_of(source) if plan.program.learns(source) else (None, False)
    join = add if is_there else copy

    def run() -> None:
        to_input, to_parameters = torch_op.backward(grad.tensor)
        if target is not None:
            join(to_input, target.tensor)
        for parameter, gradient in zip(op.parameters(), to_parameters, strict=True):
            plan.give(parameter, gradient)

    written = () if target is None else (target,)
    plan.do(f"gradient of {source}", run, grad, *plan.read(source).touches, *written)


_PLANS: dict[type[Operation], Callable[[StepPlan, Any], None]] = {
    Linear: _linear,
    Aggregate: _aggregate,
    Own: _own,
    Learned: backward_learned,
    Add: _add,
    Epilogue: _epilogue,
    Normalise: _normalise,
    Attention: _attention,
    Module: _module,
    Exchange: backward_exchange,
    Maximum: backward_maximum,
    Gine: backward_gine,
    Scale: backward_scale,
    Combine: backward_combine,
    Concat: backward_concat,
    Largest: backward_largest,
    RowFunction: backward_function,
    Prelu: backward_prelu,
    UnitRows: backward_unit_rows,
}
