"""EdgesBySource: the edges' own numbers in an attention, in the order of a split's sources.

A kernel that goes back over the edges of some sources finds an edge's number by its position among these. So
the numbers are copied into an order in which the halo's edges follow each other, then those of own rows with
the self-loops behind them, and the gradients are copied back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Attention
from graphbraid.fullgraph.step.planned.attention.edge_logits import EdgeLogits
from graphbraid.fullgraph.step.planned.exchanges.source_split import SourcePart, SourceSplit
from graphbraid.fullgraph.step.step_plan import StepPlan


class EdgesBySource:
    """The edges' parts of one attention's logits by source, and their gradients.

    Args:
        plan: the step's plan.
        op: a GAT attention that reads edge features, without dropout: a mask's key is an edge's position,
            too, and that in its destination's row.
        edges: the edges' parts in the block's order.
        split: the sources' parts.
    """

    def __init__(self, plan: StepPlan, op: Attention, edges: EdgeLogits, split: SourceSplit) -> None:
        self._edges, self._split = edges, split
        count = edges.logits.count
        self.logits = plan.scratch(f"{op.out}: edge logits by source", count, op.heads)
        self.grads = plan.scratch(f"{op.out}: gradient of edge logits by source", count, op.heads)
        self._order: Tensor | None = None

    def gather(self) -> None:
        """Copy the numbers into the order of the sources."""
        order, whole = self._ordered(), self._edges.logits.tensor
        count = order.numel()
        torch.index_select(whole[:count], 0, order, out=self.logits.tensor[:count])
        self.logits.tensor[count:].copy_(whole[count:])

    def scatter(self) -> None:
        """Copy the gradients into the order of the block."""
        order, whole = self._ordered(), self._edges.grads.tensor
        count = order.numel()
        whole[:count].index_copy_(0, order, self.grads.tensor[:count])
        whole[count:].copy_(self.grads.tensor[count:])

    def of(self, part: SourcePart) -> tuple[Tensor, Tensor, Tensor]:
        """Return the places of a part's edges in its numbers, these, and their gradients."""
        at = self._split.halo.ids.numel()
        rows = slice(0, at) if part is self._split.halo else slice(at, None)
        return torch.arange(part.ids.numel()), self.logits.tensor[rows], self.grads.tensor[rows]

    def _ordered(self) -> Tensor:
        if self._order is None:
            self._order = torch.cat((self._split.halo.ids, self._split.own.ids))
        return self._order


__all__ = ["EdgesBySource"]
