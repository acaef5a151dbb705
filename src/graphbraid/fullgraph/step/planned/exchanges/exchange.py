"""The tasks of an exchange of rows between ranks, in the arena: rows to the halos, their gradients back."""

from __future__ import annotations

from torch import Tensor

from graphbraid.fullgraph.program import INPUT, Exchange, Own
from graphbraid.fullgraph.program.chains import Chain
from graphbraid.fullgraph.step.calls.rows import Constant, FirstRows, Read, add, copy
from graphbraid.fullgraph.step.planned.exchanges.early_rows import plan_early_rows
from graphbraid.fullgraph.step.planned.exchanges.overlap import Overlapped, can_overlap
from graphbraid.fullgraph.step.planned.exchanges.peer_reads import PeerReads, why_rows_travel
from graphbraid.fullgraph.step.planned.exchanges.routes import route_of, travel_of
from graphbraid.fullgraph.step.step_plan import StepPlan


def depart_early(plan: StepPlan, op: Exchange, chain: Chain) -> None:
    """Plan to compute the rows to send through a chain of operations and to send them, before the others."""
    packed = plan_early_rows(plan, op, chain)
    if can_overlap(plan, op):
        plan.overlapped[op.out] = _overlapped(plan, op)
        plan.overlapped[op.out].plan_departure(packed)
        return
    travel, num_own = travel_of(plan, op), plan.num_rows(plan.program.level(op.inputs[0]))
    out = plan.new(op.out, op)
    plan.ahead.departed[op.out] = out, packed

    def depart() -> None:
        travel.begin_packed(packed.tensor, out.tensor[num_own:])

    plan.do(f"{op.out}: rows depart", depart, out, packed)


def forward_exchange(plan: StepPlan, op: Exchange) -> None:
    """Plan the tasks that send own rows and receive the halo's; what no step changes travels only once.

    Where the reader can begin without the halo, it is the one that plans the wait.
    """
    source, route = op.inputs[0], route_of(plan, op)
    if op.out in plan.overlapped:  # departed early
        return
    x = plan.read(source)
    if source == INPUT or source in plan.constants:
        plan.constants[op.out] = _received_once(plan, op, x)
        return
    if can_overlap(plan, op):
        plan.overlapped[op.out] = _overlapped(plan, op)
        plan.overlapped[op.out].plan_departure()
        return
    travel, num_own = travel_of(plan, op), plan.num_rows(plan.program.level(source))
    if op.out in plan.ahead.departed:
        out, packed = plan.ahead.departed[op.out]
        plan.do(f"{op.out}: own rows", lambda: copy(x.get(), out.tensor[:num_own]), out, *x.touches)
    else:
        out = plan.new(op.out, op)
        packed = plan.scratch(f"{op.out}: rows to send", route.num_sent, plan.program.width(op.out))

        def depart() -> None:
            rows = x.get()
            travel.begin(rows, packed.tensor, out.tensor[num_own:])
            out.tensor[:num_own].copy_(rows)

        plan.do(f"{op.out}: rows depart", depart, out, packed, *x.touches)
    plan.values[op.out] = out
    plan.do(f"{op.out}: wait", travel.wait, out, packed)


def depart_back(plan: StepPlan, op: Exchange) -> None:
    """Plan to send the halo's gradients, which are there, to the owners; :func:`backward_exchange` waits."""
    route, grad, travel = route_of(plan, op), plan.grads[op.out], travel_of(plan, op)
    num_own = plan.num_rows(plan.program.level(op.inputs[0]))
    returned = plan.scratch(f"{op.out}: returned gradients", route.num_sent, plan.program.width(op.out))
    plan.ahead.returning[op.out] = returned

    def depart() -> None:
        travel.begin_back(grad.tensor[num_own:], returned.tensor)

    plan.do(f"gradient of {op.inputs[0]}: depart", depart, grad, returned)


def backward_exchange(plan: StepPlan, op: Exchange) -> None:
    """Plan the tasks that send the halo's gradients to the owners, which add what they get to their own."""
    if op.out in plan.overlapped:  # whose aggregation has sent the gradients
        return
    source, grad, travel = op.inputs[0], plan.grads[op.out], travel_of(plan, op)
    if op.out not in plan.ahead.returning:
        depart_back(plan, op)
    returned = plan.ahead.returning.pop(op.out)
    own = FirstRows(grad.buffer, plan.num_rows(plan.program.level(source)))

    def run() -> None:
        travel.wait()
        travel.add(returned.tensor, own.tensor)

    plan.do(f"gradient of {source}", run, grad, returned)
    alone = len(plan.program.consumers(source)) == 1 and source not in plan.grads
    if alone and not isinstance(plan.program.producer(source), Own):
        plan.grads[source] = own
        return
    target, is_there = plan.grad_of(source)
    join = add if is_there else copy
    plan.do(f"gradient of {source}", lambda: join(own.tensor, target.tensor), own, target)


def _overlapped(plan: StepPlan, op: Exchange) -> Overlapped | PeerReads:
    return Overlapped(plan, op) if why_rows_travel(plan) else PeerReads(plan, op)


def _received_once(plan: StepPlan, op: Exchange, x: Read) -> Constant:
    """Return own rows and the halo's of a matrix that no step changes, exchanged when it is first read."""
    travel, route = travel_of(plan, op, once=True), route_of(plan, op)
    shape = plan.num_rows(plan.program.level(op.out)), plan.program.width(op.out)

    def make() -> Tensor:
        rows = x.get().contiguous()
        out = rows.new_empty(shape)
        out[: rows.shape[0]] = rows
        travel.begin(rows, rows.new_empty(route.num_sent, shape[1]), out[rows.shape[0] :])
        travel.wait()
        return out

    return Constant(shape, make, is_copy=True)


__all__ = ["backward_exchange", "depart_back", "depart_early", "forward_exchange"]
