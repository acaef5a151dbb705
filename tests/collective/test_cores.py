"""Arrangements of a machine's cores: which are tried, what is made of the trials."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collective.cases import stage_times

from graphbraid.collective import Limits, Plan, Profile, make_plan
from graphbraid.collective.plan.scheduler import AHEAD, Machine, ahead_of, arrangements, expected_seconds
from graphbraid.collective.plan.times import Arrangement, TimedArrangement
from graphbraid.errors import ConfigError, DataError

TIMES = (stage_times(0.004, 0.0, 0.002, workers=1), stage_times(0.005, 0.0, 0.006, workers=3))
TURNS = Arrangement(workers=1, threads=4, turns=True)
STATIC = Arrangement(workers=3, threads=1)
PROFILE = Profile(
    times=TIMES,
    host_batch_bytes=100,
    trials=(TimedArrangement(cores=STATIC, seconds=0.003), TimedArrangement(cores=TURNS, seconds=0.002)),
)


@given(st.integers(2, 64), st.booleans())
def test_both_extremes_are_tried_and_none_twice(cores, may):
    found = arrangements(cores, [1, max(1, cores - 1)], may_take_turns=may)
    assert Arrangement(workers=1, threads=cores) in found
    assert Arrangement(workers=cores, threads=1) in found
    assert len(set(found)) == len(found)
    assert any(a.turns for a in found) == may
    assert all(a.turns or a.workers + a.threads <= cores + 1 for a in found)


def test_what_is_expected_is_the_slower_side_or_all_cores_time():
    # Training needs 6 ms of one core.
    assert expected_seconds(STATIC, TIMES, 4) == pytest.approx(0.006)
    assert expected_seconds(TURNS, TIMES, 4) == pytest.approx(0.004)
    assert expected_seconds(Arrangement(workers=2, threads=4, turns=True), TIMES, 4) == pytest.approx(0.0025)
    assert expected_seconds(Arrangement(workers=2, threads=2), TIMES, 4) == pytest.approx(0.003)


def test_the_plan_is_the_fastest_trial_and_names_the_others(tmp_path):
    plan = make_plan(PROFILE, 50)
    assert plan.cores == TURNS
    assert plan.workers == 1
    assert plan.predicted_seconds == pytest.approx(0.1)
    assert plan.bound_seconds <= plan.predicted_seconds
    assert [other.name for other in plan.runner_ups] == ["3 sampling, 1 training"]
    assert "1 sampling, 4 training, in turns" in str(plan)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    PROFILE.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == PROFILE


def test_memory_limits_what_is_prepared_ahead():
    assert ahead_of(TURNS, PROFILE, Limits()) == AHEAD
    assert ahead_of(TURNS, PROFILE, Limits(host_bytes=400)) == 4
    assert ahead_of(TURNS, PROFILE, Limits(host_bytes=1)) == 2
    assert ahead_of(STATIC, PROFILE, Limits(host_bytes=1)) == 9


def test_trials_count_only_for_the_machine_they_were_run_on():
    assert Machine().apply(PROFILE) == PROFILE
    other = Machine(cores=8).apply(PROFILE)
    assert other.trials == ()
    assert make_plan(other, 50).cores is None


def test_an_arrangement_without_threads_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="workers must be a positive number"):
        Arrangement(workers=0, threads=1)
    plan = make_plan(PROFILE, 50)
    plan.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text().replace('"threads": 4', '"threads": 0'))
    del content["checksum"]  # changed by hand
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="threads must be a positive number"):
        Plan.load(tmp_path / "plan.json")
