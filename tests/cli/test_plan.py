"""graphbraid plan: measures or reads times, shows and writes a plan that train follows."""

import json

import pytest

from graphbraid.collective import Duration, Plan, Profile, StageTimes
from graphbraid.collective.plan import scheduler
from graphbraid.collective.plan.scheduler import Machine, alternatives


def duration(seconds):
    return Duration(seconds=seconds, cv=0.05)


TIMES = StageTimes(
    workers=4,
    cpu=duration(0.08),
    dma=duration(0.006),
    model=duration(0.008),
    uva=duration(0.014),
    gpu=duration(0.004),
)
PROFILE = Profile(times=(TIMES,), host_batch_bytes=1 << 20, device_batch_bytes=1 << 20)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def profile(tmp_path):
    PROFILE.save(tmp_path / "profile.json")
    return tmp_path / "profile.json"


def test_a_run_is_measured_planned_and_trained_by_the_plan(graphbraid, store, tmp_path):
    options = ("--data", store, "--hidden", 8, "--batch-size", 32, "--fanouts", "5,5")
    done = graphbraid(
        "plan", *options, "--out", tmp_path / "plan.json", "--save-profile", tmp_path / "p.json"
    )
    for part in ("T_cpu", "T_model", "split", "predicted", "limited by the", "what if", "speedup"):
        assert part in done.stdout
    plan = Plan.load(tmp_path / "plan.json")
    assert (plan.name, plan.num_batches) == ("cpu", 4)
    assert Profile.load(tmp_path / "p.json").times[0].model.seconds > 0
    trained = graphbraid(
        "train",
        *options,
        "--plan",
        tmp_path / "plan.json",
        "--out",
        tmp_path / "run",
        "--epochs",
        1,
        "--json",
    )
    assert trained.json["options"]["plan"] == str(tmp_path / "plan.json")


@pytest.mark.slow
def test_a_saved_profile_is_planned_without_measuring_and_for_other_hardware(graphbraid, profile, tmp_path):
    here = graphbraid("plan", "--profile", profile, "--batches", 200, "--json").json
    assert here["plan"]["name"] == "braided"
    assert here["plan"]["predicted_seconds"] <= 1.02 * here["plan"]["bound_seconds"]
    assert set(here["what_if"]) == {"8 cores", "2 cores", "link twice as fast", "device twice as fast"}
    (tmp_path / "machine.json").write_text(json.dumps({"graphbraid": "machine", "link_speed": 4.0}))
    options = ("plan", "--profile", profile, "--batches", 200, "--hardware", tmp_path / "machine.json")
    there = graphbraid(*options, "--json").json
    assert there["plan"]["predicted_seconds"] < here["plan"]["predicted_seconds"]
    assert there["machine"]["link_speed"] == 4.0


def test_options_of_a_measurement_are_refused_beside_a_profile(graphbraid, profile):
    for option, value in (
        ("--batch-size", 64),
        ("--hidden", 8),
        ("--set", "lr=0.1"),
        ("--data", "braid-10k"),
    ):
        done = graphbraid("plan", "--profile", profile, option, value, code=2)
        assert f"{option} says what to measure" in done.stderr


def test_a_long_epoch_goes_on_as_its_beginning_does(monkeypatch):
    """A million batches were simulated one by one, for each of the plans that are shown."""
    simulated_batches = []
    simulated = scheduler.simulated
    monkeypatch.setattr(
        scheduler, "simulated", lambda plan: simulated_batches.append(plan.num_batches) or simulated(plan)
    )
    monkeypatch.setattr(scheduler, "_SIMULATED_BATCHES", 500)
    found = scheduler.make_plan(Profile(times=(TIMES,)), 10**6)
    assert max(simulated_batches) <= 1000
    assert found.num_batches == 10**6
    monkeypatch.setattr(scheduler, "_SIMULATED_BATCHES", 2000)
    whole = scheduler.make_plan(Profile(times=(TIMES,)), 4000)
    assert found.predicted_seconds == pytest.approx(250 * whole.predicted_seconds, rel=0.01)


def test_more_cores_keep_the_speed_of_the_nearest_measured_number():
    two = Profile(times=(TIMES.with_workers(1), TIMES))
    more = Machine(cores=9).apply(two)
    assert [times.workers for times in more.times] == [1, 2, 4, 9]
    assert {times.cpu.seconds for times in more.times} == {0.08}
    assert [times.workers for times in Machine(cores=2).apply(two).times] == [1, 2]
    assert Machine(core_speed=2.0).apply(two).times[0].cpu.seconds == pytest.approx(0.04)


@pytest.mark.slow
def test_faster_hardware_is_never_predicted_slower():
    plans = dict(alternatives(PROFILE, 200, Machine()))
    from graphbraid.collective import make_plan

    here = make_plan(PROFILE, 200).predicted_seconds
    for name in ("8 cores", "link twice as fast", "device twice as fast"):
        assert plans[name].predicted_seconds <= here * 1.001, name
    assert plans["2 cores"].predicted_seconds >= here * 0.999


def test_a_machine_comes_back_from_its_file(tmp_path):
    machine = Machine(cores=16, link_speed=2.0, device_bytes=1 << 30)
    machine.save(tmp_path / "machine.json")
    assert Machine.load(tmp_path / "machine.json") == machine
