"""StepTravel: what ranks ask of a planned step about the rows of others, and how it gets them."""

from __future__ import annotations

from graphbraid.fullgraph.lowering.levels import Blocks
from graphbraid.fullgraph.program import Exchange, Program
from graphbraid.fullgraph.step.planned.exchanges.peer_reads import PeerReads, why_rows_travel
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.peers.pipeline_plan import PipelineConfig


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
    def pipeline(self) -> PipelineConfig:
        """How the kernel that reads peers' rows divides its work; alike on all ranks."""
        return self._plan.pipeline

    @pipeline.setter
    def pipeline(self, config: PipelineConfig) -> None:
        self._plan.pipeline = config

    @property
    def peer_reads(self) -> dict[str, PeerReads]:
        """The exchanges whose rows are read where peers keep them, by the value's name."""
        return {name: one for name, one in self._plan.overlapped.items() if isinstance(one, PeerReads)}

    @property
    def why_rows_travel(self) -> str:
        """Why rows of peers are not read where they are; empty if they are where an operation can."""
        return why_rows_travel(self._plan)


__all__ = ["StepTravel"]
