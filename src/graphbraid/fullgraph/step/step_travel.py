"""StepTravel: what ranks ask of a planned step about the rows of others, and how it gets them."""

from __future__ import annotations

from graphbraid.fullgraph.lowering.levels import Blocks
from graphbraid.fullgraph.lowering.route import Pipeline
from graphbraid.fullgraph.program import Exchange, Program
from graphbraid.fullgraph.step.planned.exchanges.chunked import Chunked
from graphbraid.fullgraph.step.planned.exchanges.peer_reads import PeerReads, why_rows_travel
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.peers.pipeline_plan import Knobs


class StepTravel:
    """The exchanges of a planned step, and the settings of how their rows are had, which may change."""

    program: Program
    training: bool
    host_blocks: Blocks
    _plan: StepPlan

    @property
    def exchanged_rows(self) -> dict[str, tuple[int, int]]:
        """Rows that each exchange of a training step sends forward and back, by the value's name.

        What no step changes is sent only once, when the memory is allocated, and does not count.
        """
        plan, found = self._plan, dict[str, tuple[int, int]]()
        for op in self.program.ops:
            if isinstance(op, Exchange) and op.out not in plan.constants:
                route = self.host_blocks[self.program.level(op.inputs[0])].of(None).route
                assert route is not None
                goes_back = self.training and self.program.learns(op.out)
                found[op.out] = route.num_sent, route.num_received * goes_back
        return found

    @property
    def pipeline(self) -> Pipeline | None:
        """How many parts the halo of an aggregation travels in, the same on all ranks; None: whole.

        Where there is one, it may be replaced between two steps by one of no more parts.
        """
        return self._plan.pipeline

    @pipeline.setter
    def pipeline(self, pipeline: Pipeline) -> None:
        assert self._plan.pipeline is not None, "the step was planned with halos that travel whole"
        self._plan.pipeline = pipeline
        self._plan.divided.chunk_maps.clear()
        for chunked in self.chunked.values():
            chunked.forget()

    @property
    def warps(self) -> Knobs:
        """The knobs of the kernel that reads peers' rows, alike on all ranks; may change between steps."""
        return self._plan.warps

    @warps.setter
    def warps(self, knobs: Knobs) -> None:
        self._plan.warps = knobs

    @property
    def peer_reads(self) -> dict[str, PeerReads]:
        """The exchanges whose rows are read where peers keep them, by the value's name."""
        return {name: one for name, one in self._plan.overlapped.items() if isinstance(one, PeerReads)}

    @property
    def why_rows_travel(self) -> str:
        """Why rows of peers are not read where they are; empty if they are where an operation can."""
        return why_rows_travel(self._plan)

    @property
    def chunked(self) -> dict[str, Chunked]:
        """The exchanges whose rows are summed part by part, by the value's name, in the program's order."""
        overlapped = self._plan.overlapped
        return {name: found for name, found in overlapped.items() if isinstance(found, Chunked)}


__all__ = ["StepTravel"]
