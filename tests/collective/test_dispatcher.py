"""Bounds against a fine grid, against each other and against the true optimum; feedback that ends."""

import math

import pytest
from benchmarks.planning.optimum import optimal_seconds
from hypothesis import given
from hypothesis import strategies as st
from tests.collective.cases import any_times, stage_times, two_routes
from tests.collective.relaxed import best_share, loads, relaxed_ratio, relaxed_seconds

from graphbraid.collective.plan.dispatcher import (
    balanced_split,
    bound_with,
    epoch_bound,
)


@given(two_routes)
def test_no_share_of_a_fine_grid_beats_the_closed_form(times):
    best = best_share(times)
    grid = min(max(loads(times, i / 1000).values()) for i in range(1001))
    assert best.seconds <= grid * (1 + 1e-12)
    assert best.seconds == pytest.approx(max(loads(times, best.share).values()))
    assert loads(times, best.share)[best.limit] == best.seconds


@given(two_routes)
def test_the_papers_relaxed_problem_is_the_three_resource_bound(times):
    """With c = 1/(1+x) Eq. 6 is the maximum of the three loads: one closed form checks the other."""
    ratio = relaxed_ratio(times)
    assert relaxed_seconds(times, ratio) == pytest.approx(best_share(times).seconds)
    for x in (0.0, 0.3, 1.0, 7.0):
        assert relaxed_seconds(times, x) == pytest.approx(max(loads(times, 1 / (1 + x)).values()))


def test_the_extremes_come_out_as_shares():
    assert best_share(stage_times(1.0, 0.1, 9.0, 5.0)).share == 1.0  # the model takes longest
    assert relaxed_ratio(stage_times(1.0, 0.1, 9.0, 5.0)) == 0.0
    never = stage_times(1.0, 9.0, 0.1, 0.5)  # a copy is dearer than preparing on the device
    assert best_share(never).share == pytest.approx(0.1 / 9.0)  # while the device trains the link is free
    assert relaxed_ratio(stage_times(1e9, 1.0, 0.0, 1e-3)) > 1e6
    assert best_share(stage_times(1.0, 0.1, 0.1)).share == 1.0
    assert math.isinf(relaxed_ratio(stage_times(1.0, 1.0, 0.0, 0.0)))


@given(any_times, st.integers(1, 6))
def test_no_schedule_of_a_small_epoch_beats_the_bound(times, num_batches):
    assert epoch_bound(times, num_batches).seconds <= optimal_seconds(times, num_batches) * (1 + 1e-9)


@given(any_times)
def test_the_epochs_bound_per_batch_nears_the_shares_from_above(times):
    bound = epoch_bound(times, 2000)
    assert bound.seconds >= 2000 * best_share(times).seconds * (1 - 1e-9)
    ends = sum(d.seconds for d in (times.cpu, times.dma, times.model)) * times.workers
    assert bound.seconds <= 2000 * best_share(times).seconds + 3 * ends + (times.uva or times.dma).seconds
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
