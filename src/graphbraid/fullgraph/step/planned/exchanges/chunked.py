"""An aggregation whose halo travels in parts: each part is summed as it has come, while others are under way.

In how many parts, the plan's :class:`.Pipeline` says, which may change from step to step; the bits are those
of rows that travel whole (:mod:`.chunk_maps`). The maps of the parts are made when a step first needs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from graphbraid.fullgraph.lowering.route import Chunks, Pipeline
from graphbraid.fullgraph.program import Exchange
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.repeated import MaskSeed, Repeated
from graphbraid.fullgraph.step.calls.rows import FirstRows, Read
from graphbraid.fullgraph.step.calls.travel import Travel
from graphbraid.fullgraph.step.planned.exchanges.chunk_maps import (
    PartialSums,
    backward_maps,
    chunk_bytes,
    forward_maps,
)
from graphbraid.fullgraph.step.planned.exchanges.overlap import EpilogueOf, Overlapped
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.aggregation import Aggregation, aggregated

if TYPE_CHECKING:
    from graphbraid.distributed.ranks.communicator import Communicator
    from graphbraid.fullgraph.lowering.route import Route


@dataclass(frozen=True, eq=False, slots=True)
class _Way:
    """What rows in so many parts need on their way to the halos, or their gradients on the way back."""

    chunks: Chunks
    travels: Sequence[Travel]
    maps: Sequence[Aggregation]

    def parts(self) -> Iterator[tuple[Travel, slice, slice]]:
        """Yield what moves each part, and its places among the rows that are sent and received."""
        yield from zip(self.travels, self.chunks.sent, self.chunks.received, strict=True)


class _Returning(Travel):
    """The gradients of the rows that were sent, which come back in parts, for those who wait for them all."""

    def __init__(self, comm: Communicator, route: Route, num_own: int, width: int) -> None:
        super().__init__(comm, route, num_own, width)
        self.wait_for_parts: Callable[[], None] = lambda: None
        """Waits for all parts, which then stand in the route's order."""

    def wait(self) -> None:
        """Wait for all parts."""
        self.wait_for_parts()


