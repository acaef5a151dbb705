"""Every simulated schedule keeps the paper's rules; waits add up."""

import dataclasses

import pytest
from benchmarks.planning.strategies import (
    braided,
    cpu_pipeline,
    drawn_routes,
    gpu_only,
    naive_hybrid,
    sequential,
    static_split,
)
from hypothesis import given
from hypothesis import strategies as st
from tests.collective.cases import stage_times, two_routes
from tests.collective.checker import check_schedule

from graphbraid.collective.plan.simulator import (
    CPU,
    GPU,
    Durations,
    ScheduleSetting,
    bound_with,
    braid,
    simulate,
    spread_routes,
)
from graphbraid.errors import ConfigError

settings = st.builds(
    ScheduleSetting,
    cbs=st.integers(1, 6),
    gbs=st.integers(1, 6),
    workers=st.integers(1, 4),
    fill_first=st.booleans(),
    one_at_a_time=st.booleans(),
)


def check(schedule, durations):
    s = schedule.setting
    check_schedule(schedule.ops, schedule.routes, durations, cbs=s.cbs, gbs=s.gbs, workers=s.workers)
    assert schedule.seconds == pytest.approx(max(op.end for op in schedule.ops))


@given(st.data(), settings)
def test_every_schedule_keeps_the_rules_of_eq_1_to_4(data, setting):
    n = data.draw(st.integers(1, 30))
    routes = bytes(data.draw(st.lists(st.sampled_from([CPU, GPU]), min_size=n, max_size=n)))
    seconds = st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0, 1.7, 9.0]), min_size=n, max_size=n)
    durations = Durations(**{k: data.draw(seconds) for k in ("cpu", "dma", "uva", "model")})
    check(simulate(routes, durations, setting), durations)


@given(two_routes, st.integers(1, 40), st.floats(0, 1), st.integers(0, 8), settings)
def test_the_braid_keeps_the_rules_and_its_count(times, n, share, stock, setting):
    setting = dataclasses.replace(setting, one_at_a_time=False)
    num_cpu = round(share * n)
    schedule = braid(times, n, num_cpu, stock, setting)
    check(schedule, Durations.constant(times, n))
    assert schedule.routes.count(CPU) == num_cpu


@pytest.mark.parametrize(
    "strategy",
    [braided, cpu_pipeline, gpu_only, static_split(0.4), naive_hybrid(0.5, seed=3), sequential(0.5)],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_every_strategy_keeps_the_rules(strategy, workers):
    times = stage_times(0.05, 0.011, 0.013, 0.03, workers=workers)
    check(strategy(times, 41), Durations.constant(times, 41))


def test_strategies_take_the_time_worked_out_by_hand():
    times = stage_times(4.0, 1.0, 2.0, 3.0)
    assert gpu_only(times, 10).seconds == 10 * (3 + 2)
    assert cpu_pipeline(times, 10).seconds == 10 * 4 + 1 + 2
    assert sequential(1.0)(times, 10).seconds == 10 * (4 + 1 + 2)
    assert sequential(0.0)(times, 10).seconds == 50
    # C and G in turn: each pair takes the CPU 4, the device 3 + 2 + 2; the copy hides behind the training.
    assert static_split(0.5)(times, 10).seconds < sequential(0.5)(times, 10).seconds == 5 * 7 + 5 * 5


def test_a_worker_that_must_wait_for_a_host_buffer_is_charged_to_the_cpu():
    times = stage_times(1.0, 1.0, 5.0)
    schedule = simulate(bytes(6), Durations.constant(times, 6), ScheduleSetting(cbs=1, gbs=1, workers=1))
    assert schedule.cpu_waits > 15
    assert schedule.feedback == 1
    starved = cpu_pipeline(stage_times(5.0, 1.0, 1.0), 6)
    assert starved.feedback == -1
    assert starved.device_waits == pytest.approx(5.0 + 5 * (5.0 - 2.0))


@given(two_routes, st.integers(1, 40), st.floats(0, 1), settings)
def test_no_simulated_epoch_beats_the_bound_of_its_own_split(times, n, share, setting):
    routes = drawn_routes(n, share, seed=n)
    times = times.with_workers(setting.workers)
    schedule = simulate(routes, Durations.constant(times, n), setting)
    assert schedule.seconds >= max(bound_with(times, n, routes.count(CPU)).values()) * (1 - 1e-9)


def test_routes_are_spread_evenly():
    assert spread_routes(6, 3) == bytes([GPU, CPU] * 3)
    assert [spread_routes(7, m).count(CPU) for m in range(8)] == list(range(8))


def test_an_empty_epoch_and_a_buffer_of_nothing_are_refused():
    durations = Durations(cpu=[], dma=[], uva=[], model=[])
    with pytest.raises(ConfigError, match="at least one step"):
        simulate(b"", durations, ScheduleSetting(cbs=1, gbs=1, workers=1))
    with pytest.raises(ConfigError, match="gbs must be at least 1; got 0"):
        ScheduleSetting(cbs=1, gbs=0, workers=1)


def test_the_checker_finds_broken_schedules():
    """A checker that accepts anything would prove nothing."""
    times = stage_times(0.05, 0.02, 0.03, 0.04)
    durations = Durations.constant(times, 12)
    schedule = static_split(0.5)(times, 12)
    rules = {"routes": schedule.routes, "durations": durations, "cbs": 64, "gbs": 32, "workers": 1}
    check_schedule(schedule.ops, **rules)
    for i, op in enumerate(schedule.ops):
        early = op._replace(start=op.start - 0.01, end=op.end - 0.01)
        if early.start >= 0 and op.stage != "cpu":
            with pytest.raises(AssertionError):
                check_schedule([*schedule.ops[:i], early, *schedule.ops[i + 1 :]], **rules)
    for narrow in ({"cbs": 1}, {"gbs": 1}):
        with pytest.raises(AssertionError):
            check_schedule(schedule.ops, **(rules | narrow))
    with pytest.raises(AssertionError):
        check_schedule(schedule.ops[:-1], **rules)
