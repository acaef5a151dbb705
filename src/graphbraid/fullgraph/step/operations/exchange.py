"""The tasks of an exchange of rows between ranks, and an aggregation that begins while they are on their way.

Own rows are summed first; then, as they have arrived, the halo's are added. Backward is the mirror image: the
halo's gradients are computed first and sent to the owners, which compute those of their own edges meanwhile
and then add the received ones, in the order of the ranks.

A row sums its own rows in the order of its edges. It sums the halo's rows by themselves, in the order of
:func:`by_place`, and then adds that sum to the other.

A linear map whose rows were exchanged goes back in two parts. With the gradients G of own edges and R of the
rows that were sent, ``(G + R) W`` and ``(G + R)ᵀ X`` are sums of two products, and the first needs nothing
from other ranks. The first layer can go back in two parts as well, where it makes the map's
input from constants row by row: slopes and masks are known, and a weight's gradient is a sum over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.step.features import LinearMap
from graphbraid.fullgraph.step.operations.linear import EpilogueOfRows, plan_epilogue_backward
from graphbraid.fullgraph.step.operations.row_exchange import (
    PeerReads,
    RowExchange,
    depart_back,
    route_of,
    travel_of,
    why_rows_travel,
)
from graphbraid.fullgraph.step.plan import PlannedOperation, StepPlan
from graphbraid.fullgraph.step.tasks import Constant, FirstRows, MaskSeed, Rows
from graphbraid.graph.csc import Csc, indptr_of
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.linear import tall_gram, tall_product


def linear_before(program: ir.Program, value: str) -> ir.Linear | None:
    """Return the linear map, of a weight as it is, that made a value which is only exchanged; else None."""
    op = program.producer(value)
    if not isinstance(op, ir.Linear) or len(program.consumers(value)) != 1:
        return None
    is_plain = len(op.inputs) == 1 and op.after is None and op.view == ir.WHOLE and op.mixed is None
    return op if is_plain and op.inputs[0] not in program.inputs else None


def first_before(program: ir.Program, linear: ir.Linear) -> ir.Linear | None:
    """Return the linear map of a constant, of a whole weight, that only ``linear`` reads; else None."""
    op = program.producer(linear.inputs[0])
    if not isinstance(op, ir.Linear) or len(program.consumers(op.out)) != 1:
        return None
    is_plain = len(op.inputs) == 1 and op.view == ir.WHOLE and op.mixed is None
    is_plain &= op.after is None or not op.after.bias_at
    return op if is_plain and _is_hoisted(program, op.inputs[0]) else None


def _is_hoisted(program: ir.Program, value: str) -> bool:
    op = program.producer(value)
    return isinstance(op, ir.Hoisted) or (
        isinstance(op, ir.DestinationRows) and _is_hoisted(program, op.inputs[0])
    )


def can_overlap(plan: StepPlan, op: ir.Exchange) -> bool:
    """Return whether an exchange's rows are read by one aggregation alone, which can begin without them."""
    if op.inputs[0] == ir.INPUT or op.inputs[0] in plan.constants:
        return False
    readers = plan.program.consumers(op.out)
    only = readers[0] if len(readers) == 1 else None
    return isinstance(only, ir.Aggregate) and only.rows == torch.float32