class Chunked(Overlapped):
    """The rows of one exchange, in parts, and the aggregation that reads them."""

    def __init__(self, plan: StepPlan, op: Exchange) -> None:
        super().__init__(plan, op)
        self._num_own = plan.num_rows(plan.program.level(op.inputs[0]))
        assert isinstance(self._halo, kernels.BothWays), "rows of devices travel whole"
        self._both = self._halo
        self._sums = _partial_sums(plan, self._both)
        self._rows = self._scratch("halo and sums", self._route.num_received + self._sums.count)
        self._forth: _Way | None = None
        self._back: _Way | None = None
        plan.travel_bytes += self._travel.nbytes  # gradients are rounded in memory of their own

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on the wire."""
        return self._width * self._plan.wire.itemsize

    @property
    def most_rows(self) -> int:
        """Rows that this rank sends or receives, whichever are more."""
        return max(self._route.num_sent, self._route.num_received)

    @property
    def sum_bytes(self) -> int:
        """Bytes of the sums that each further part reads and writes."""
        return 2 * 4 * self._sums.count * self._width

    def forget(self) -> None:
        """Let go of the maps, because the number of parts has changed."""
        self._forth = self._back = None

    # ---- forward

    def plan_departure(self, early: FirstRows | None = None) -> None:
        """Plan the task that sends own rows, or those that are there already, and receives, part by part."""
        plan, halo, name = self._plan, self._rows, f"{self._reader.out}: rows depart"
        packed = self._packed = self._scratch("rows to send", self._route.num_sent)
        x = plan.read(self._source) if early is None else None

        def depart() -> None:
            forth = self._way_forth()
            for travel, sent, received in forth.parts():
                if x is not None:
                    travel.begin(x.get(), packed.tensor[sent], halo.tensor[received])
                elif early is not None:
                    order = forth.chunks.sent_order[sent]
                    torch.index_select(early.tensor, 0, order, out=packed.tensor[sent])
                    travel.begin_packed(packed.tensor[sent], halo.tensor[received])

        reads = x.touches if x is not None else () if early is None else (early,)
        plan.do(name, depart, packed, halo, *reads)

    def plan_forward(
        self, out: FirstRows, addends: Sequence[Read], after: EpilogueOf, seed: MaskSeed | None
    ) -> None:
        """Plan the sum of own rows and the addend, if any, then that of each part as it has come."""
        plan, x, name = self._plan, self._plan.read(self._source), self._reader.out
        own, halo = self._own, self._rows
        touches = tuple(rows for addend in addends for rows in addend.touches)

        def run_own() -> None:
            kernels.aggregate(own, x.get(), out.tensor, addends[0].get() if addends else None)

        def run_halo() -> None:
            forth = self._way_forth()
            sums = halo.tensor[self._route.num_received :]
            for travel, how in zip(forth.travels[:-1], forth.maps[:-1], strict=True):
                travel.wait()
                aggregated(how, halo.tensor, out=sums)
            forth.travels[-1].wait()
            aggregated(forth.maps[-1], halo.tensor, addend=out.tensor, out=out.tensor, after=after(out))

        self._plan_meanwhile(f"{name}: own rows", run_own, out, *x.touches, *touches)
        assert self._packed is not None
        plan.do(name, run_halo, out, halo, self._packed)

    # ---- backward

    def plan_backward(self, grad: FirstRows) -> None:
        """Plan the gradients of the halo's rows, which depart part by part, then those of own rows."""
        plan, name = self._plan, f"gradient of {self._source}"
        halo = self._scratch("gradient of the halo", self._route.num_received)
        returned = self._scratch("returned gradients", self._route.num_sent)
        comes_in_order = sum(count > 0 for count in self._route.send_rows) <= 1
        by_part = returned if comes_in_order else self._scratch("returned by part", self._route.num_sent)

        def run_halo() -> None:
            back = self._way_back()
            for (travel, sent, received), how in zip(back.parts(), back.maps, strict=True):
                aggregated(how, grad.tensor, out=halo.tensor[received])
                travel.begin_back(halo.tensor[received], by_part.tensor[sent])

        def wait() -> None:
            back = self._way_back()
            for travel in back.travels:
                travel.wait()
            if not comes_in_order:
                returned.tensor.index_copy_(0, back.chunks.sent_order, by_part.tensor)

        plan.do(f"{name}: halo", run_halo, grad, halo, by_part)
        assert plan.comm is not None
        returning = _Returning(plan.comm, self._route, self._num_own, self._width)
        returning.wait_for_parts = wait
        self._plan_own_backward(grad, returning, (halo, returned, by_part))

    # ---- details

    def _way_forth(self) -> _Way:
        if self._forth is None:
            chunks = Chunks(self._route, self._pipeline.chunks)
            maps = self._shared(
                chunks.count, back=False, make=lambda: forward_maps(self._both.how, self._sums, chunks)
            )
            self._forth = _Way(chunks, self._travels(chunks), maps)
        return self._forth

    def _way_back(self) -> _Way:
        if self._back is None:
            chunks = Chunks(self._route, self._pipeline.back_chunks)
            maps = self._shared(
                chunks.count, back=True, make=lambda: backward_maps(self._both.reverse, chunks)
            )
            self._back = _Way(chunks, self._travels(chunks), maps)
        return self._back

    @property
    def _pipeline(self) -> Pipeline:
        assert self._plan.pipeline is not None
        return self._plan.pipeline

    def _travels(self, chunks: Chunks) -> list[Travel]:
        plan = self._plan
        assert plan.comm is not None
        return [Travel(plan.comm, route, self._num_own, self._width, plan.wire) for route in chunks.routes]

    def _shared(
        self, count: int, *, back: bool, make: Callable[[], list[Aggregation]]
    ) -> Sequence[Aggregation]:
        """Return maps that all layers over the same edges share."""
        key = (id(self._both), count, back)
        if key not in self._plan.divided.chunk_maps:
            self._plan.divided.chunk_maps[key] = make()
        return self._plan.divided.chunk_maps[key]

    def _plan_meanwhile(self, name: str, run: Callable[[], None], *touches: FirstRows) -> None:
        """Plan a task that runs while rows travel, bound as others are, on the pipeline's threads."""
        repeated = Repeated(run)
        self._plan.repeated.append(repeated)

        def limited() -> None:
            with _on_threads(self._pipeline.threads):
                repeated()

        self._plan.do(name, limited, *touches)


def _partial_sums(plan: StepPlan, halo: kernels.BothWays) -> PartialSums:
    """Return the rows of a map that are summed part by part, once for all layers over the same edges."""
    key, pipeline = id(halo), plan.pipeline
    assert pipeline is not None
    if key not in plan.divided.partial_sums:
        sums = plan.divided.partial_sums[key] = PartialSums.of(halo.how.csc)
        plan.divided.nbytes += chunk_bytes(halo.how, sums, pipeline.chunks, pipeline.back_chunks)
    return plan.divided.partial_sums[key]


@contextlib.contextmanager
def _on_threads(count: int | None) -> Iterator[None]:
    """Run kernels on so many threads for a while."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


__all__ = ["Chunked"]
