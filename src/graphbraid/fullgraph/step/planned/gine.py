"""The tasks of GINE's rectified sums, in the arena.

If the edge features go through a linear map, the mapped rows are computed in every step and stored for
backward, which overwrites them with their gradients; the node rows' gradients are sums of those. Without a
map, the graph's edge features are used in place, and backward computes the signs of the terms again.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from graphbraid.fullgraph.program import INPUT, Gine
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.rows import FirstRows
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.kernels import backend, row_contiguous
from graphbraid.ops.linear import tall_gram, tall_product


def forward_gine(plan: StepPlan, op: Gine) -> None:
    """Plan the tasks that compute the mapped edge rows, if there is a map, and the value."""
    level = plan.program.level(op.inputs[0])
    csc, features = plan.blocks[level].of(None).csc, plan.features_of(INPUT).edges
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
    """Plan the gradients of the edge features' map, in place of the mapped rows, and of the input's rows."""
    source, grad = op.inputs[0], plan.grads[op.out]
    csc = plan.blocks[plan.program.level(source)].of(None).csc
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
    """Return a getter of the edge rows, to be called while a task runs."""
    mapped, features = plan.kept.get(op.out), plan.features_of(INPUT).edges
    level = plan.program.level(op.inputs[0])
    return (lambda: features.rows(level)) if mapped is None else (lambda: mapped.tensor)


def _give_map(plan: StepPlan, op: Gine, to_edges: FirstRows) -> None:
    """Plan the gradients of the map's weight and bias from those of the mapped rows."""
    features, level = plan.features_of(INPUT).edges, plan.program.level(op.inputs[0])
    weight, bias = op.weight, op.bias

    def run() -> None:
        rows = to_edges.tensor
        if weight is not None and weight.requires_grad:
            plan.give(weight, tall_gram(rows, features.rows(level), out=plan.lend(weight)))
        if bias is not None and bias.requires_grad:
            into = plan.lend(bias)
            # Overwrites the rows with themselves; its sums do not depend on the number of threads.
            kernels.epilogue_backward(rows, rows, "none", kernels.Mask(0.0), rows, into)
            plan.give(bias, into)

    plan.do(f"gradient of {op.out}'s map of edges", run, to_edges)


__all__ = ["backward_gine", "forward_gine"]
