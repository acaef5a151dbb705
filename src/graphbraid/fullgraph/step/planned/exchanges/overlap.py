"""The tasks of an aggregation that begins while rows of other ranks' nodes are on their way to it.

Own rows are summed first; then, as they have arrived, the halo's are added. Backward is the mirror image: the
halo's gradients are computed first and sent to the owners, which compute those of their own edges meanwhile
and then add what they get, in the order of the ranks.

A row sums its own rows in the order of its edges. It sums the halo's rows by themselves, in the order of
:func:`by_place`, and then adds that sum to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from graphbraid.fullgraph.program import INPUT, Aggregate, Exchange
from graphbraid.fullgraph.program.chains import linear_before
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.repeated import MaskSeed
from graphbraid.fullgraph.step.calls.rows import FirstRows, Read
from graphbraid.fullgraph.step.calls.travel import Travel
from graphbraid.fullgraph.step.planned.exchanges.linear_overlap import plan_linear_backward
from graphbraid.fullgraph.step.planned.exchanges.routes import route_of, travel_of
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.dropout import RowEpilogue

EpilogueOf = Callable[[FirstRows], RowEpilogue | None]
"""Returns the epilogue of rows, if they have one."""


def can_overlap(plan: StepPlan, op: Exchange) -> bool:
    """Return whether an exchange's rows are read by one aggregation alone, which can begin without them."""
    if op.inputs[0] == INPUT or op.inputs[0] in plan.constants:
        return False
    readers = plan.program.consumers(op.out)
    only = readers[0] if len(readers) == 1 else None
    return isinstance(only, Aggregate) and only.rows == torch.float32


class Overlapped:
    """The rows of one exchange and the aggregation that reads them."""

    def __init__(self, plan: StepPlan, op: Exchange) -> None:
        self._plan, self._source = plan, op.inputs[0]
        (self._reader,) = plan.program.consumers(op.out)
        assert isinstance(self._reader, Aggregate)
        self._travel, self._route = travel_of(plan, op), route_of(plan, op)
        self._width = plan.program.width(op.out)
        self._own, self._halo = _divided(plan, op, self._reader)
        self._rows = self._scratch("halo", self._route.num_received)
        self._packed: FirstRows | None = None

    def plan_departure(self, early: FirstRows | None = None) -> None:
        """Plan the task that sends own rows, or those that are packed already, and begins to receive."""
        plan, travel, halo, name = self._plan, self._travel, self._rows, f"{self._reader.out}: rows depart"
        if early is not None:
            self._packed = early
            plan.do(name, lambda: travel.begin_packed(early.tensor, halo.tensor), early, halo)
            return
        x = plan.read(self._source)
        packed = self._packed = self._scratch("rows to send", self._route.num_sent)
        plan.do(name, lambda: travel.begin(x.get(), packed.tensor, halo.tensor), packed, halo, *x.touches)

    def plan_forward(
        self, out: FirstRows, addends: Sequence[Read], after: EpilogueOf, seed: MaskSeed | None
    ) -> None:
        """Plan the sum of own rows and the addend, if any, then the wait, and the halo's part of the sum."""
        plan, x, name = self._plan, self._plan.read(self._source), self._reader.out
        own, rest, halo = self._own, self._halo, self._rows
        touches = tuple(rows for addend in addends for rows in addend.touches)

        def run_own() -> None:
            kernels.aggregate(own, x.get(), out.tensor, addends[0].get() if addends else None)

        def run_halo() -> None:
            kernels.aggregate(rest, halo.tensor, out.tensor, out.tensor, after(out))

        plan.repeat(f"{name}: own rows", run_own, out, *x.touches, *touches)
        assert self._packed is not None
        plan.do(f"{name}: wait", self._travel.wait, halo, self._packed)
        plan.repeat(name, run_halo, out, halo, seed=seed)

    def plan_backward(self, grad: FirstRows) -> None:
        """Plan the gradients of the halo's rows, which depart, then of own rows and what others add."""
        plan, travel, rest = self._plan, self._travel, self._halo
        halo = self._scratch("gradient of the halo", self._route.num_received)
        returned = self._scratch("returned gradients", self._route.num_sent)
        name = f"gradient of {self._source}"

        def run_halo() -> None:
            kernels.aggregate_backward(rest, grad.tensor, halo.tensor, None)

        plan.repeat(f"{name}: halo", run_halo, grad, halo)
        plan.do(f"{name}: depart", lambda: travel.begin_back(halo.tensor, returned.tensor), halo, returned)
        self._plan_own_backward(grad, travel, (halo, returned))

    def _plan_own_backward(self, grad: FirstRows, travel: Travel, away: tuple[FirstRows, ...]) -> None:
        """Plan the gradients of own rows while ``away``, the others', travel, and the sum of both.

        ``away`` are the gradients that have departed, those that come back, and other rows they touch.
        """
        plan, source, own = self._plan, self._source, self._own
        target, is_there = plan.grad_of(source)

        def run_own() -> None:
            kernels.aggregate_backward(own, grad.tensor, target.tensor, target.tensor if is_there else None)

        plan.repeat(f"gradient of {source}: own", run_own, grad, target)
        linear = linear_before(plan.program, source)
        if linear is not None and plan.begins_early and plan.copies is None:
            plan_linear_backward(plan, linear, travel, target, away)
            return
        returned = away[1]

        def join() -> None:
            travel.wait()
            travel.add(returned.tensor, target.tensor)

        plan.do(f"gradient of {source}", join, target, *away)

    def _scratch(self, name: str, count: int) -> FirstRows:
        return self._plan.scratch(f"{self._reader.out}: {name}", count, self._width)


