"""The text of ``explain()``: the lowered program, the arena, how a device runs it, what ranks exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphbraid.fullgraph.lowering.costs import in_bytes
from graphbraid.fullgraph.lowering.lower_program import decision_lines, operation_lines
from graphbraid.fullgraph.program import Break, written_lines
from graphbraid.fullgraph.ranks.pipeline_tuner import described
from graphbraid.fullgraph.step.replay import ReplayedStep

if TYPE_CHECKING:
    from graphbraid.fullgraph.device import Device
    from graphbraid.fullgraph.lowering.lower_program import Lowered
    from graphbraid.fullgraph.ranks.pipeline_tuner import PipelineTuner
    from graphbraid.fullgraph.step.maps import SpmmChoice
    from graphbraid.fullgraph.step.planned_step import PlannedStep


def explain(
    lowered: Lowered, planned: PlannedStep, choices: Sequence[SpmmChoice], *, level_bytes: int = 0
) -> str:
    """Return the explanation of a lowered program and its training step, as lines to print.

    Args:
        lowered: the program and its decisions.
        planned: its training step.
        choices: the kernels chosen for a device's aggregations.
        level_bytes: bytes of the levels' own edges and node ids.
    """
    breaks = [op for op in lowered.program.ops if isinstance(op, Break) and op.is_graph_break]
    lines = [*written_lines(breaks), *decision_lines(lowered.program, lowered.costs.doubt)]
    lines += operation_lines(lowered.program, lowered.num_rows)
    arena, device = planned.arena, lowered.options.device
    lines.append("Arena")
    lines.append(
        f"  {in_bytes(arena.nbytes)} for {len(arena.buffers)} matrices that would take "
        f"{in_bytes(arena.separate_bytes)} apart; {in_bytes(arena.least_bytes)} are live at once"
    )
    what = "what is computed once" if device.is_host else "what is computed once and copied to the device"
    lines.append(f"  {in_bytes(planned.nbytes)} with {what}")
    if planned.streams is not None:
        lines += planned.streams.explain()
    if level_bytes:
        lines.append(f"  {in_bytes(planned.nbytes + level_bytes)} with the levels' own edges and node ids")
    return "\n".join(lines if device.is_host else lines + _on_device(planned, device, choices))


def _on_device(planned: PlannedStep, device: Device, choices: Sequence[SpmmChoice]) -> list[str]:
    """Return the lines about how a device runs the step, which is known once it has run."""
    lines = [f"Device {device.place}", *(f"  aggregation of {choice}" for choice in choices)]
    if not isinstance(planned, ReplayedStep):
        lines.append("  nothing has run yet: the first step chooses kernels, the second is recorded")
    elif planned.why_not:
        lines.append(f"  every kernel is started by a call of its own: {planned.why_not}")
    else:
        state = "recorded" if planned.is_recorded else "to be recorded in the next step"
        lines.append(f"  forward and backward are {state}, each started by one call")
    return lines


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
