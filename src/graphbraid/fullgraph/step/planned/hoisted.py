"""Values that are computed once from the features, over the whole graph or a rank's part of it."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.fullgraph.lowering.hoisting import COLUMNS_AT_A_TIME, FOLDED
from graphbraid.fullgraph.program import INPUT, Add, Aggregate, Combine, Hoisted, Operation
from graphbraid.fullgraph.step.calls.rows import Constant
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation


def forward_hoisted(plan: StepPlan, op: Hoisted) -> None:
    """Plan no task, but a value that is made when the memory is allocated."""
    if plan.streams is not None:  # which makes it, and reads it block by block
        return
    if plan.part is None:
        plan.constants[op.out] = plan.features_of(op.inputs[0]).hoisted(op)
        return
    shape = plan.num_rows(plan.program.level(op.out)), plan.program.in_channels
    plan.constants[op.out] = Constant(shape, lambda: _OfPart(plan, op).rows(), is_copy=True)


class _OfPart:
    """A value of a rank's own rows; rows of its halo are told by their owners where they are computed too."""

    def __init__(self, plan: StepPlan, op: Hoisted) -> None:
        assert plan.part is not None
        assert plan.comm is not None
        self._part, self._features, self._ops = plan.part, plan.features_of(INPUT), op.of
        self._comm = plan.comm
        csc, num_own = plan.graph.csc, plan.part.num_own
        own = Csc(csc.indptr[: num_own + 1], csc.indices, csc.num_src, csc.weight, trusted=True)
        self._maps = {
            other.adjacency: _of_rows(plan.whole_map(other.adjacency), own)
            for other in op.of
            if isinstance(other, Aggregate)
        }

    def rows(self) -> Tensor:
        """Return the ``(num_own, in_channels)`` value; all ranks call this together."""
        x = self._features.all_rows()
        out = x.new_empty(self._part.num_own, x.shape[1])
        for start in range(0, x.shape[1], COLUMNS_AT_A_TIME):
            columns = slice(start, start + COLUMNS_AT_A_TIME)
            values = {INPUT: x[:, columns]}
            for op in self._ops:
                values[op.out] = self._run(op, [values[name] for name in op.inputs])
            out[:, columns] = values[self._ops[-1].out][: out.shape[0]]
        return out

    def _run(self, op: Operation, inputs: list[Tensor]) -> Tensor:
        assert isinstance(op, FOLDED)
        own = [rows[: self._part.num_own] for rows in inputs]
        if isinstance(op, Aggregate):
            source = inputs[0] if op.inputs[0] == INPUT else self._with_halo(inputs[0])
            return self._maps[op.adjacency].forward(source, addend=own[1] if len(own) > 1 else None)
        if not isinstance(op, Add | Combine):  # a prefix of its source, which is all own rows
            return own[0]
        factors = op.factors if isinstance(op, Combine) else (1.0,) * len(own)
        out = torch.mul(own[0], factors[0])
        for value, factor in zip(own[1:], factors[1:], strict=True):
            out.add_(value, alpha=factor)
        return out

    def _with_halo(self, own: Tensor) -> Tensor:
        route = self._part.route
        sent = own.index_select(0, route.send)
        halo = self._comm.all_to_all(sent, route.send_rows, route.receive_rows).wait()
        return torch.cat((own, halo))


def _of_rows(whole: Aggregation, own: Csc) -> Aggregation:
    """Return the rows of a map that a rank owns, which come first."""
    scale = None if whole.dst_scale is None else whole.dst_scale[: own.num_dst]
    return Aggregation(
        csc=own,
        mean=whole.mean,
        weight=whole.weight,
        src_scale=whole.src_scale,
        dst_scale=scale,
        loop=None if whole.loop is None else whole.loop[: own.num_dst],
        loop_scale=whole.loop_scale,
        skip_loops=whole.skip_loops,
    )


__all__ = ["forward_hoisted"]
