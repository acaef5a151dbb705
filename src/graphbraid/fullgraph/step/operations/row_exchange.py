"""Rows on their way between ranks, to the halos that read them and, as gradients, back; and rows that stay.

The gradient of a source's row is a sum over its own edges alone. So the halo's gradients, which others wait
for, are computed first. Own rows' gradients are computed while those travel. The bits are the same.

An aggregation may also read rows where peers keep them, in place of rows that travel. Its map and the memory
that peers read are made when the task first runs: all ranks run tasks in one order, while planning sends
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.distributed.peers import PeerMap, Peers, PeerSum, places_of_halo
from graphbraid.fullgraph.lowering.levels import Route
from graphbraid.fullgraph.program import Aggregate, Exchange
from graphbraid.fullgraph.step.operations.linear import EpilogueOfRows
from graphbraid.fullgraph.step.plan import StepPlan
from graphbraid.fullgraph.step.tasks import FirstRows, MaskSeed, Rows
from graphbraid.graph.csc import Csc, index_dtype, indptr_of
from graphbraid.ops.aggregation import Aggregation, aggregated, follow_up
from graphbraid.ops.kernels import recorded_whole
from graphbraid.ops.peers import PeerEdges, most_bytes

if TYPE_CHECKING:
    from graphbraid.distributed.ranks.communicator import Communicator, Handle


HOST = torch.device("cpu")


class RowExchange:
    """The rows of one exchange. Wait for one transfer before beginning the next.

    For the way, rows are rounded to ``wire``, to nearest. If ``by_host``, rows of a device, ``place``, go by
    way of the host's memory.
    """

    def __init__(
        self,
        comm: Communicator,
        route: Route,
        num_own: int,
        width: int,
        wire: torch.dtype = torch.float32,
        *,
        place: torch.device = HOST,
        by_host: bool = False,
    ) -> None:
        self._comm, self._num_own, self._width, self._wire = comm, num_own, width, wire
        self._place, self._by_host = place, by_host
        self._is_direct = wire == torch.float32 and not by_host
        self.route = route
        """The rows that travel."""
        self._handle: Handle[Tensor] | None = None
        self._receiver: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rounded rows, which are kept from the first transfer on."""
        if self._wire == torch.float32 or self._by_host:
            return 0
        return (self.route.num_sent + self.route.num_received) * self._width * self._wire.itemsize

    @recorded_whole
    def begin(self, own: Tensor, packed: Tensor, halo: Tensor) -> None:
        """Begin to send some of ``own``, copied to ``packed`` first, and to receive the halo's rows."""
        torch.index_select(own, 0, self._send, out=packed)
        sent, received = (packed, halo) if self._is_direct else self._between
        self._depart(packed, sent, received, halo, back=False)

    @recorded_whole
    def begin_back(self, halo: Tensor, returned: Tensor) -> None:
        """Begin to send the gradients of the halo's rows, and to receive those of the rows sent."""
        received, sent = (returned, halo) if self._is_direct else self._between
        self._depart(halo, sent, received, returned, back=True)

    @recorded_whole
    def wait(self) -> None:
        """Wait for the exchange that was begun.

        Raises:
            RankError: a rank was lost, has stalled or has failed.
        """
        assert self._handle is not None
        arrived = self._handle.wait()
        if self._receiver is not None and self._receiver is not arrived:
            self._receiver.copy_(arrived)
        self._handle = self._receiver = None

    def _depart(self, rows: Tensor, sent: Tensor, received: Tensor, receiver: Tensor, *, back: bool) -> None:
        """Begin to send ``rows``, copied to ``sent``; rows arrive in ``received`` and end in ``receiver``."""
        if sent is not rows:
            sent.copy_(rows)
        counts = (self.route.send_rows, self.route.receive_rows)
        self._receiver = receiver
        self._handle = self._comm.all_to_all(sent, *(counts[::-1] if back else counts), received)

    @cached_property
    def _send(self) -> Tensor:
        """Ids of own rows to send, on the device of the rows."""
        return self.route.send.to(self._place)

    @cached_property
    def _between(self) -> tuple[Tensor, Tensor]:
        """Buffers for sent and received rows that are rounded, on the host, or both; swapped in backward."""
        route, place = self.route, HOST if self._by_host else self._place
        count, pins = route.num_sent + route.num_received, self._by_host and self._place.type == "cuda"
        rows = torch.empty(count, self._width, dtype=self._wire, device=place, pin_memory=pins)
        return rows[: route.num_sent], rows[route.num_sent :]

    @cached_property
    def _adding(self) -> Aggregation:
        """The map that adds returned row i to own row ``send[i]``, in order."""
        rows, num_rows = self.route.send, self._num_own
        indptr = indptr_of(torch.bincount(rows, minlength=num_rows))
        indices = rows.argsort(stable=True).to(index_dtype(max(rows.numel(), 1)))
        place = self._place
        return Aggregation(csc=Csc(indptr.to(place), indices.to(place), rows.numel(), trusted=True))

    def add(self, returned: Tensor, own: Tensor) -> None:
        """Add the received gradients to those of own rows, in the order of the ranks."""
        if self.route.num_sent:
            aggregated(self._adding, returned, addend=own, out=own)


def route_of(plan: StepPlan, op: Exchange) -> Route:
    """Return the rows that an exchange moves."""
    route = plan.request.blocks[plan.program.level(op.inputs[0])].of(None).route
    assert route is not None
    return route


