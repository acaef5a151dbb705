"""How the rows of a step get to the ranks that read them, and why so, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphbraid.fullgraph.ranks.pipeline_tuner import described

if TYPE_CHECKING:
    from graphbraid.fullgraph.ranks.pipeline_tuner import PipelineTuner
    from graphbraid.fullgraph.step.planned_step import PlannedStep


def exchanges(step: PlannedStep, tuner: PipelineTuner | None) -> list[str]:
    """Return the lines about the exchanges of one of several ranks on a device; none on the host.

    Args:
        step: the rank's step.
        tuner: what finds the kernel's configuration. If None, it is given.
    """
    if step.request.copies is None:
        return []
    read = list(step.peer_reads)
    travel = [name for name in step.exchanged_rows if name not in step.peer_reads]
    lines = ["Exchanges"] if read or travel else []
    if read:
        lines.append(f"  read where peers keep them: {', '.join(read)}")
        lines += [f"  {described(step.pipeline)}"] if tuner is None else tuner.explain()
    if travel:
        reason = step.why_rows_travel or "what reads them is not one sum of float32 rows alone"
        lines.append(f"  travel: {', '.join(travel)}: {reason}")
    return lines


__all__ = ["exchanges"]