class Overlapped:
    """The rows of one exchange, whose departure is planned first, and the aggregation that reads them."""

    def __init__(self, plan: StepPlan, op: ir.Exchange) -> None:
        self._plan, self._source = plan, op.inputs[0]
        (self._reader,) = plan.program.consumers(op.out)
        assert isinstance(self._reader, ir.Aggregate)
        self._travel, self._route = travel_of(plan, op), route_of(plan, op)
        self._width = plan.program.width(op.out)
        self._own, self._halo = _divided(plan, op, self._reader)
        halo = self._rows = self._scratch("halo", self._route.num_received)
        packed = self._packed = self._scratch("rows to send", self._route.num_sent)
        x, travel, name = plan.rows(self._source), self._travel, f"{self._reader.out}: rows depart"
        plan.do(name, lambda: travel.begin(x.tensor, packed.tensor, halo.tensor), packed, halo, x)

    def plan_forward(
        self, out: FirstRows, added: Rows | None, after: EpilogueOfRows, seed: MaskSeed | None
    ) -> None:
        """Plan the sum of own rows and the addend, if any, then the wait, and the halo's part of the sum."""
        plan, x, name = self._plan, self._plan.rows(self._source), self._reader.out
        own, rest, halo = self._own, self._halo, self._rows

        def run_own() -> None:
            own.forward(x.tensor, out.tensor, None if added is None else added.tensor)

        def run_halo() -> None:
            rest.forward(halo.tensor, out.tensor, out.tensor, after(out))

        plan.repeat(f"{name}: own rows", run_own, out, x, added)
        plan.do(f"{name}: wait", self._travel.wait, halo, self._packed)
        plan.repeat(name, run_halo, out, halo, seed=seed)

    def plan_backward(self, grad: FirstRows) -> None:
        """Plan the halo's gradients and send them, then own rows' gradients, then add the received ones."""
        plan, travel, rest = self._plan, self._travel, self._halo
        halo = self._scratch("gradient of the halo", self._route.num_received)
        returned = self._scratch("returned gradients", self._route.num_sent)
        name = f"gradient of {self._source}"

        def run_halo() -> None:
            rest.backward(grad.tensor, halo.tensor)

        plan.repeat(f"{name}: halo", run_halo, grad, halo)
        plan.do(f"{name}: depart", lambda: travel.begin_back(halo.tensor, returned.tensor), halo, returned)
        source, own = self._source, self._own
        target, is_there = plan.grad_of(source)

        def run_own() -> None:
            own.backward(grad.tensor, target.tensor, target.tensor if is_there else None)

        plan.repeat(f"{name}: own", run_own, grad, target)
        linear = linear_before(plan.program, source)
        if linear is not None and plan.request.begins_early and plan.copies is None:
            _plan_linear_backward(plan, linear, travel, target, (halo, returned))
            return

        def join() -> None:
            travel.wait()
            travel.add(returned.tensor, target.tensor)

        plan.do(name, join, target, halo, returned)

    def _scratch(self, name: str, count: int) -> FirstRows:
        return self._plan.scratch(f"{self._reader.out}: {name}", count, self._width)


def _divided(plan: StepPlan, op: ir.Exchange, reader: ir.Aggregate) -> tuple[LinearMap, LinearMap]:
    """Return the parts of an aggregation's map, made once for all layers over the same edges."""
    block = plan.request.blocks[plan.program.level(op.out)].of(None)
    key = (reader.adjacency, id(block))
    if key not in plan.exchanges.maps:
        how = block.bind(plan.whole_map(reader.adjacency))
        own, halo = divided_map(how, plan.count_of(op.inputs[0]))
        halo = by_place(halo, route_of(plan, op).receive_rows)
        if plan.copies is None:
            plan.exchanges.maps[key] = LinearMap(lambda: own), LinearMap(lambda: halo)
            plan.exchanges.nbytes += own.csc.nbytes + halo.csc.nbytes
        else:  # which are counted as all copies are
            plan.exchanges.maps[key] = (
                plan.copies.aggregation(own, backward=plan.training),
                plan.copies.aggregation(halo, backward=plan.training),
            )
    return plan.exchanges.maps[key]


