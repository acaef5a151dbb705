"""The tasks of an exchange of rows between ranks: rows to the halos, their gradients back.

Rows that other ranks wait for are computed and sent before the rest of their value. A value that is exchanged
often ends a chain of operations that work row by row, as a layer's linear map does. Only the rows to send are
taken through the chain first, and depart; then the whole value is computed, these rows once more, while they
travel. That needs no order of rows, and few rows are sent by a good partition.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Epilogue, Exchange, Linear, Operation, Own
from graphbraid.fullgraph.program.chains import Chain, chains_before
from graphbraid.fullgraph.step import epilogues
from graphbraid.fullgraph.step.arena import Constant, FirstRows, Rows
from graphbraid.fullgraph.step.operations.overlap import Overlapped, can_overlap
from graphbraid.fullgraph.step.operations.peer_reads import PeerReads, why_rows_travel
from graphbraid.fullgraph.step.operations.row_exchange import depart_back, route_of, travel_of
from graphbraid.fullgraph.step.plan import PlannedClass, PlannedOperation, StepPlan
from graphbraid.ops.linear import tall_product

MOST_SHARE = 0.5
"""Largest share of a rank's rows that is computed twice; for more, rows depart when all are there."""


def early_chains(plan: StepPlan) -> dict[str, tuple[Exchange, Chain]]:
    """Return the exchanges whose rows depart early on this rank, by the value of their chain's first map."""
    if plan.comm is None or not plan.request.begins_early or plan.copies is not None:
        return {}
    return {
        head: (op, chain)
        for head, (op, chain) in chains_before(plan.program).items()
        if torch.unique(route_of(plan, op).send).numel()
        <= MOST_SHARE * plan.num_rows(plan.program.level(op.inputs[0]))
    }


class PlannedExchange(PlannedOperation[Exchange]):
    """An exchange; an aggregation that reads its rows begins without the halo."""

    def __init__(self, plan: StepPlan, op: Exchange) -> None:
        super().__init__(plan, op)
        self._num_own = plan.num_rows(plan.program.level(self.source))
        self._departed: tuple[FirstRows, FirstRows] | None = None
        """The whole rows and those that are sent, if they depart before own rows are there."""

    def depart_early(self, chain: Chain) -> None:
        """Plan to compute the rows to send through a chain of operations and to send them first."""
        plan, op, packed = self.plan, self.op, self._plan_early_rows(chain)
        if can_overlap(plan, op):
            self._overlap(packed)
            return
        travel, num_own = travel_of(plan, op), self._num_own
        out = plan.new(op.out, op)
        self._departed = out, packed

        def depart() -> None:
            travel.begin_packed(packed.tensor, out.tensor[num_own:])

        plan.do(f"{op.out}: rows depart", depart, out, packed)

    def forward(self) -> None:
        """Plan to send own rows and receive the halo's; what no step changes travels only once."""
        plan, op, num_own = self.plan, self.op, self._num_own
        if op.out in plan.exchanges.overlapped:  # departed early
            return
        x = plan.rows(self.source)
        if isinstance(x, Constant):
            plan.constants[op.out] = self._received_once(x)
            return
        if can_overlap(plan, op):
            self._overlap(None)
            return
        travel = travel_of(plan, op)
        if self._departed is not None:
            out, packed = self._departed
            plan.values[op.out] = out
            plan.do(f"{op.out}: own rows", lambda: out.tensor[:num_own].copy_(x.tensor), out, x)
        else:
            out = plan.result(op)
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
        if alone and not isinstance(plan.program.producer(source), Own):
            plan.grads[source] = own
        else:
            plan.add_to_grad(source, own)

    def _overlap(self, packed: FirstRows | None) -> None:
        plan, op = self.plan, self.op
        made = Overlapped(plan, op) if why_rows_travel(plan) else PeerReads(plan, op)
        plan.exchanges.overlapped[op.out] = made
        made.plan_departure(packed)

    def _received_once(self, x: Constant) -> Constant:
        """Return own rows and the halo's of a matrix that no step changes, exchanged when first read."""
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

    def _plan_early_rows(self, chain: Chain) -> FirstRows:
        """Plan to compute the rows to send; return them, in the order in which they are sent."""
        plan, op, route = self.plan, self.op, route_of(self.plan, self.op)
        distinct, places = torch.unique(route.send, return_inverse=True)
        is_packed = distinct.numel() == route.num_sent
        early = _EarlyRows(plan, route.send if is_packed else distinct)
        for link in chain:
            found = early.plan(link)
        if is_packed:
            return found
        packed = plan.scratch(f"{op.out}: rows to send", route.num_sent, plan.program.width(op.out))

        def pack() -> None:
            torch.index_select(found.tensor, 0, places, out=packed.tensor)

        plan.do(f"{op.out}: pack", pack, found, packed)
        return packed


