"""GINE's rectified sums in the arena.

Edges' rows that are a linear map of the graph's are made in every step and kept for backward, which writes
their gradients over them; the rows' own then are sums of those. Edges' rows that nothing learns stay the
graph's, and backward computes the sums' signs again.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from graphbraid.fullgraph.program import Gine
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.rows import Rows
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.aggregation import backend, row_contiguous
from graphbraid.ops.dense import tall_gram, tall_product


def forward_gine(plan: StepPlan, op: Gine) -> None:
    """Plan the tasks that make the edges' rows, where they are mapped, and the value."""
    level = plan.program.level(op.inputs[0])
    csc, features = plan.blocks[level].csc, plan.features.edges
    x = plan.read(op.inputs[0])
    out = plan.values[op.out] = plan.new(op.out, op)
    weight, bias = op.weight, op.bias
    touches = [out, *x.touches]
    if weight is not None:
        mapped = plan.kept[op.out] = plan.scratch(f"{op.out}: edges", csc.num_edges, weight.shape[0])
        touches.append(mapped)

        def multiply() -> None:
            rows, into = features.rows(level), mapped.tensor
            after = kernels.row_epilogue(
                None if bias is None else bias.detach(), "none", kernels.Mask(0.0), into
            )
            tall_product(rows, weight.detach().t(), out=into, after=after)

        plan.do(f"{op.out}: edges", multiply, mapped)
    edges = _edges(plan, op)

    def run() -> None:
        rows = row_contiguous(x.get())
        num_loops = csc.num_dst if op.loop_scale != 0 else 0
        backend(rows).gine(csc.indptr, csc.indices, rows, edges(), op.loop_scale, num_loops, out.tensor)

    plan.do(op.out, run, *touches)


def backward_gine(plan: StepPlan, op: Gine) -> None:
    """Plan the gradients of the edges' map, over the edges' rows, and then of the input's rows."""
    source, grad = op.inputs[0], plan.grads[op.out]
    csc = plan.blocks[plan.program.level(source)].csc
    x, edges, mapped = plan.read(source), _edges(plan, op), plan.kept.get(op.out)
    learns = mapped is not None and any(p.requires_grad for p in op.parameters())
    if mapped is not None and learns:

        def run_edges() -> None:
            rows, into = row_contiguous(x.get()), mapped.tensor
            backend(rows).gine_edge_backward(csc.indptr, csc.indices, rows, into, grad.tensor, into)

        plan.do(f"gradient of {op.out}'s edges", run_edges, grad, mapped, *x.touches)
        _give_map(plan, op, mapped)
    if not plan.program.learns(source):
        return
    target, total = plan.part_of_grad(source)

    def run() -> None:
        reverse, perm = csc.transpose()
        rows = None if learns else row_contiguous(x.get())
        num_loops = csc.num_dst if op.loop_scale != 0 else 0
        backend(grad.tensor).gine_backward(
            reverse.indptr,
            reverse.indices,
            perm,
            grad.tensor,
            rows,
            edges(),
            op.loop_scale,
            num_loops,
            target.tensor,
        )

    read = (grad, target, *x.touches, *(() if mapped is None else (mapped,)))
    plan.do(f"gradient of {source}", run, *read)
    plan.add_part(source, target, total)


def _edges(plan: StepPlan, op: Gine) -> Callable[[], Tensor]:
    """Gives the edges' rows as a task runs."""
    mapped, features, level = plan.kept.get(op.out), plan.features.edges, plan.program.level(op.inputs[0])
    return (lambda: features.rows(level)) if mapped is None else (lambda: mapped.tensor)


def _give_map(plan: StepPlan, op: Gine, to_edges: Rows) -> None:
    """Plan the gradients of the edges' weight and bias from those of their rows."""
    features, level = plan.features.edges, plan.program.level(op.inputs[0])
    weight, bias = op.weight, op.bias

    def run() -> None:
        rows = to_edges.tensor
        if weight is not None and weight.requires_grad:
            plan.give(weight, tall_gram(rows, features.rows(level), out=plan.lend(weight)))
        if bias is not None and bias.requires_grad:
            into = plan.lend(bias)
            # Writes the rows over themselves; its sums do not depend on threads.
            kernels.epilogue_backward(rows, rows, "none", kernels.Mask(0.0), rows, into)
            plan.give(bias, into)

    plan.do(f"gradient of {op.out}'s map of edges", run, to_edges)


__all__ = ["backward_gine", "forward_gine"]
