"""``auto``: it looks ahead where that is cheap, else takes what a trial favours, and says which and why."""

import itertools
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.features.test_scores import graph_of, schedule_of
from tests.sampling.graphs import power_law_csc

from graphbraid import SamplerConfig, features
from graphbraid.features.scores import choice
from graphbraid.features.scores import score as scores
from graphbraid.features.scores.walks import count_reads, spread_reads

SAMPLER = SamplerConfig(fanouts=(4, 3))


@pytest.fixture(scope="module")
def graph():
    return graph_of(power_law_csc(3000, 20_000))


def auto(graph, **options):
    return features.score(graph, "auto", sampler=SAMPLER, schedule=schedule_of(graph, 50), **options)


def test_a_long_run_is_looked_ahead(graph):
    found = auto(graph, epochs=2, run_seconds=1e6)
    assert found.kind == "lookahead"
    assert "2 epochs looked ahead in" in found.reason
    assert "2% of the run's 1e+06 s allow 2e+04 s" in found.reason
    assert found.trial == {}
    named = features.score(graph, "lookahead", sampler=SAMPLER, schedule=schedule_of(graph, 50), epochs=2)
    assert torch.equal(found.values, named.values)


class Clock:
    """Stands in for the module ``time``: each epoch that is counted takes a given time."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, iter(seconds)

    def perf_counter(self):
        return self.now

    def counting(self, batches, num_nodes):
        self.now += next(self.seconds)
        return count_reads(batches, num_nodes)


def with_clock(patch, seconds):
    clock = Clock(seconds)
    patch.setattr(choice, "time", clock)
    patch.setattr(choice, "count_reads", clock.counting)
    patch.setattr(choice, "sampling_seconds", lambda *_: 1.0)


@pytest.mark.parametrize(
    ("run_seconds", "counted", "said"),
    [
        (50.01, 1, "1 of 6 epochs looked ahead in 1 s; 2% of the run's 50 s allow 1 s"),
        (175, 3, "3 of 6 epochs looked ahead in 3 s; 2% of the run's 175 s allow 3.5 s"),
        (300, 6, "6 epochs looked ahead in 6 s; 2% of the run's 300 s allow 6 s"),
        (1e9, 6, "6 epochs looked ahead in 6 s"),
    ],
)
def test_as_many_of_the_coming_epochs_are_looked_ahead_as_there_is_time(
    graph, monkeypatch, run_seconds, counted, said
):
    with_clock(monkeypatch, [1.0] * 6)
    found = auto(graph, epochs=range(4, 10), run_seconds=run_seconds)
    assert found.kind == "lookahead"
    assert found.reason.startswith(said)
    epochs, schedule = range(4, 4 + counted), schedule_of(graph, 50)
    named = features.score(graph, "lookahead", sampler=SAMPLER, schedule=schedule, epochs=epochs)
    assert torch.equal(found.values, named.values)


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=12), st.floats(0.001, 60.0))
def test_epochs_are_looked_ahead_until_the_next_would_take_too_long(seconds, allowed):
    graph = graph_of(power_law_csc(20, 60))
    with pytest.MonkeyPatch.context() as patch:
        with_clock(patch, seconds)
        looked = choice.look_ahead(
            graph, SAMPLER, schedule_of(graph, 50), range(len(seconds)), seconds=allowed, workers=1
        )
    ends = list(itertools.accumulate(seconds))
    assert looked.seconds == pytest.approx(ends[looked.epochs - 1])
    counts = range(1, looked.epochs)  # after which there was time for another
    assert all(ends[n - 1] * (n + 1) / n <= allowed * (1 + 1e-9) for n in counts)
    if looked.epochs < len(seconds):
        assert looked.seconds * (looked.epochs + 1) / looked.epochs > allowed * (1 - 1e-9)


@pytest.mark.parametrize(
    ("run_seconds", "said"),
    [
        (1e-9, "more than the 2e-11 s that are 2%"),
        (0.0, "of the run's 0 s"),
        (None, "how long the run is was not said"),
    ],
)
def test_a_short_run_takes_what_serves_some_of_its_batches_best(graph, run_seconds, said):
    found = auto(graph, run_seconds=run_seconds)
    assert found.kind in choice.CANDIDATES
    assert said in found.reason
    assert f"{found.kind} serves most of 16 batches' reads" in found.reason
    assert set(found.trial) == set(choice.CANDIDATES)
    assert found.trial[found.kind] == max(found.trial.values())
    batches = spread_reads(graph, SAMPLER, schedule_of(graph, 50), count=choice.TRIED_BATCHES)
    reads = count_reads(batches, graph.num_nodes)
    served = features.coverage(found.values, reads)
    assert found.trial[found.kind] == pytest.approx(sum(served) / len(served))


class WaitingRun:
    """A run that takes a second, and longer where it waits for its reads."""

    least, waits, counted = 1.0, True, "training 1 s; waiting so long"

    def __init__(self, seconds):
        self.seconds, self.asked = seconds, []

    def with_reads(self, reads):
        self.asked.append(reads)
        return self.seconds


@pytest.mark.parametrize(
    ("share", "seconds", "kinds", "said"),
    [
        (
            1e9,
            1.0,
            {"lookahead"},
            r"^2 epochs looked ahead in .* allow 1e\+09 s \(training 1 s; waiting so long\)$",
        ),
        (1e-9, 1e18, {"lookahead"}, r"^2 epochs looked ahead in .* allow 1e\+09 s \(training 1 s; waiting"),
        (
            1e-9,
            2.0,
            set(choice.READS),
            r"more than the 2e-09 s .* the run's 2 s \(training 1 s; waiting so long\); of",
        ),
    ],
)
def test_waits_are_asked_for_only_where_the_rest_of_the_run_does_not_allow_all_epochs(
    graph, monkeypatch, share, seconds, kinds, said
):
    monkeypatch.setattr(choice, "MOST_OF_RUN", share)
    run = WaitingRun(seconds)
    found = scores.reads_of_run(graph, run, sampler=SAMPLER, schedule=schedule_of(graph, 50), epochs=2)
    assert found.kind in kinds
    assert re.search(said, found.reason)
    assert len(run.asked) == (share < 1)
    assert set(found.trial) == (set(choice.READS) if run.asked else set())
    for reads in run.asked:  # those that are kept unless epochs are looked ahead
        best = max(choice.READS, key=found.trial.get)
        named = scores.reads_of_run(graph, None, sampler=SAMPLER, schedule=schedule_of(graph, 50), epochs=2)
        assert named.kind == best
        assert torch.equal(reads, named.values)


def test_reads_are_chosen_among_the_kinds_that_count_them(graph):
    found = auto(graph, as_reads=True)
    assert set(found.trial) == {"inclusion", "presampled"}
    schedule = schedule_of(graph, 50)
    reads = features.score(graph, "lookahead", sampler=SAMPLER, schedule=schedule).values
    assert float(found.values.sum() / reads.sum()) == pytest.approx(1.0, abs=0.2)


def test_a_trial_samples_few_batches(graph, monkeypatch):
    monkeypatch.setattr(scores, "PRESAMPLED_BATCHES", 4)
    monkeypatch.setattr(choice, "CANDIDATES", ("presampled",))
    found = auto(graph, epochs=range(5, 50))
    assert found.kind == "presampled"
    whole = features.score(graph, "presampled", sampler=SAMPLER, schedule=schedule_of(graph, 50))
    assert float(found.values.sum() / whole.values.sum()) == pytest.approx(1.0, abs=0.1)


def test_a_schedule_of_one_batch_can_be_weighed():
    graph = graph_of(power_law_csc(100, 500))
    found = features.score(graph, "auto", sampler=SAMPLER, schedule=schedule_of(graph, 1000), workers=2)
    assert found.kind in choice.CANDIDATES
