"""Times, profiles and plans: checked when made, the same after a file, clear about broken files."""

import dataclasses
import json

import pytest
from tests.collective.cases import stage_times

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import make_plan
from graphbraid.collective.plan.times import Duration, Profile, format_seconds
from graphbraid.errors import ConfigError, DataError

TIMES = stage_times(0.02, 0.003, 0.004, 0.006, workers=2, cv=0.05, gpu=0.002)
PROFILE = Profile(times=(TIMES, TIMES.with_workers(4)), host_batch_bytes=10, device_batch_bytes=20)


def test_a_plan_and_a_profile_come_back_from_a_file_as_they_were(tmp_path):
    plan = make_plan(PROFILE, 60)
    plan.save(tmp_path / "plan.json")
    PROFILE.save(tmp_path / "profile.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert Profile.load(tmp_path / "profile.json") == PROFILE
    assert Plan.load(tmp_path / "plan.json").routes() == plan.routes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda v: v.update(colour="red"), "colour: Unexpected"),
        (lambda v: v.update(gbs="many"), "gbs: Input should be a valid integer"),
        (lambda v: v.update(num_cpu=61), "num_cpu must be in"),
        (lambda v: v.update(predicted_seconds=-1.0), "predicted_seconds must be 0 or more"),
        (
            lambda v: v["times"]["cpu"].update(seconds=-1),
            "times.cpu.*seconds must be 0 or more",
        ),
        (lambda v: v.update(graphbraid="profile"), "is no plan: it holds a profile"),
    ],
)
def test_a_broken_plan_file_is_refused_with_the_field_that_is_wrong(tmp_path, change, says):
    path = tmp_path / "plan.json"
    make_plan(PROFILE, 60).save(path)
    values = json.loads(path.read_text())
    del values["checksum"]  # as one does who edits it
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match=says):
        Plan.load(path)


def test_a_missing_file_and_a_list_are_data_errors(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the plan .*No such file"):
        Plan.load(tmp_path / "no.json")
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(DataError, match="has no field"):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Duration(seconds=float("nan")), "seconds must be 0 or more"),
        (lambda: Duration(seconds=1.0, cv=-0.1), "cv must be 0 or more"),
        (lambda: TIMES.with_workers(0), "workers must be a positive number"),
        (lambda: dataclasses.replace(TIMES, uva=None), "gpu was given without uva"),
        (lambda: stage_times(0.0, 0.0, 0.0), "cannot all take no time"),
        (lambda: Profile(times=()), "rising, distinct"),
        (lambda: Profile(times=(TIMES, TIMES)), "rising, distinct"),
        (lambda: Profile(times=(TIMES,), host_batch_bytes=-1), "host_batch_bytes must be 0 or more"),
        (lambda: TIMES.what_if(link=0.0), "link must be a positive factor"),
        (
            lambda: dataclasses.replace(make_plan(PROFILE, 9), num_cpu=1, times=stage_times(1, 1, 1)),
            "for the device to prepare",
        ),
        (lambda: dataclasses.replace(make_plan(PROFILE, 9), gbs=0), "gbs must be a positive number"),
    ],
)
def test_what_cannot_be_meant_is_a_config_error(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_faster_link_speeds_up_only_the_part_of_uva_beyond_the_devices_own():
    faster = TIMES.what_if(link=2.0)
    assert faster.uva.seconds == pytest.approx(0.002 + 0.004 / 2)
    assert faster.dma.seconds == pytest.approx(0.0015)
    assert (faster.cpu, faster.model, faster.gpu) == (TIMES.cpu, TIMES.model, TIMES.gpu)
    both = TIMES.what_if(core=2.0, device=4.0)
    assert both.uva.seconds == pytest.approx(0.002 / 4 + 0.004)
    assert (both.cpu.seconds, both.model.seconds) == pytest.approx((0.01, 0.001))
    assert stage_times(1, 1, 1, 1).what_if(link=4.0).uva.seconds == 0.25


def test_a_printed_plan_names_times_split_buffers_bound_and_runner_ups():
    text = str(make_plan(PROFILE, 60))
    for part in ("T_cpu", "20 ms ± 5 %", "T_uva", "split", "cbs", "workers", "limited by the", "gpu "):
        assert part in text, text
    assert len(max(text.splitlines(), key=len)) <= 100


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0 s"), (2.5, "2.5 s"), (0.00123, "1.23 ms"), (4e-6, "4 us")]
)
def test_seconds_are_written_with_their_unit(value, text):
    assert format_seconds(value) == text


def test_a_plan_of_stages_that_take_no_time_is_told():
    plan = dataclasses.replace(make_plan(PROFILE, 60), predicted_seconds=0.0)
    assert plan.runner_ups
    assert "times the plan's" not in str(plan)