def travel_of(plan: StepPlan, op: Exchange, *, once: bool = False) -> RowExchange:
    """Return the mover of an exchange's rows for both directions, and count its memory.

    Rows that move ``once``, when memory is allocated, are not rounded.
    """
    if op.out in plan.exchanges.travels:
        return plan.exchanges.travels[op.out]
    assert plan.comm is not None, "a program with exchanges is planned with its ranks"
    wire = torch.float32 if once else plan.request.wire
    travel = RowExchange(
        plan.comm,
        route_of(plan, op),
        plan.count_of(op.inputs[0]),
        plan.program.width(op.out),
        wire,
        place=HOST if plan.copies is None else plan.copies.place,
        by_host=plan.request.peers is not None and plan.request.peers.by_host,
    )
    plan.exchanges.nbytes += travel.nbytes
    plan.exchanges.travels[op.out] = travel
    return travel


def depart_back(plan: StepPlan, op: Exchange) -> None:
    """Plan to send the halo's gradients to the owners; :meth:`.PlannedExchange.backward` waits."""
    route, grad, travel = route_of(plan, op), plan.grads[op.out], travel_of(plan, op)
    num_own = plan.count_of(op.inputs[0])
    returned = plan.scratch(f"{op.out}: returned gradients", route.num_sent, plan.program.width(op.out))
    plan.exchanges.returning[op.out] = returned

    def depart() -> None:
        travel.begin_back(grad.tensor[num_own:], returned.tensor)

    plan.do(f"gradient of {op.inputs[0]}: depart", depart, grad, returned)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SourcePart:
    """The edges of some sources, as a block of their own for kernels that go back by source."""

    rows: slice
    """The sources."""
    indptr: Tensor
    """``(num_rows + 1,)`` int64, by source."""
    indices: Tensor
    """``(num_edges,)`` destinations."""
    perm: Tensor
    """``(num_edges,)`` int64: an edge's position in its whole row, behind ``forward_indptr`` of that row."""
    forward_indptr: Tensor
    """``(num_dst + 1,)`` int64: the part's edges by destination."""


class SourceSplit:
    """The two parts of a block's sources, own rows and then the halo's, each made when it is first read."""

    def __init__(self, csc: Csc, num_own: int) -> None:
        self._csc, self._num_own = csc, num_own

    @property
    def nbytes(self) -> int:
        """Bytes that the parts take beside the block's transpose."""
        csc = self._csc
        return 8 * (csc.num_src + 2 + csc.num_edges + 2 * (csc.num_dst + 1))

    @cached_property
    def own(self) -> SourcePart:
        """The part of own rows."""
        return self._part(slice(0, self._num_own))

    @cached_property
    def halo(self) -> SourcePart:
        """The part of the halo's rows."""
        return self._part(slice(self._num_own, self._csc.num_src))

    def _part(self, rows: slice) -> SourcePart:
        csc = self._csc
        reverse, perm = csc.transpose()
        ends = reverse.indptr[rows.start : rows.stop + 1]
        edges = slice(int(ends[0]), int(ends[-1]))
        to = reverse.indices[edges].long()
        forward = indptr_of(torch.bincount(to, minlength=csc.num_dst))
        return SourcePart(
            rows=rows,
            indptr=ends - ends[0],
            indices=reverse.indices[edges],
            perm=perm[edges] - csc.indptr[to] + forward[to],
            forward_indptr=forward,
        )


def exchange_before(plan: StepPlan, value: str) -> Exchange | None:
    """Return the exchange that brings rows of ``value`` in each step, if one operation reads them.

    All ranks get the same answer. None, too, if the gradient of ``value`` has been added to already.
    """
    maker, program = plan.program.producer(value), plan.program
    if not isinstance(maker, Exchange) or not plan.request.begins_early or plan.copies is not None:
        return None
    is_first = value not in plan.grads and len(program.consumers(value)) == 1
    return maker if is_first and program.learns(maker.inputs[0]) else None


def source_split(plan: StepPlan, csc: Csc, maker: Exchange) -> SourceSplit:
    """Return the split of a block whose sources' rows ``maker`` brings, made once for all layers over it."""
    if id(csc) not in plan.exchanges.source_splits:
        split = plan.exchanges.source_splits[id(csc)] = SourceSplit(csc, plan.count_of(maker.inputs[0]))
        plan.exchanges.nbytes += split.nbytes
    return plan.exchanges.source_splits[id(csc)]


def plan_by_source(
    plan: StepPlan, maker: Exchange, split: SourceSplit, run: Callable[[SourcePart], None], *touches: Rows
) -> None:
    """Plan a gradient of exchanged rows: the halo's part, which departs, then own rows' while it travels.

    ``run`` computes the gradient of a part's rows, and touches ``touches``.
    """
    plan.do(f"gradient of {maker.out}: halo", lambda: run(split.halo), *touches)
    depart_back(plan, maker)
    plan.do(f"gradient of {maker.out}: own", lambda: run(split.own), *touches)


def whole_part(csc: Csc) -> SourcePart:
    """Return all sources of a block as one part, in the memory of its transpose."""
    reverse, perm = csc.transpose()
    return SourcePart(
        rows=slice(0, csc.num_src),
        indptr=reverse.indptr,
        indices=reverse.indices,
        perm=perm,
        forward_indptr=csc.indptr,
    )


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

    ``how`` is the map over own rows and, after them, the halo's, on the host; ``route`` has the rows that
    would travel.
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
        num_own = plan.count_of(op.inputs[0])
        how, route = block.bind(plan.whole_map(reader.adjacency)), route_of(plan, op)
        made = LazyMap(how, num_own, route, plan.request.peers, learns=plan.training)
        plan.exchanges.peer_maps[key] = made
        plan.exchanges.nbytes += made.nbytes
    return plan.exchanges.peer_maps[key]