def _divided(plan: StepPlan, op: Exchange, reader: Aggregate) -> tuple[kernels.Map, kernels.Map]:
    """Return the parts of an aggregation's map, made once for all layers over the same edges."""
    block = plan.host_blocks[plan.program.level(op.out)].of(None)
    key = (reader.adjacency, id(block))
    if key not in plan.divided.maps:
        how = block.bind(plan.whole_map(reader.adjacency))
        own, halo = divided_map(how, plan.num_rows(plan.program.level(op.inputs[0])))
        halo = by_place(halo, route_of(plan, op).receive_rows)
        if plan.copies is None:
            plan.divided.maps[key] = kernels.BothWays(own), kernels.BothWays(halo)
            plan.divided.nbytes += own.csc.nbytes + halo.csc.nbytes
        else:  # which are counted as all copies are
            plan.divided.maps[key] = (
                plan.copies.aggregation(own, backward=plan.training),
                plan.copies.aggregation(halo, backward=plan.training),
            )
    return plan.divided.maps[key]


def divided_map(how: Aggregation, num_own: int) -> tuple[Aggregation, Aggregation]:
    """Return the parts of a linear map that read the first ``num_own`` sources and the others.

    Self-loops are in the first part, whose rows the destinations are a prefix of.
    """
    src, dst = how.scales(torch.float32)
    csc = how.csc
    is_own = csc.indices < num_own
    ends = torch.zeros(csc.num_edges + 1, dtype=torch.int64)
    torch.cumsum(is_own, 0, out=ends[1:])
    indptr = ends[csc.indptr]
    parts = []
    for kept, begin, end, row in (
        (is_own, 0, num_own, indptr),
        (~is_own, num_own, csc.num_src, csc.indptr - indptr),
    ):
        part = Csc(row, csc.indices[kept] - begin, end - begin, trusted=True)
        weight = None if how.weight is None else how.weight[kept]
        scale = None if src is None else src[begin:end]
        parts.append(replace(how, csc=part, mean=False, weight=weight, src_scale=scale, dst_scale=dst))
    own, halo = parts
    return own, replace(halo, loop=None, loop_scale=0.0, skip_loops=False)


def by_place(halo: Aggregation, receive_rows: Sequence[int]) -> Aggregation:
    """Return a map of halo rows with each row's edges by the place of their sources among their owner's rows.

    The place is position / n for the n rows of an owner; rows of one place are in the order of the owners. So
    a row's sum does not depend on the order in which its edges are stored.
    """
    csc = halo.csc
    share = [torch.arange(count, dtype=torch.float64) / max(count, 1) for count in receive_rows]
    source = torch.cat(share).argsort(stable=True)
    place = torch.empty_like(source)
    place[source] = torch.arange(source.numel())
    placed = Csc(csc.indptr, place[csc.indices.long()].to(csc.indices.dtype), csc.num_src, trusted=True)
    ordered, perm = placed.sort_rows()
    if perm is None:
        return halo
    kept = source.to(csc.indices.dtype)[ordered.indices.long()]
    weight = None if halo.weight is None else halo.weight[perm]
    return replace(halo, csc=Csc(csc.indptr, kept, csc.num_src, trusted=True), weight=weight)


__all__ = ["Overlapped", "can_overlap", "divided_map"]
