"""How the rows of a step get to the ranks that read them, and why so, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphbraid.fullgraph.ranks import tuner as parts
from graphbraid.fullgraph.ranks import warp_tuner as warps

if TYPE_CHECKING:
    from graphbraid.fullgraph.ranks.tuner import PipelineTuner
    from graphbraid.fullgraph.step.planned_step import PlannedStep


def exchanges(step: PlannedStep, tuner: PipelineTuner | None) -> list[str]:
    """Return the lines about the exchanges of one of several ranks; none where there is nothing to choose.

    Args:
        step: the rank's step.
        tuner: what finds its settings. If None, they are given.
    """
    lines = _on_host(step, tuner) if step.copies is None else _on_device(step, tuner)
    return ["Exchanges", *lines] if lines else []


def _on_host(step: PlannedStep, tuner: PipelineTuner | None) -> list[str]:
    if step.pipeline is None:
        return []
    return [f"  {parts.described(step.pipeline)}"] if tuner is None else tuner.explain()


def _on_device(step: PlannedStep, tuner: PipelineTuner | None) -> list[str]:
    read = list(step.peer_reads)
    travel = [name for name in step.exchanged_rows if name not in step.peer_reads]
    lines = []
    if read:
        lines.append(f"  read where peers keep them: {', '.join(read)}")
        lines += [f"  {warps.described(step.warps)}"] if tuner is None else tuner.explain()
    if travel:
        reason = step.why_rows_travel or "what reads them is not one sum of float32 rows alone"
        lines.append(f"  travel: {', '.join(travel)}: {reason}")
    return lines


__all__ = ["exchanges"]
