"""The text of ``explain()``: the lowered program, the arena, and how a device runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphbraid.fullgraph.lowering.lowered import decision_lines, operation_lines
from graphbraid.fullgraph.step.replay import ReplayedStep

if TYPE_CHECKING:
    from graphbraid.fullgraph.device import Device
    from graphbraid.fullgraph.lowering.lowered import Lowered
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
    lines = decision_lines(lowered.program, lowered.basis.doubt)
    lines += operation_lines(lowered.program, lowered.num_rows)
    arena, device = planned.arena, lowered.options.device
    lines.append("Arena")
    lines.append(
        f"  {_mega(arena.nbytes)} for {len(arena.buffers)} matrices that would take "
        f"{_mega(arena.separate_bytes)} apart; {_mega(arena.least_bytes)} are live at once"
    )
    what = "what is computed once" if device.is_host else "what is computed once and copied to the device"
    lines.append(f"  {_mega(planned.nbytes)} with {what}")
    if planned.streams is not None:
        lines += planned.streams.explain()
    if level_bytes:
        lines.append(f"  {_mega(planned.nbytes + level_bytes)} with the levels' own edges and node ids")
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


def _mega(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
