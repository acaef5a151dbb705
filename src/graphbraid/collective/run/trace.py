"""Trace: measured and predicted timelines of an epoch, for Perfetto (or chrome://tracing) and as HTML."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import simulated
from graphbraid.collective.plan.simulator import Resource, Stage, StageRun
from graphbraid.collective.plan.times import format_seconds
from graphbraid.figures import page, table
from graphbraid.files.writing import atomic_write

_NAMES: dict[Stage, str] = {
    "cpu": "batching",
    "dma": "copy",
    "uva": "batching on the device",
    "model": "model",
}
_COLOURS: dict[Stage, str] = {"cpu": "#4c78a8", "dma": "#f58518", "uva": "#54a24b", "model": "#b279a2"}
_LANE_HEIGHT, _WIDTH = 22, 1000
_HAND_OVER = 1e-5
"""Seconds: a batch that stays in the host's memory is passed on in about two microseconds."""


def write_trace(
    path: str | os.PathLike[str], ops: Sequence[StageRun], plan: Plan, *, num_batches: int | None = None
) -> tuple[Path, Path]:
    """Write the measured and the predicted timeline of an epoch; ResourceError if a file cannot be written.

    Args:
        path: path of the JSON file; the HTML page gets the same name with the suffix ``.html``.
        ops: stages that ran, as in :attr:`graphbraid.collective.run.executor.Executor.ops`.
        plan: plan that was followed; its simulation is the predicted timeline.
        num_batches: number of steps in the epoch. If None, as planned.

    Returns:
        The paths of the JSON file and of the page.
    """
    predicted = foreseen(plan, num_batches)
    target = Path(path)
    beside = target.with_suffix(".html")
    with atomic_write(target) as aside:
        aside.write_text(json.dumps(trace_events(ops, predicted)) + "\n", encoding="utf-8")
    with atomic_write(beside) as aside:
        aside.write_text(_page(ops, predicted, plan), encoding="utf-8")
    return target, beside


def foreseen(plan: Plan, num_batches: int | None = None) -> list[StageRun]:
    """Return the predicted timeline of an epoch, by default of the plan's length.

    If trials divided the cores, stages share them: all are stretched by one factor to the time of the trial,
    and a batch is handed over without a link.
    """
    epoch = simulated(plan, num_batches=num_batches)
    if plan.cores is None:
        return epoch.ops
    tried = plan.predicted_seconds * (num_batches or plan.num_batches) / plan.num_batches
    factor = tried / epoch.seconds if epoch.seconds else 1.0
    stretched = [op._replace(start=op.start * factor, end=op.end * factor) for op in epoch.ops]
    return [op for op in stretched if op.stage != "dma"]


