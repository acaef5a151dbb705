"""Plans are near the bound and the same each time; every simulated schedule keeps the paper's rules."""

import dataclasses
import random
import time

import pytest
from benchmarks.planning.optimum import optimal_seconds
from benchmarks.planning.schedule import GRID, against_bound, drawn_times
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
from tests.collective.cases import any_times, stage_times, two_routes
from tests.collective.checker import check_schedule
from tests.extras import once_undisturbed

from graphbraid.collective.plan.scheduler import Limits, fixed_plan, make_plan, simulated
from graphbraid.collective.plan.simulator import (
    CPU,
    GPU,
    Durations,
    ScheduleSetting,
    balanced_split,
    bound_with,
    braid,
    epoch_bound,
    simulate,
    spread_routes,
)
from graphbraid.collective.plan.times import Profile
from graphbraid.errors import ConfigError, ResourceError


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_is_near_the_bound_and_loses_to_no_simpler_one(seed):
    times = drawn_times(random.Random(seed), 1 + seed)
    case = against_bound(times, 300)
    assert 1 - 1e-9 <= case["over_bound"] <= 1.10
    assert max(case["over"].values()) <= 1 + 1e-9


def test_small_epochs_are_near_the_true_optimum():
    draw = random.Random(7)
    over = []
    for _ in range(20):
        times, n = drawn_times(draw, 1), draw.randint(1, 6)
        over.append(make_plan(Profile(times=(times,)), n).predicted_seconds / optimal_seconds(times, n))
    assert min(over) >= 1 - 1e-9
    assert sum(over) / len(over) <= 1.03


def test_the_optimum_is_right_where_it_is_known():
    assert optimal_seconds(stage_times(4.0, 1.0, 2.0), 5) == 5 * 4 + 1 + 2
    assert optimal_seconds(stage_times(99.0, 1.0, 2.0, 3.0), 4) == 4 * (3 + 2)
    # One batch from the device while the CPU prepares the other, whose copy hides behind the training.
    assert optimal_seconds(stage_times(3.0, 1.0, 2.0, 3.0), 2) == 3 + 2 + 2


@pytest.mark.parametrize(
    ("times", "name"),
    [
        (stage_times(1.0, 0.1, 9.0, 5.0), "cpu"),
        (stage_times(1.0, 0.1, 0.3), "cpu"),
        (stage_times(900.0, 0.1, 0.3, 0.5), "gpu"),
        (stage_times(1.0, 0.1, 0.3, 0.9), "braided"),
    ],
)
def test_extremes_fall_out_as_plans(times, name):
    plan = make_plan(Profile(times=(times,)), 100)
    assert plan.name == name
    others = [cpu_pipeline(times, 100)] + ([gpu_only(times, 100)] if times.uva else [])
    others += [static_split(share)(times, 100) for share in GRID] if times.uva else []
    assert plan.predicted_seconds <= min(s.seconds for s in others) * (1 + 1e-9)


def test_the_number_of_workers_is_chosen_with_what_they_cost_the_model():
    """Without a device that samples, cores are split between workers and training."""
    profile = Profile(times=tuple(stage_times(0.4, 0.0, 0.6 / (8 - w), workers=w) for w in (1, 2, 4, 6)))
    plan = make_plan(profile, 200)
    assert plan.workers == 4  # 0.4/4 against 0.6/4; with 2: 0.2, with 6: 0.3
    assert plan.predicted_seconds == pytest.approx(plan.bound_seconds)
    assert [other.name for other in plan.runner_ups] == ["cpu, 2 workers", "cpu, 6 workers", "cpu, 1 worker"]


def test_a_plan_keeps_within_memory_and_takes_no_buffer_that_does_not_pay():
    times = stage_times(0.06, 0.01, 0.009, 0.006, workers=4)
    profile = Profile(times=(times,), host_batch_bytes=100, device_batch_bytes=200)
    free = make_plan(profile, 200)
    tight = make_plan(profile, 200, Limits(host_bytes=350, device_bytes=450))
    assert tight.cbs <= 3
    assert tight.gbs <= 2
    assert tight.predicted_seconds > free.predicted_seconds
    assert make_plan(Profile(times=(stage_times(1.0, 0.1, 5.0),)), 50).gbs <= 3
    with pytest.raises(ResourceError, match="needs 200 B of device memory and 199 B are allowed"):
        make_plan(profile, 200, Limits(device_bytes=199))


