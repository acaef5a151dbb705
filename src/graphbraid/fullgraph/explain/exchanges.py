"""Which rows of a step are read where peers keep them, which travel, and why, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphbraid.fullgraph.ranks.warp_tuner import described

if TYPE_CHECKING:
    from graphbraid.fullgraph.ranks.tuner import PipelineTuner
    from graphbraid.fullgraph.step.planned_step import PlannedStep


def exchanges(step: PlannedStep, tuner: PipelineTuner | None) -> list[str]:
    """Return the lines about the exchanges of a step on devices.

    Args:
        step: the step.
        tuner: what finds the knobs of the kernel that reads peers' rows. If None, they are given.
    """
    read, travel = (
        list(step.peer_reads),
        [name for name in step.exchanged_rows if name not in step.peer_reads],
    )
    lines = ["Exchanges"]
    if read:
        lines.append(f"  read where peers keep them: {', '.join(read)}")
        lines += [f"  {described(step.warps)}"] if tuner is None else tuner.explain()
    if travel:
        reason = step.why_rows_travel or "what reads them is not one sum of float32 rows alone"
        lines.append(f"  travel: {', '.join(travel)}: {reason}")
    return lines if len(lines) > 1 else []


__all__ = ["exchanges"]
