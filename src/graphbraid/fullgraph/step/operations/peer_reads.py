"""The tasks of an aggregation whose rows are read where peers keep them, in place of rows that travel.

Its map and the memory that peers read are made when the task first runs, which all ranks run in one order: a
plan alone tells nobody anything.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from graphbraid.distributed.peers.group import Peers
from graphbraid.distributed.peers.peer_sum import PeerMap, PeerSum, places_of_halo
from graphbraid.fullgraph.lowering.levels import Route
from graphbraid.fullgraph.program import Aggregate, Exchange
from graphbraid.fullgraph.step.arena import FirstRows, Rows
from graphbraid.fullgraph.step.bound_call import MaskSeed
from graphbraid.fullgraph.step.operations.linear import EpilogueOfRows
from graphbraid.fullgraph.step.operations.row_exchange import route_of
from graphbraid.fullgraph.step.plan import StepPlan
from graphbraid.ops.aggregation import Aggregation, follow_up
from graphbraid.ops.peers.peer_rows import PeerEdges
from graphbraid.ops.peers.pipeline_plan import most_bytes

LEAST_EDGES = 4
"""Edges of the smallest partition that is tried. A plan with it takes the most memory."""


def why_rows_travel(plan: StepPlan) -> str:
    """Return why rows are sent rather than read from peers, the same on all ranks; empty if they are read."""
    if plan.request.peers is None:
        return "the ranks compute on the host"
    if plan.request.wire != torch.float32:
        return f"rows are rounded to {str(plan.request.wire).removeprefix('torch.')} on their way"
    return plan.request.peers.why_not


class LazyMap:
    """A linear map over own rows and those of peers, made when it is first needed.

    Args:
        how: the map over own rows and, after them, the halo's, on the host.
        num_own: number of own rows.
        route: the rows that would travel.
        peers: the ranks.
        learns: whether gradients are asked for.
    """

    def __init__(self, how: Aggregation, num_own: int, route: Route, peers: Peers, *, learns: bool) -> None:
        self._how, self._num_own, self._route = how, num_own, route
        self._peers, self._learns = peers, learns

    def made(self) -> PeerMap:
        """Make the map; all ranks do so together."""
        comm, route = self._peers.comm, self._route
        owner, row = places_of_halo(comm, route.send, route.send_rows, route.receive_rows)
        ranks = {"rank": comm.rank, "num_ranks": comm.size}
        edges = PeerEdges.of(self._how, self._num_own, owner, row, **ranks)
        return PeerMap(self._peers, edges, learns=self._learns)

    @property
    def nbytes(self) -> int:
        """Bytes of both directions' edges on the device, at most.

        How many edges leave own rows is known only when the map is made. This assumes as many as arrive.
        """
        csc = self._how.csc
        num_edges = csc.num_edges + self._how.num_loops
        return sum(
            most_bytes(num_edges, rows, LEAST_EDGES)
            for rows in (csc.num_dst, self._num_own)[: 1 + self._learns]
        )

    @cached_property
    def degrees(self) -> tuple[Tensor, Tensor]:
        """In-edges of each row from own rows and from others'."""
        csc = self._how.csc
        rows, is_own = csc.destinations().long(), csc.indices < self._num_own
        own = torch.bincount(rows[is_own], minlength=csc.num_dst)
        own[: self._how.num_loops] += 1
        return own, torch.bincount(rows[~is_own], minlength=csc.num_dst)


class PeerReads:
    """The rows of one exchange, which stay where they are, and the aggregation that reads them."""

    def __init__(self, plan: StepPlan, op: Exchange) -> None:
        self._plan, self._source = plan, op.inputs[0]
        (self._reader,) = plan.program.consumers(op.out)
        assert isinstance(self._reader, Aggregate)
        self.width = plan.program.width(op.out)
        """Columns of the rows."""
        self.lazy = _map_of(plan, op, self._reader)
        """The map, before it is made."""
        self._made: tuple[PeerMap, PeerSum] | None = None
        learns = plan.training and plan.program.learns(self._source)
        rows = plan.count_of(self._source) + plan.count_of(self._reader.out) * learns
        plan.exchanges.nbytes += 4 * self.width * rows

    def _mapped(self) -> PeerMap:
        """Make the map. If all ranks have made the same one before, they share it."""
        assert self._plan.request.peers is not None
        made = self._plan.exchanges.made_maps
        same = next((place for place, (lazy, _) in enumerate(made) if lazy is self.lazy), -1)
        told = set(self._plan.request.peers.comm.gather(same))
        if told == {same} and same >= 0:
            return made[same][1]
        made.append((self.lazy, self.lazy.made()))
        return made[-1][1]

    def plan_departure(self) -> None:
        """Plan nothing: rows are published by the task that reads them."""

    def plan_forward(
        self, out: FirstRows, added: Rows | None, after: EpilogueOfRows, seed: MaskSeed | None
    ) -> None:
        """Plan to publish own rows, and the sums of own and peers' rows."""
        plan, x = self._plan, self._plan.rows(self._source)

        def run() -> None:
            if self._made is None:
                mapped = self._mapped()
                self._made = mapped, PeerSum(mapped, self.width)
            mapped, summed = self._made
            mapped.config = plan.exchanges.pipeline
            summed.forward(x.tensor, addend=None if added is None else added.tensor, out=out.tensor)
            follow_up(out.tensor, after(out))

        plan.do(self._reader.out, run, out, x, added)

    def plan_backward(self, grad: FirstRows) -> None:
        """Plan to publish the sums' gradients, and to add them up for own rows."""
        target, is_there = self._plan.grad_of(self._source)

        def run() -> None:
            assert self._made is not None
            _, summed = self._made
            summed.backward(grad.tensor, addend=target.tensor if is_there else None, out=target.tensor)

        self._plan.do(f"gradient of {self._source}", run, grad, target)


def _map_of(plan: StepPlan, op: Exchange, reader: Aggregate) -> LazyMap:
    """Return the map of an aggregation, one for all layers over the same edges."""
    block = plan.request.blocks[plan.program.level(op.out)].of(None)
    key = (reader.adjacency, id(block))
    if key not in plan.exchanges.peer_maps:
        assert plan.request.peers is not None
        num_own = plan.num_rows(plan.program.level(op.inputs[0]))
        how, route = block.bind(plan.whole_map(reader.adjacency)), route_of(plan, op)
        made = LazyMap(how, num_own, route, plan.request.peers, learns=plan.training)
        plan.exchanges.peer_maps[key] = made
        plan.exchanges.nbytes += made.nbytes
    return plan.exchanges.peer_maps[key]