def divided_map(how: Aggregation, num_own: int) -> tuple[Aggregation, Aggregation]:
    """Return the parts of a linear map that read the first ``num_own`` sources and the others.

    Self-loops are in the first part: the destinations are the first of its source rows.
    """
    src, dst = how.scales(torch.float32)
    csc = how.csc
    is_own = csc.indices < num_own
    indptr = indptr_of(is_own)[csc.indptr]
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
    """Return a map of halo rows that orders each row's edges by the place of the source at its owner.

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


def _plan_linear_backward(
    plan: StepPlan, op: ir.Linear, travel: RowExchange, grad: FirstRows, away: tuple[FirstRows, FirstRows]
) -> None:
    """Plan a linear map's gradients by own edges, then the wait, then the part of the received gradients.

    ``grad`` is the gradient of own rows, by own edges. ``away`` are the gradients of the halo that have
    departed, and the memory for those of the rows that were sent.
    """
    plan.exchanges.gone_back.add(op.out)
    planning, plan.planning = plan.planning, op.out
    returned = away[1]
    x, source, name = plan.rows(op.inputs[0]), op.inputs[0], f"gradient of {op.out}'s weight"

    def own_weight(out: Tensor) -> None:
        tall_gram(grad.tensor, x.tensor, out=out)

    def sent_weight(out: Tensor) -> None:
        tall_gram(returned.tensor, x.tensor, out=out, ids=travel.route.send)

    learns, target = op.weight.requires_grad, None
    if plan.program.learns(source):
        target, is_there = plan.grad_of(source)
        whole = target

        def own_input() -> None:
            tall_product(grad.tensor, op.matrix(), out=whole.tensor, add=is_there)

        plan.repeat(f"gradient of {source}: own", own_input, grad, whole)
    if learns:
        plan.repeat(f"{name}: own", own_weight, grad, x, gradient_of=op.weight)
    first = first_before(plan.program, op)
    if first is not None and plan.input_of(first.inputs[0]) is not None:  # read in another form
        first = None
    if first is not None and target is not None:
        plan.exchanges.first_back.add(first.out)
        _plan_first(plan, first, target)
    plan.do(f"gradient of {op.out}: wait", travel.wait, *away)
    if learns:
        plan.repeat(name, sent_weight, returned, x, gradient_of=op.weight)
    if target is not None:
        to_add, name = target, f"{op.out}: gradient of the rows sent"
        sent = plan.scratch(name, returned.count, plan.program.width(source))

        def sent_input() -> None:
            tall_product(returned.tensor, op.matrix(), out=sent.tensor)

        plan.repeat(name, sent_input, returned, sent)
        if first is None:
            plan.do(f"gradient of {source}", lambda: travel.add(sent.tensor, to_add.tensor), sent, to_add)
        else:  # the input's gradient goes back on through the first map
            _plan_first(plan, first, sent, travel.route.send)
    plan.planning = planning


def _plan_first(plan: StepPlan, op: ir.Linear, grad: FirstRows, ids: Tensor | None = None) -> None:
    """Plan the parameter gradients of a map of constants. ``grad`` is of all rows, or of the rows ``ids``."""
    planning, plan.planning = plan.planning, op.out
    if op.after is not None:
        plan_epilogue_backward(plan, op.after, grad, grad, ids)
    x = plan.rows(op.inputs[0])

    def weight(out: Tensor) -> None:
        tall_gram(grad.tensor, x.tensor, out=out, ids=ids)

    if op.weight.requires_grad:
        name = f"gradient of {op.out}'s weight"
        plan.repeat(name if ids is not None else f"{name}: own", weight, grad, x, gradient_of=op.weight)
    plan.planning = planning


class PlannedExchange(PlannedOperation[ir.Exchange]):
    """An exchange; an aggregation that reads its rows begins without the halo."""

    def __init__(self, plan: StepPlan, op: ir.Exchange) -> None:
        super().__init__(plan, op)
        self._num_own = plan.count_of(self.source)

    def forward(self) -> None:
        """Plan to send own rows and receive the halo's; constants are exchanged only once."""
        plan, op, num_own = self.plan, self.op, self._num_own
        x = plan.rows(self.source)
        if isinstance(x, Constant):
            plan.constants[op.out] = self._received_once(x)
            return
        if can_overlap(plan, op):
            made = Overlapped(plan, op) if why_rows_travel(plan) else PeerReads(plan, op)
            plan.exchanges.overlapped[op.out] = made
            return
        travel, out = travel_of(plan, op), plan.result(op)
        count, width = route_of(plan, op).num_sent, plan.program.width(op.out)
        packed = plan.scratch(f"{op.out}: rows to send", count, width)

        def depart() -> None:
            rows = x.tensor
            travel.begin(rows, packed.tensor, out.tensor[num_own:])
            out.tensor[:num_own].copy_(rows)

        plan.do(f"{op.out}: rows depart", depart, out, packed, x)
        plan.do(f"{op.out}: wait", travel.wait, out, packed)

    def backward(self) -> None:
        """Plan to send the halo's gradients to the owners, which add them to their own."""
        plan, op, source = self.plan, self.op, self.source
        if op.out in plan.exchanges.overlapped:  # whose aggregation has sent the gradients
            return
        grad, travel = self.grad, travel_of(plan, op)
        if op.out not in plan.exchanges.returning:
            depart_back(plan, op)
        returned = plan.exchanges.returning.pop(op.out)
        own = FirstRows(grad.buffer, self._num_own)

        def run() -> None:
            travel.wait()
            travel.add(returned.tensor, own.tensor)

        plan.do(f"gradient of {source}", run, grad, returned)
        if plan.takes_over(source):
            plan.grads[source] = own
        else:
            plan.add_to_grad(source, own)

    def _received_once(self, x: Constant) -> Constant:
        """Return own rows and the halo's of a constant. They are exchanged when the constant is made."""
        plan, op = self.plan, self.op
        travel, route = travel_of(plan, op, once=True), route_of(plan, op)
        shape = plan.count_of(op.out), plan.program.width(op.out)

        def make() -> Tensor:
            rows = x.tensor.contiguous()
            out = rows.new_empty(shape)
            out[: rows.shape[0]] = rows
            travel.begin(rows, rows.new_empty(route.num_sent, shape[1]), out[rows.shape[0] :])
            travel.wait()
            return out

        return Constant(shape, make, is_copy=True)
