"""Bounds against the true optimum and the busiest resource; feedback that ends."""

from benchmarks.planning.optimum import optimal_seconds
from hypothesis import given
from hypothesis import strategies as st
from tests.collective.cases import any_times

from graphbraid.collective.plan.simulator import balanced_split, bound_with, epoch_bound


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