class _EarlyRows:
    """Some rows of the values of a chain.

    Args:
        plan: the step's plan.
        ids: ``(num_rows,)`` int64 rows that are computed.
    """

    def __init__(self, plan: StepPlan, ids: Tensor) -> None:
        self._plan, self._ids = plan, ids
        self._found: dict[str, FirstRows] = {}

    def plan(self, link: Linear | Epilogue) -> FirstRows:
        """Plan to compute these rows of the chain's next operation, and return them."""
        plan, ids = self._plan, self._ids
        out = plan.scratch(f"{link.out}: early rows", ids.numel(), plan.program.width(link.out))
        for addend in link.inputs[1:]:
            self._plan_addend(addend, out)
        source = self._found.get(link.inputs[0])
        x = plan.rows(link.inputs[0]) if source is None else source
        after = link if isinstance(link, Epilogue) else link.after
        draw, seed = None, None
        if after is not None:
            mask, nodes = plan.mask_of(after), plan.nodes_at(after.out, ids)
            mask.is_early = True
            draw = lambda: mask.of_early(nodes)  # noqa: E731
            seed = mask.seed(draw)
        run = self._run(link, x, out, draw, is_gathered=source is not None)
        plan.repeat(f"{link.out}: early rows", run, out, x, seed=seed)
        self._found[link.out] = out
        return out

    def _plan_addend(self, value: str, out: FirstRows) -> None:
        name, plan = f"{value}: early copy", self._plan
        if (found := self._found.get(value)) is not None:
            plan.do(name, lambda: out.tensor.copy_(found.tensor), found, out)
            return
        whole = plan.rows(value)
        plan.do(name, lambda: torch.index_select(whole.tensor, 0, self._ids, out=out.tensor), out, whole)

    def _run(
        self,
        link: Linear | Epilogue,
        x: Rows,
        out: FirstRows,
        draw: Callable[[], epilogues.Mask] | None,
        *,
        is_gathered: bool,
    ) -> Callable[[], object]:
        """Return the call that computes the rows from ``x``, which holds all rows or, if gathered, these."""
        after = link if isinstance(link, Epilogue) else link.after

        def multiply() -> None:
            assert isinstance(link, Linear)
            made = None
            if after is not None and draw is not None:
                made = epilogues.row_epilogue(after.bias_row(), after.act, draw(), out.tensor)
            matrix, adds, ids = link.matrix().t(), len(link.inputs) == 2, None if is_gathered else self._ids
            tall_product(x.tensor, matrix, out=out.tensor, add=adds, ids=ids, after=made)

        def through() -> None:
            assert isinstance(link, Epilogue)
            assert draw is not None
            epilogues.epilogue(x.tensor, link.bias_row(), link.act, draw(), out.tensor)

        return through if isinstance(link, Epilogue) else multiply


PLANNED: dict[type[Operation], PlannedClass] = {
    Exchange: PlannedExchange,
}
"""The classes of this module, by the operation that they plan."""

__all__ = ["MOST_SHARE", "PLANNED", "PlannedExchange", "early_chains"]
