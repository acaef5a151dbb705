"""The tasks of learned rows of nodes, in the arena: a level's rows are copied, and their gradients given."""

from __future__ import annotations

from graphbraid.fullgraph.program import Learned
from graphbraid.fullgraph.step.step_plan import StepPlan


def forward_learned(plan: StepPlan, op: Learned) -> None:
    """Plan the task that copies the rows of the value's nodes."""
    out = plan.values[op.out] = plan.new(op.out, op)
    nodes = plan.nodes_of(op.out)

    def run() -> None:
        rows = op.table.detach()
        out.tensor.copy_(rows if nodes is None else rows.index_select(0, nodes))

    plan.do(op.out, run, out)


def backward_learned(plan: StepPlan, op: Learned) -> None:
    """Plan the table's gradient: that of the value's rows, and 0 for nodes that the level does not hold."""
    if not op.table.requires_grad:
        return
    grad, nodes = plan.grads[op.out], plan.nodes_of(op.out)

    def run() -> None:
        whole = plan.lend(op.table)
        if nodes is None:
            whole.copy_(grad.tensor)
        else:
            whole.zero_().index_copy_(0, nodes, grad.tensor)
        plan.give(op.table, whole)

    plan.do(f"gradient of {op.out}'s rows", run, grad)


__all__ = ["backward_learned", "forward_learned"]
