"""The profiler finds the durations an accelerator was given, in the time it may take, and keeps them."""

import time

import pytest
import torch
from benchmarks.common.emulated import EmulatedAccelerator
from tests.collective.cases import stage_times
from tests.collective.emulation import FAST, make_context
from tests.extras import once_undisturbed

from graphbraid.collective.plan.times import Arrangement, Duration, Profile, TimedArrangement
from graphbraid.collective.run import profiler
from graphbraid.collective.run.profiler import Effort, batch_bytes_of, cached, measure, profile_file
from graphbraid.collective.run.stages import make_operator

GIVEN = stage_times(0.008, 0.003, 0.004, 0.006)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))


@pytest.mark.slow
def test_the_given_durations_are_found_for_each_number_of_workers():
    def found():
        device = EmulatedAccelerator(GIVEN)
        profile = measure(make_context(device), [1, 3], train=lambda batch: None)
        assert [times.workers for times in profile.times] == [1, 3]
        for times in profile.times:
            for stage in ("cpu", "dma", "uva", "model"):
                found, given = getattr(times, stage).seconds, getattr(GIVEN, stage).seconds
                assert given <= found <= 2.0 * given, stage
        assert device.held_batches == 0
        assert profile.host_batch_bytes > 1000

    once_undisturbed(found)


def test_without_a_device_there_is_no_second_route_and_threads_are_set_before_training():
    def found():
        asked = []
        profile = measure(
            make_context(torch.device("cpu")),
            [1, 2],
            train=lambda batch: time.sleep(0.002),
            before_training=asked.append,
            effort=Effort(samples=4),
        )
        assert asked == [1, 2]
        assert all(times.uva is None and times.model.seconds >= 0.002 for times in profile.times)
        assert all(times.dma.seconds < times.model.seconds for times in profile.times)

    once_undisturbed(found)


@pytest.mark.slow
def test_a_slow_stage_is_cut_off_with_what_was_measured(monkeypatch):
    prepared, device = [], EmulatedAccelerator(stage_times(0.3, 0.001, 0.001, 0.001))
    monkeypatch.setattr(
        device, "check", lambda stage, step: prepared.append(step) if stage == "cpu" else None
    )
    profile = measure(make_context(device), [1], effort=Effort(warm_up=2, samples=10, seconds=0.5))
    assert len(prepared) == 4  # one to time it and one to copy, without look-ahead and with; 48 uncut
    assert profile.times[0].cpu.seconds >= 0.3


def test_an_error_while_measuring_is_raised():
    device = EmulatedAccelerator(FAST)
    device.fail("cpu", 0, lambda: RuntimeError("no sampler"))
    with pytest.raises(RuntimeError, match="no sampler"):
        measure(make_context(device), [2])


def test_a_measurement_that_sticks_out_does_not_count():
    assert Duration.typical([1.0, 1.0, 1.0, 9.0]) == Duration(seconds=1.0)
    assert Duration.typical([0.9, 1.1]).cv == pytest.approx(0.1)
    assert Duration.typical([0.0]) == Duration(seconds=0.0)


def test_a_profile_is_kept_by_machine_and_key_and_made_anew_where_broken(caplog):
    made = []

    def make():
        made.append(1)
        return Profile(times=(FAST,))

    key = {"graph": "small", "batch_size": 16}
    assert cached(key, make) == cached(dict(reversed(key.items())), make)
    assert len(made) == 1
    cached(key | {"batch_size": 32}, make)
    assert len(made) == 2
    profile_file(key).write_text("{}")
    assert cached(key, make) == Profile(times=(FAST,))
    assert len(made) == 3
    assert "what it held is measured again" in caplog.text
    assert cached(key, make) == Profile(times=(FAST,))
    assert len(made) == 3


def test_what_was_measured_beside_other_programs_is_not_kept(monkeypatch, caplog):
    monkeypatch.setattr("graphbraid.machine.measurements.MOST_OTHERS", 0.1)
    shares = [0.34, 0.05, 0.34]
    monkeypatch.setattr(profiler.OtherPrograms, "share", lambda _: shares.pop(0))
    made = []

    def make():
        made.append(1)
        return Profile(times=(FAST,))

    for count in (1, 2, 2):  # disturbed, undisturbed, read from the cache
        assert cached({"graph": "disturbed"}, make) == Profile(times=(FAST,))
        assert len(made) == count
    assert "other programs used 34 % of the cores while stages were measured" in caplog.text
    assert "the next run measures again" in caplog.text
    assert shares == [0.34]


def test_disturbed_trials_of_how_to_divide_the_cores_are_not_kept_either(monkeypatch, caplog):
    """A run whose bits depend on them keeps its plan in its folder."""
    monkeypatch.setattr("graphbraid.machine.measurements.MOST_OTHERS", 0.1)
    monkeypatch.setattr(profiler.OtherPrograms, "share", lambda _: 0.34)
    trial = TimedArrangement(cores=Arrangement(workers=1, threads=1), seconds=1.0)
    profile, key = Profile(times=(FAST,), trials=(trial,)), {"graph": "shared"}
    assert cached(key, lambda: profile) == profile
    assert not profile_file(key).exists()
    assert "the next run measures again" in caplog.text


def test_another_machine_or_version_measures_anew(monkeypatch):
    before = profile_file({"graph": "small"})
    monkeypatch.setattr(profiler, "VERSION", -1)
    assert profile_file({"graph": "small"}) != before


def test_the_bytes_of_a_batch_are_those_of_its_arrays():
    batch = make_operator("batching", "cpu", make_context(torch.device("cpu")))(0, 0)
    least = 8 * batch.num_nodes + 4 * 9 * batch.num_nodes + 4 * batch.num_edges
    assert least <= batch_bytes_of(batch) <= 3 * least + 10_000
