"""Trace: measured and predicted timelines of an epoch, for Perfetto (or chrome://tracing) and as HTML."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphbraid.collective.plan.dispatcher import Resource
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import simulated
from graphbraid.collective.plan.simulator import Stage, StageRun
from graphbraid.collective.plan.times import format_seconds
from graphbraid.files.writing import atomic_write

_NAMES: dict[Stage, str] = {
    "cpu": "batching",
    "dma": "copy",
    "uva": "batching on the device",
    "model": "model",
}
_COLOURS: dict[Stage, str] = {"cpu": "#4c78a8", "dma": "#f58518", "uva": "#54a24b", "model": "#b279a2"}
_LANE_HEIGHT, _LEFT, _WIDTH = 18, 90, 1400


def write_trace(
    path: str | os.PathLike[str], ops: Sequence[StageRun], plan: Plan, *, num_batches: int | None = None
) -> tuple[Path, Path]:
    """Write the measured and the predicted timeline of an epoch.

    Args:
        path: path of the JSON file; the HTML page gets the same name with the suffix ``.html``.
        ops: stages that ran, as in :attr:`graphbraid.collective.run.executor.Executor.ops`.
        plan: plan that was followed; its simulation is the predicted timeline.
        num_batches: number of steps in the epoch. If None, as planned.

    Returns:
        The paths of the JSON file and of the page.

    Raises:
        ResourceError: a file cannot be written.
    """
    predicted = simulated(plan, num_batches=num_batches).ops
    target = Path(path)
    page = target.with_suffix(".html")
    with atomic_write(target) as aside:
        aside.write_text(json.dumps(trace_events(ops, predicted)) + "\n", encoding="utf-8")
    with atomic_write(page) as aside:
        aside.write_text(_page(ops, predicted, plan), encoding="utf-8")
    return target, page


def trace_events(ops: Sequence[StageRun], predicted: Sequence[StageRun]) -> dict[str, Any]:
    """Return both timelines in the trace-event format: a process for each timeline, a thread per lane."""
    events: list[dict[str, Any]] = []
    for process, (name, of_process) in enumerate((("measured", ops), ("predicted", predicted)), start=1):
        events.append(_meta("process_name", process, 0, name))
        for thread, lane in enumerate(lanes(of_process), start=1):
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
                for op in lanes(of_process)[lane]
            ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def lanes(ops: Sequence[StageRun]) -> dict[str, list[StageRun]]:
    """Return the operations by lane: workers, link, device. Batching on the device is on the last two."""
    found: dict[str, list[StageRun]] = {}
    workers = sorted({op.worker for op in ops if op.stage == "cpu"})
    for worker in workers:
        found[f"worker {worker}"] = [op for op in ops if op.stage == "cpu" and op.worker == worker]
    for lane, stages in (("link", ("dma", "uva")), ("device", ("uva", "model"))):
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
        elif lane == "device":
            found["device"] = busy
        else:
            found["cpu"] += busy / len(workers)
    return found


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _page(ops: Sequence[StageRun], predicted: Sequence[StageRun], plan: Plan) -> str:
    last = max((op.end for op in (*ops, *predicted)), default=0.0) or 1.0
    legend = " ".join(
        f'<span style="color:{_COLOURS[stage]}">&#9632;</span> {_NAMES[stage]}' for stage in _NAMES
    )
    parts = [
        "<!doctype html><meta charset='utf-8'><title>graphbraid: an epoch's timeline</title>",
        "<style>body{font:14px sans-serif;margin:2em}pre{background:#8881;padding:1em}</style>",
        f"<h1>An epoch's timeline</h1><p>{legend}</p>",
        _picture("Measured", ops, last),
        _picture("Predicted", predicted, last),
        f"<h2>Plan</h2><pre>{html.escape(str(plan))}</pre>",
    ]
    return "\n".join(parts) + "\n"


def _picture(title: str, ops: Sequence[StageRun], last: float) -> str:
    """Draw one lane per row; all pictures of a page have the same scale."""
    rows = lanes(ops)
    end = max((op.end for op in ops), default=0.0)
    shares = ", ".join(f"{resource} {100 * share:.0f} %" for resource, share in use(ops).items())
    boxes = []
    for row, (lane, of_lane) in enumerate(rows.items()):
        y = row * _LANE_HEIGHT
        boxes.append(f'<text x="0" y="{y + 13}">{lane}</text>')
        for op in of_lane:
            x, width = _LEFT + _WIDTH * op.start / last, _WIDTH * (op.end - op.start) / last
            what = f"{_NAMES[op.stage]}, step {op.step}, {format_seconds(op.end - op.start)}"
            boxes.append(
                f'<rect x="{x:.2f}" y="{y + 2}" width="{max(width, 0.3):.2f}" height="{_LANE_HEIGHT - 4}" '
                f'fill="{_COLOURS[op.stage]}"><title>{what}</title></rect>'
            )
    size = f'width="{_LEFT + _WIDTH}" height="{len(rows) * _LANE_HEIGHT}"'
    return (
        f"<h2>{title}: {format_seconds(end)}</h2><p>In use: {shares}</p>"
        f'<svg {size} font-size="11">{"".join(boxes)}</svg>'
    )
