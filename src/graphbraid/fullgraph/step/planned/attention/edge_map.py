"""The map of the edge features that GATv2 adds to the rows inside its leaky ReLU.

The kernels map the features of some edges at a time wherever they need them, so no mapped row is stored.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphbraid.fullgraph.program import Attention
from graphbraid.fullgraph.step.planned.attention.attended_edges import AttendedEdges
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.graph.csc import Csc


class EdgeMap:
    """The edge features and their map as the kernels of one attention take them, and the map's gradient.

    Args:
        plan: the step's plan.
        op: a GATv2 attention that reads edge features.
        csc: the edges that it walks.
    """

    def __init__(self, plan: StepPlan, op: Attention, csc: Csc) -> None:
        assert op.edge_weight is not None
        self._plan, self._weight = plan, op.edge_weight
        self._edges = AttendedEdges(plan, op, csc)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the kernels, forward and backward."""
        edges, weight = self._edges, self._weight.detach()
        loops = edges.loops() if edges.num_loops else weight.new_empty(1, weight.shape[1])
        return {
            "edge_features": edges.rows(),
            "loop_features": loops.expand(edges.num_loops, -1),
            "edge_weight": weight.t().contiguous(),
        }

    def new_gradient(self) -> Tensor | None:
        """Return memory for the map's gradient, written by the backward kernel; None if it needs none."""
        weight = self._weight.detach()
        return weight.new_empty(weight.shape[::-1]) if self._weight.requires_grad else None

    def give(self, gradient: Tensor | None) -> None:
        """Hand the parameter's gradient to the plan."""
        if gradient is not None:
            self._plan.give(self._weight, gradient.t().contiguous())


__all__ = ["EdgeMap"]
