"""PlannedAttention: what the tasks of every attention share, forward and backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Attention
from graphbraid.fullgraph.step.calls.rows import FirstRows
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.kernels import recorded_whole


class PlannedAttention(ABC):
    """One attention of a planned step, with what its forward pass leaves for its backward pass."""

    def __init__(self, plan: StepPlan, op: Attention) -> None:
        self._plan, self._op = plan, op
        level = plan.program.level(op.inputs[0])
        self._csc = plan.blocks[level].of(op.relation).csc
        self._learns = plan.training and plan.program.learns(op.out)
        self._p = op.dropout
        self._seed = plan.seeds.add() if self._p > 0 else lambda: 0
        destinations = plan.host_blocks[level].destination_nodes(plan.program.part(op.out))
        self._first_keys = self._keys_of(destinations) if self._p > 0 else None
        self._how: tuple[Any, ...] = ()
        rows = plan.read(op.inputs[0])
        self._rows, self._touches = rows.get, rows.touches
        width = op.heads * op.channels
        self._by_head = self._scratch("rows by head", self._csc.num_dst, width)
        self._lse = self._scratch("log-sum-exp", self._csc.num_dst, op.heads)
        self._written: tuple[FirstRows, ...] = (self._by_head, self._lse)
        self._kept: tuple[FirstRows, ...] = self._written

    @abstractmethod
    def _attend(self) -> None:
        """Run the forward kernel; write ``self._written``."""

    @abstractmethod
    def plan_backward(self) -> None:
        """Plan the tasks of the gradients."""

    def plan_forward(self) -> None:
        """Plan the tasks that compute the value."""
        plan, op = self._plan, self._op
        out = plan.values[op.out] = plan.new(op.out, op) if op.averages else self._by_head

        def run() -> None:
            num_loops = min(self._csc.num_src, self._csc.num_dst) if op.self_loops else 0
            self._how = (op.negative_slope, num_loops, self._p, self._seed())
            self._attend()

        name = f"{op.out}: by head" if op.averages else op.out
        plan.do(name, run, *self._touches, *self._kept)
        if op.averages:
            plan.do(op.out, lambda: _mean_of_heads(self._by_head.tensor, out.tensor), self._by_head, out)

    def _keys_of(self, destinations: Tensor | None) -> Tensor | None:
        """Return the keys of the rows' dropout masks by node, so that a mask is the same at every level."""
        if destinations is None:
            return None
        part = self._plan.part
        if part is not None:
            return part.first_edge[: destinations.numel()] + part.ids[: destinations.numel()]
        keys = self._plan.whole_edges(self._op.relation).indptr[destinations] + destinations
        copies = self._plan.copies
        return keys if copies is None else copies.array(keys)

    def _scratch(self, name: str, rows: int, width: int) -> FirstRows:
        return self._plan.scratch(f"{self._op.out}: {name}", rows, width)

    def _plan_head_grad(self, *, is_wide: bool) -> FirstRows:
        """Return the gradient of the heads' rows; for a mean, one head's share, or with ``is_wide`` all."""
        plan, op = self._plan, self._op
        grad = plan.grads[op.out]
        if not op.averages:
            return grad
        copies = op.heads if is_wide else 1
        part = self._scratch("gradient by head", grad.count, copies * op.channels)

        def run() -> None:
            _repeat_heads(grad.tensor, 1 / op.heads, part.tensor)

        plan.do(f"{op.out}: gradient by head", run, grad, part)
        return part

    def _part_of_grad(self, source: str, width: int) -> tuple[FirstRows, FirstRows | None]:
        """Return :meth:`StepPlan.part_of_grad`, or scratch rows if the source needs no gradient."""
        if self._plan.program.learns(source):
            return self._plan.part_of_grad(source)
        return self._scratch(f"gradient of {source}", self._csc.num_src, width), None


@recorded_whole
def _mean_of_heads(by_head: Tensor, out: Tensor) -> None:
    torch.mean(by_head.view(out.shape[0], -1, out.shape[1]), 1, out=out)


@recorded_whole
def _repeat_heads(rows: Tensor, factor: float, out: Tensor) -> None:
    """Write ``factor * rows`` to every head's columns of ``out``."""
    heads = out.view(-1, out.shape[1] // rows.shape[1], rows.shape[1])
    heads.copy_(rows[:, None].expand_as(heads)).mul_(factor)


__all__ = ["PlannedAttention"]
