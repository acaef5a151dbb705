"""The tasks of GATv2's attention, forward and backward, in the arena."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Attention
from graphbraid.fullgraph.step.planned.attention.base import PlannedAttention
from graphbraid.fullgraph.step.planned.attention.edge_map import EdgeMap
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.attention import both_ways, needs_ids
from graphbraid.ops.kernels import backend


class PlannedGatv2(PlannedAttention):
    """GATv2's attention: a logit needs the rows of both ends of its edge."""

    def __init__(self, plan: StepPlan, op: Attention) -> None:
        super().__init__(plan, op)
        own = plan.read(op.inputs[-1])
        self._own, self._touches = own.get, (*self._touches, *own.touches)
        self._of_edges = EdgeMap(plan, op, self._csc) if op.reads_edges else None

    def _inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._rows(), self._own()[: self._csc.num_dst], self._op.vectors[0].detach()[0]

    def _attend(self) -> None:
        csc, inputs = self._csc, self._inputs()
        kept = (part.tensor for part in self._written)
        more = {} if self._of_edges is None else self._of_edges.arguments()
        call = backend(inputs[0]).gatv2_forward
        call(csc.indptr, csc.indices, *inputs, *self._how, *kept, first_keys=self._first_keys, **more)

    def plan_backward(self) -> None:
        """Plan a pass over the edges by destination, and one by source."""
        plan, op, csc = self._plan, self._op, self._csc
        width, (vector,) = op.heads * op.channels, op.vectors
        grad = self._plan_head_grad(is_wide=True)
        source, own = op.inputs[0], op.inputs[-1]
        target, total = self._part_of_grad(source, width)
        own_grad = self._scratch("gradient of own rows", csc.num_dst, width)

        def run() -> None:
            inputs = self._inputs()
            to_vector = torch.empty_like(inputs[2])
            grads = target.tensor, own_grad.tensor, to_vector
            out, lse = self._by_head.tensor, self._lse.tensor
            of_edges, more = self._of_edges, dict[str, Any]()
            if of_edges is not None:
                more = of_edges.arguments() | {"grad_edge_weight": of_edges.new_gradient()}
            call = backend(inputs[0]).gatv2_backward
            call(
                *both_ways(csc, with_ids=needs_ids(inputs[0], self._p) or of_edges is not None),
                *inputs,
                *self._how,
                out,
                lse,
                grad.tensor,
                *grads,
                first_keys=self._first_keys,
                **more,
            )
            if of_edges is not None:
                of_edges.give(more["grad_edge_weight"])
            if vector.requires_grad:
                plan.give(vector, to_vector)

        plan.do(f"gradient of {source}", run, *self._touches, *self._kept, grad, target, own_grad)
        plan.add_part(source, target, total)
        if plan.program.learns(own):
            whole, is_there = plan.grad_of(own)

            def join() -> None:
                rows = whole.tensor[: csc.num_dst]
                rows.add_(own_grad.tensor) if is_there else rows.copy_(own_grad.tensor)

            plan.do(f"gradient of {own}", join, own_grad, whole)


__all__ = ["PlannedGatv2"]