def test_a_plans_prediction_is_its_simulation_at_any_length_and_keeps_the_rules():
    times = stage_times(0.05, 0.007, 0.009, 0.012, workers=2)
    for n in (1, 2, 17, 700):
        plan = make_plan(Profile(times=(times,)), n)
        schedule = simulated(plan)
        assert schedule.seconds == plan.predicted_seconds
        check_schedule(
            schedule.ops,
            schedule.routes,
            Durations.constant(times, n),
            cbs=plan.cbs,
            gbs=plan.gbs,
            workers=plan.workers,
        )
    assert plan.predicted_seconds <= 1.02 * plan.bound_seconds
    assert len(plan.routes(50)) == 50


@pytest.mark.slow
def test_the_same_profile_gives_the_same_plan_in_under_a_second():
    times = stage_times(
        0.0328, 0.0203, 0.009, 0.0015, workers=2
    )  # link and device both full: the longest search
    profile = Profile(times=tuple(times.with_workers(w) for w in (1, 2, 4, 8)))
    plans = []

    def quick():
        started = time.process_time()
        plans.append(make_plan(profile, 500))
        assert time.process_time() - started < 1.0

    once_undisturbed(quick)
    assert make_plan(profile, 500) == plans[0]


def test_a_share_by_hand_gives_a_plan_or_says_why_not():
    profile = Profile(times=(stage_times(0.02, 0.003, 0.004, 0.006),))
    assert fixed_plan(profile, 40, 0.25).num_cpu == 10
    assert fixed_plan(profile, 40, 1.0).name == "cpu"
    assert fixed_plan(profile, 40, 0.0).name == "gpu"
    with pytest.raises(ConfigError, match="share must be a number in"):
        fixed_plan(profile, 40, 1.5)
    with pytest.raises(ConfigError, match="needs a device that prepares"):
        fixed_plan(Profile(times=(stage_times(1, 1, 1),)), 40, 0.5)


# ---- bounds against the true optimum and the busiest resource; feedback that ends


@given(any_times, st.integers(1, 6))
def test_no_schedule_of_a_small_epoch_beats_the_bound(times, num_batches):
    assert epoch_bound(times, num_batches).seconds <= optimal_seconds(times, num_batches) * (1 + 1e-9)


def busiest_seconds(times, num_batches):
    """Seconds a batch of the resource that works longest, with the best split and without start or end."""

    def loads(share):
        cpu, uva = times.cpu.seconds / times.workers, 0.0 if times.uva is None else times.uva.seconds
        of_device = (1 - share) * uva
        return share * cpu, share * times.dma.seconds + of_device, times.model.seconds + of_device

    counts = range(num_batches + 1) if times.uva is not None else [num_batches]
    return min(max(loads(num_cpu / num_batches)) for num_cpu in counts)


@given(any_times)
def test_the_epochs_bound_per_batch_nears_that_of_its_busiest_resource_from_above(times):
    bound, busiest = epoch_bound(times, 2000), 2000 * busiest_seconds(times, 2000)
    assert bound.seconds >= busiest * (1 - 1e-9)
    ends = sum(d.seconds for d in (times.cpu, times.dma, times.model)) * times.workers
    assert bound.seconds <= busiest + 3 * ends + (times.uva or times.dma).seconds
    assert max(bound_with(times, 2000, bound.num_cpu).values()) == bound.seconds


@given(st.integers(1, 200), st.integers(0, 200), st.integers(1, 32), st.integers(0, 200))
def test_feedback_is_followed_to_the_balance_and_no_count_is_tried_twice(n, start, step, balance):
    start, balance = min(start, n), min(balance, n)
    seen = []

    def run(num_cpu):
        seen.append(num_cpu)
        return float(abs(num_cpu - balance)), (balance > num_cpu) - (balance < num_cpu)

    best = balanced_split(run, n, start, step, most_tries=1000)
    assert best == balance
    assert len(seen) == len(set(seen))


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=50))
def test_any_feedback_at_all_comes_to_an_end(answers):
    replies = iter(answers * 50)
    balanced_split(lambda m: (1.0, next(replies)), 20, 10, 4, most_tries=10_000)


# ---- the paper's rules


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
    with pytest.raises(ConfigError, match="gbs must be a positive number; got 0"):
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
