"""The part of GAT's attention logits that comes from edge features, in the arena.

It is ``<att_edge[h], W_h e>``: a product of the edge's features with a matrix that has one column per head
and is folded anew in every step. Rows of added self-loops follow those of the edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Attention
from graphbraid.fullgraph.step.planned.attention.attended_edges import AttendedEdges
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.graph.csc import Csc
from graphbraid.ops.linear import tall_gram, tall_product


class EdgeLogits:
    """The edges' parts of one attention's logits, with their gradients and inputs.

    Args:
        plan: the step's plan.
        op: a GAT attention that reads edge features.
        csc: the edges that it walks.
    """

    def __init__(self, plan: StepPlan, op: Attention, csc: Csc) -> None:
        assert op.edge_weight is not None
        assert op.edge_vector is not None
        self._plan, self._op, self._num_edges = plan, op, csc.num_edges
        self._weight, self._vector = op.edge_weight, op.edge_vector
        self._edges = AttendedEdges(plan, op, csc)
        count = csc.num_edges + self._edges.num_loops
        self.logits = plan.scratch(f"{op.out}: edge logits", count, op.heads)
        self.grads = plan.scratch(f"{op.out}: gradient of edge logits", count, op.heads)
        self._ones = torch.ones(self._edges.num_loops, 1)

    def multiply(self) -> Tensor:
        """Compute :attr:`logits`."""
        folded, out = self._folded().t(), self.logits.tensor
        tall_product(self._edges.rows(), folded, out=out[: self._num_edges])
        if self._edges.loops_differ:
            tall_product(self._edges.loops(), folded, out=out[self._num_edges :])
        elif self._op.self_loops:
            out[self._num_edges :] = self._edges.loops() @ folded
        return out

    def give(self) -> None:
        """Hand the parameters' gradients to the plan, computed from :attr:`grads`."""
        edges, loops = self.grads.tensor[: self._num_edges], self.grads.tensor[self._num_edges :]
        to_folded = tall_gram(edges, self._edges.rows())
        if self._edges.loops_differ:
            to_folded += tall_gram(loops, self._edges.loops())
        elif self._op.self_loops:
            to_folded += tall_gram(loops, self._ones) * self._edges.loops()
        by_head, vector = self._by_head(), self._vector.detach()[0]
        if self._weight.requires_grad:
            self._plan.give(self._weight, vector[:, :, None] * to_folded[:, None])
        if self._vector.requires_grad:
            self._plan.give(self._vector, (by_head * to_folded[:, None]).sum(-1))

    def _by_head(self) -> Tensor:
        """Return the weight as ``(heads, channels, num_edge_features)``."""
        return self._weight.detach().view(self._op.heads, self._op.channels, -1)

    def _folded(self) -> Tensor:
        """Return the folded matrix, ``(heads, num_edge_features)``."""
        return (self._by_head() * self._vector.detach()[0][:, :, None]).sum(1)


__all__ = ["EdgeLogits"]
