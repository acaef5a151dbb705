"""The tasks of an exchange of rows between ranks: rows to the halos, their gradients back."""

from __future__ import annotations

from torch import Tensor

from graphbraid.fullgraph.program import DestinationRows, Exchange, Operation
from graphbraid.fullgraph.step.arena import Constant, FirstRows
from graphbraid.fullgraph.step.operations.overlap import Overlapped, can_overlap
from graphbraid.fullgraph.step.operations.peer_reads import PeerReads, why_rows_travel
from graphbraid.fullgraph.step.operations.row_exchange import depart_back, route_of, travel_of
from graphbraid.fullgraph.step.plan import PlannedClass, PlannedOperation, StepPlan


class PlannedExchange(PlannedOperation[Exchange]):
    """An exchange; an aggregation that reads its rows begins without the halo."""

    def __init__(self, plan: StepPlan, op: Exchange) -> None:
        super().__init__(plan, op)
        self._num_own = plan.num_rows(plan.program.level(self.source))

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
            made.plan_departure()
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
        """Plan to send the halo's gradients to the owners, which add what they get to their own."""
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
        alone = len(plan.program.consumers(source)) == 1 and source not in plan.grads
        if alone and not isinstance(plan.program.producer(source), DestinationRows):
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


PLANNED: dict[type[Operation], PlannedClass] = {Exchange: PlannedExchange}
"""The classes of this module, by the operation that they plan."""