def trace_events(ops: Sequence[StageRun], predicted: Sequence[StageRun]) -> dict[str, Any]:
    """Return both timelines in the trace-event format: a process for each timeline, a thread per lane."""
    events: list[dict[str, Any]] = []
    for process, (name, of_process) in enumerate((("measured", ops), ("predicted", predicted)), start=1):
        events.append(_meta("process_name", process, 0, name))
        for thread, (lane, of_lane) in enumerate(lanes(of_process).items(), start=1):
            events.append(_meta("thread_name", process, thread, lane))
            events += [
                {
                    "name": f"{_NAMES[op.stage]} {op.step}",
                    "cat": op.stage,
                    "ph": "X",
                    "ts": round(1e6 * op.start, 3),
                    "dur": round(1e6 * (op.end - op.start), 3),
                    "pid": process,
                    "tid": thread,
                    "args": {"step": op.step},
                }
                for op in of_lane
            ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def lanes(ops: Sequence[StageRun]) -> dict[str, list[StageRun]]:
    """Return the operations by lane: workers, link, device. Batching on the device is on the last two.

    Without a device there is no link, and the model has a lane of its own.
    """
    found: dict[str, list[StageRun]] = {}
    workers = sorted({op.worker for op in ops if op.stage == "cpu"})
    for worker in workers:
        found[f"worker {worker}"] = [op for op in ops if op.stage == "cpu" and op.worker == worker]
    crosses = any(op.stage == "uva" or (op.stage == "dma" and op.end - op.start > _HAND_OVER) for op in ops)
    links: dict[str, tuple[Stage, ...]] = {"link": ("dma", "uva"), "device": ("uva", "model")}
    for lane, stages in (links if crosses else {"model": ("model",)}).items():
        on_lane = [op for op in ops if op.stage in stages]
        if on_lane:
            found[lane] = sorted(on_lane, key=lambda op: op.start)
    return found


def use(ops: Sequence[StageRun]) -> dict[Resource, float]:
    """Return the share of the time, up to the last operation's end, that each resource works.

    These are the figures of MorphGL, Table 5.
    """
    total = max((op.end for op in ops), default=0.0)
    found: dict[Resource, float] = {"cpu": 0.0, "link": 0.0, "device": 0.0}
    if total == 0.0:
        return found
    by_lane = lanes(ops)
    workers = [lane for lane in by_lane if lane.startswith("worker")]
    for lane, of_lane in by_lane.items():
        busy = sum(op.end - op.start for op in of_lane) / total
        if lane == "link":
            found["link"] = busy
        elif lane in ("device", "model"):
            found["device"] = busy
        else:
            found["cpu"] += busy / len(workers)
    return found


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


TIMELINE_STYLE = """
.lanes{display:flex}.lanes .names{flex:none;width:5.5rem;font-size:12px;line-height:22px}
.lanes .scroll{flex:1}.lanes .time{width:calc(100% * var(--zoom, 1))}.lanes svg{display:block;width:100%;
height:revert-layer}.ticks{display:flex;font-size:11px;justify-content:space-between;border-top:1px solid
#8888}.use>span{white-space:nowrap;margin-right:1rem}meter{width:6rem}
"""
"""Style of :func:`timelines`."""
_ZOOM = "document.documentElement.style.setProperty('--zoom',this.value)"


def _page(ops: Sequence[StageRun], predicted: Sequence[StageRun], plan: Plan) -> str:
    """Return the page: both timelines on one axis, and how busy each resource was."""
    took, planned = (max((op.end for op in each), default=0.0) for each in (ops, predicted))
    said = (
        f"The epoch took {format_seconds(took)}; {format_seconds(planned)} were predicted. No schedule "
        f"takes less than {format_seconds(_bound(ops, plan))}, the dashed line: the {plan.limit} limits "
        "this epoch."
    )
    zoom = f'<label>Zoom <input type="range" min="1" max="40" value="1" step="0.5" oninput="{_ZOOM}"></label>'
    drawn = f"<style>{TIMELINE_STYLE}</style><p>{said}</p>{zoom}{timelines(predicted, ops, plan)}"
    sections = [("Timelines", drawn), ("Plan", table(plan.rows()))]
    return page("An epoch's timeline", sections)


def timelines(predicted: Sequence[StageRun], measured: Sequence[StageRun], plan: Plan) -> str:
    """Draw both timelines on one axis, and the key of their colours; a measured one may be missing."""
    if plan.cores is not None:  # without a device a batch is handed over, which takes no link
        measured = [op for op in measured if op.stage != "dma"]
    last = max((op.end for op in (*predicted, *measured)), default=0.0) or 1.0
    bound = _bound(measured or predicted, plan)
    used = {op.stage for op in (*predicted, *measured)}
    key = " ".join(
        f'<span><span style="color:{_COLOURS[stage]}">&#9632;</span> {_NAMES[stage]}</span>'
        for stage in _NAMES
        if stage in used
    )
    ticks = "".join(f"<span>{format_seconds(last * part / 4)}</span>" for part in range(5))
    drawn = [("Predicted", predicted), ("Measured", measured)]
    return f'<p class="use">{key} <span>grey: batches that wait</span> <span>dashed: the bound</span></p>' + (
        "".join(_timeline(title, ops, last, bound, ticks) for title, ops in drawn if ops)
    )


def _bound(ops: Sequence[StageRun], plan: Plan) -> float:
    """Return the bound of a timeline, which may be of another number of batches than the plan."""
    return plan.bound_seconds * len({op.step for op in ops}) / plan.num_batches


def _timeline(title: str, ops: Sequence[StageRun], last: float, bound: float, ticks: str) -> str:
    rows = lanes(ops)
    boxes = []
    for row, of_lane in enumerate(rows.values()):
        for op in of_lane:
            x, width = _WIDTH * op.start / last, _WIDTH * (op.end - op.start) / last
            what = f"{_NAMES[op.stage]}, batch {op.step}, {format_seconds(op.end - op.start)}"
            boxes.append(
                f'<rect x="{x:.2f}" y="{row * _LANE_HEIGHT + 2}" width="{max(width, 0.2):.2f}" '
                f'height="{_LANE_HEIGHT - 4}" fill="{_COLOURS[op.stage]}"><title>{what}</title></rect>'
            )
    levels = _waiting(ops)
    most, base = max((level for _, level in levels), default=0), (len(rows) + 1) * _LANE_HEIGHT
    steps = "".join(
        f"H{_WIDTH * at / last:.2f}V{base - (_LANE_HEIGHT - 4) * level / max(most, 1):.2f}"
        for at, level in levels
    )
    at = _WIDTH * min(bound / last, 1.0)
    line = (
        f'<path d="M{at:.2f} 0V{base}" stroke="currentColor" stroke-dasharray="4 3" '
        'vector-effect="non-scaling-stroke"/>'
    )
    shares = " ".join(
        f"<span>{resource} <meter value='{share:.3f}'></meter> {share:.0%}</span>"
        for resource, share in use(ops).items()
        if share > 0
    )
    names = "".join(f"<div>{name}</div>" for name in [*rows, f"waiting, {most}"])
    return (
        f"<h3>{title}: {format_seconds(max((op.end for op in ops), default=0.0))}</h3>"
        f'<p class="use">{shares}</p>'
        f'<div class="lanes"><div class="names">{names}</div><div class="scroll"><div class="time">'
        f'<svg viewBox="0 0 {_WIDTH} {base}" height="{base}" preserveAspectRatio="none">{"".join(boxes)}'
        f'<path d="M0 {base}{steps}H{_WIDTH}V{base}Z" fill="#8888"/>{line}</svg>'
        f'<div class="ticks">{ticks}</div></div></div></div>'
    )


def _waiting(ops: Sequence[StageRun]) -> list[tuple[float, int]]:
    """Return when the number of batches that wait for training changes, and the new numbers."""
    ready: dict[int, float] = {}
    for op in ops:
        if op.stage != "model":
            ready[op.step] = max(ready.get(op.step, 0.0), op.end)
    changes = [(at, 1) for at in ready.values()]
    changes += [(op.start, -1) for op in ops if op.stage == "model" and op.step in ready]
    level, found = 0, []
    for at, change in sorted(changes, key=lambda each: (each[0], -each[1])):
        level += change
        found.append((at, level))
    return found
