"""What edges' features add to the rows that GATv2's logits are made of.

The kernels map an edge's features wherever they need them, some edges at a time: no row of an edge is kept.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphbraid.fullgraph.program import Attention
from graphbraid.fullgraph.step.planned.attended_edges import AttendedEdges
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.graph.csc import Csc


class EdgeMap:
    """The features and the map of one attention, as its kernels take them, and the map's gradient.

    Args:
        plan: of the step.
        op: of GATv2; reads edges.
        csc: the edges that it walks.
    """

    def __init__(self, plan: StepPlan, op: Attention, csc: Csc) -> None:
        assert op.edge_weight is not None
        self._plan, self._weight = plan, op.edge_weight
        self._edges = AttendedEdges(plan, op, csc)

    def arguments(self) -> dict[str, Any]:
        """What the kernels read, forward and backward."""
        edges, weight = self._edges, self._weight.detach()
        loops = edges.loops() if edges.num_loops else weight.new_empty(1, weight.shape[1])
        return {
            "edge_features": edges.rows(),
            "loop_features": loops.expand(edges.num_loops, -1),
            "edge_weight": weight.t().contiguous(),
        }

    def new_gradient(self) -> Tensor | None:
        """What the backward kernel writes the map's gradient to; None where it does not learn."""
        weight = self._weight.detach()
        return weight.new_empty(weight.shape[::-1]) if self._weight.requires_grad else None

    def give(self, gradient: Tensor | None) -> None:
        """Give the parameter's gradient."""
        if gradient is not None:
            self._plan.give(self._weight, gradient.t().contiguous())


__all__ = ["EdgeMap"]
