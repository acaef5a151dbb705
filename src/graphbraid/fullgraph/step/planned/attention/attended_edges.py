"""The edge features that an attention reads: those of the edges, and of the self-loops that it adds."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.fullgraph.program import INPUT, Attention
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.graph.csc import Csc


class AttendedEdges:
    """The features of the edges that one attention walks.

    Args:
        plan: the step's plan.
        op: an attention that reads edge features.
        csc: the edges that it walks.
    """

    def __init__(self, plan: StepPlan, op: Attention, csc: Csc) -> None:
        self._plan, self._op = plan, op
        self._level = plan.program.level(op.inputs[0])
        self.num_loops = min(csc.num_src, csc.num_dst) if op.self_loops else 0
        self._joined = None
        if op.self_loops and isinstance(op.fill, str):
            self._joined = plan.features_of(INPUT).edges.plan_loops(self._level, op.fill)

    @property
    def loops_differ(self) -> bool:
        """Whether each added self-loop has features of its own."""
        return self._joined is not None

    def rows(self) -> Tensor:
        """Return the ``(num_edges, num_edge_features)`` features of the edges."""
        return self._plan.features_of(INPUT).edges.rows(self._level)

    def loops(self) -> Tensor:
        """Return the self-loops' current features: ``(num_loops, num_edge_features)``, or one row for all."""
        if self._joined is not None:
            return self._joined()
        weight, fill = self._op.edge_weight, self._op.fill
        assert weight is not None
        row = fill.detach() if isinstance(fill, Tensor) else torch.tensor(float(fill))
        row = row.to(weight.device, weight.dtype).reshape(1, -1)
        return row.expand(1, weight.shape[1]).contiguous()


__all__ = ["AttendedEdges"]
