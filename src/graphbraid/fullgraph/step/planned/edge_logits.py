"""What edges' features add to the logits of GAT's attention, in the arena.

A logit's part is ``<att_edge[h], W_h e>``: a product of the edge's features with a matrix of a column per
head, folded anew in every step. Rows of self-loops that are added follow those of the edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Attention
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.graph.csc import Csc
from graphbraid.ops.dense import tall_gram, tall_product


class EdgeLogits:
    """The edges' parts of one attention's logits, their gradients, and what they are made of.

    Args:
        plan: of the step.
        op: reads edges.
        csc: the edges that it walks.
    """

    def __init__(self, plan: StepPlan, op: Attention, csc: Csc) -> None:
        assert op.edge_weight is not None
        assert op.edge_vector is not None
        self._plan, self._op, self._num_edges = plan, op, csc.num_edges
        self._weight, self._vector = op.edge_weight, op.edge_vector
        self._level = plan.program.level(op.inputs[0])
        num_loops = min(csc.num_src, csc.num_dst) if op.self_loops else 0
        count = csc.num_edges + num_loops
        self.logits = plan.scratch(f"{op.out}: edge logits", count, op.heads)
        self.grads = plan.scratch(f"{op.out}: gradient of edge logits", count, op.heads)
        self._joined = None
        if op.self_loops and isinstance(op.fill, str):
            self._joined = plan.features.edges.plan_loops(self._level, op.fill)
        self._ones = torch.ones(num_loops, 1)

    def multiply(self) -> Tensor:
        """Fill :attr:`logits`."""
        folded, out = self._folded().t(), self.logits.tensor
        tall_product(self._rows(), folded, out=out[: self._num_edges])
        if self._joined is not None:
            tall_product(self._joined(), folded, out=out[self._num_edges :])
        elif self._op.self_loops:
            out[self._num_edges :] = self._constant() @ folded
        return out

    def give(self) -> None:
        """Give the parameters' gradients, from :attr:`grads`."""
        edges, loops = self.grads.tensor[: self._num_edges], self.grads.tensor[self._num_edges :]
        to_folded = tall_gram(edges, self._rows())
        if self._joined is not None:
            to_folded += tall_gram(loops, self._joined())
        elif self._op.self_loops:
            to_folded += tall_gram(loops, self._ones) * self._constant()
        by_head, vector = self._by_head(), self._vector.detach()[0]
        if self._weight.requires_grad:
            self._plan.give(self._weight, vector[:, :, None] * to_folded[:, None])
        if self._vector.requires_grad:
            self._plan.give(self._vector, (by_head * to_folded[:, None]).sum(-1))

    def _rows(self) -> Tensor:
        return self._plan.features.edges.rows(self._level)

    def _by_head(self) -> Tensor:
        """``(heads, channels, num_edge_features)`` of the weight."""
        return self._weight.detach().view(self._op.heads, self._op.channels, -1)

    def _folded(self) -> Tensor:
        """``(heads, num_edge_features)``."""
        return (self._by_head() * self._vector.detach()[0][:, :, None]).sum(1)

    def _constant(self) -> Tensor:
        """``(1, num_edge_features)`` features of every self-loop, as they are now."""
        fill = self._op.fill
        row = fill.detach() if isinstance(fill, Tensor) else torch.tensor(float(fill))
        return row.to(self._weight.device, self._weight.dtype).reshape(1, -1).expand(1, self._weight.shape[1])


__all__ = ["EdgeLogits"]
