"""Traces: every operation once per lane it occupies, in the format Perfetto reads, and as a page."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from tests.collective.cases import stage_times
from tests.collective.emulation import NUM_STEPS, make_executor

from graphbraid.collective.plan.scheduler import fixed_plan, simulated
from graphbraid.collective.plan.simulator import StageRun
from graphbraid.collective.plan.times import Arrangement, Profile
from graphbraid.collective.run.trace import (
    _waiting,
    foreseen,
    lanes,
    trace_events,
    use,
    write_trace,
)

TIMES = stage_times(0.004, 0.001, 0.001, 0.002, workers=2)


def test_a_trace_holds_measured_and_predicted_lanes(tmp_path):
    executor = make_executor(TIMES, share=0.5)
    for _ in executor:
        pass
    path, page = write_trace(tmp_path / "out.json", executor.ops, executor.plan)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {"measured", "predicted", "worker 0", "worker 1", "link", "device"}
    for process in (1, 2):
        boxes = [e for e in events if e["ph"] == "X" and e["pid"] == process]
        # 20 copied steps have three stages; 20 of the device have two, of which one is on two lanes.
        assert len(boxes) == 20 * 3 + 20 * 3
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in boxes)
        assert {e["args"]["step"] for e in boxes} == set(range(NUM_STEPS))
    text = page.read_text()
    svgs = [f"<svg{part.split('</svg>')[0]}</svg>" for part in text.split("<svg")[1:]]
    assert [ElementTree.fromstring(svg).tag for svg in svgs] == ["svg", "svg"]
    assert text.count("<rect") == 2 * 120
    assert "T_uva" in text
    assert "limits this epoch" in text
    assert "http" not in text


def test_where_cores_were_divided_by_trials_the_timeline_ends_when_the_plan_says():
    on_cpu = stage_times(0.004, 2e-6, 0.002, workers=2)
    plan = fixed_plan(Profile(times=(on_cpu,)), 10, 1.0)
    tried = replace(plan, cores=Arrangement(workers=2, threads=1), predicted_seconds=3.0)
    assert max(op.end for op in foreseen(tried)) == pytest.approx(3.0)
    assert max(op.end for op in foreseen(tried, 5)) == pytest.approx(1.5)
    assert list(lanes(foreseen(tried))) == ["worker 0", "worker 1", "model"]
    assert foreseen(plan) == simulated(plan).ops


def test_batches_wait_from_their_last_stage_to_their_step():
    ops = [
        StageRun("cpu", 0, 0.0, 1.0, 0),
        StageRun("dma", 0, 1.0, 2.0, 0),
        StageRun("model", 0, 3.0, 4.0, 0),
    ]
    assert _waiting(ops) == [(2.0, 1), (3.0, 0)]
    schedule = simulated(fixed_plan(Profile(times=(TIMES,)), 40, 0.5))
    levels = [level for _, level in _waiting(schedule.ops)]
    assert min(levels) == 0
    assert levels[-1] == 0
    assert max(levels) <= 40


def test_use_is_each_resources_share_of_the_time():
    schedule = simulated(fixed_plan(Profile(times=(TIMES,)), 40, 0.5))
    seconds = schedule.seconds
    # 20 copied batches by 2 workers; 20 of the device hold the link, too; the model trains on all.
    expected = {"cpu": 20 * 0.004 / 2, "link": 20 * (0.001 + 0.002), "device": 40 * 0.001 + 20 * 0.002}
    assert use(schedule.ops) == pytest.approx({name: busy / seconds for name, busy in expected.items()})
    assert use([]) == {"cpu": 0.0, "link": 0.0, "device": 0.0}


def test_no_lane_is_drawn_for_what_did_not_run():
    schedule = simulated(fixed_plan(Profile(times=(TIMES,)), 10, 0.0))
    assert list(lanes(schedule.ops)) == ["link", "device"]
    on_cpu = stage_times(0.004, 2e-6, 0.002, workers=2)
    schedule = simulated(fixed_plan(Profile(times=(on_cpu,)), 10, 1.0))
    assert list(lanes(schedule.ops)) == ["worker 0", "worker 1", "model"]
    assert use(schedule.ops)["link"] == 0.0
    assert trace_events([], [])["traceEvents"] == [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "measured"}},
        {"name": "process_name", "ph": "M", "pid": 2, "tid": 0, "args": {"name": "predicted"}},
    ]
