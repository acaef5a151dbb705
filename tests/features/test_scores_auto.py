"""``auto``: it looks ahead where that is cheap, else takes what a trial favours, and says which and why."""

import pytest
import torch
from tests.features.test_scores import graph_of, schedule_of
from tests.sampling.graphs import power_law_csc

from graphbraid import SamplerConfig, features
from graphbraid.features.scores import choice
from graphbraid.features.scores import score as scores
from graphbraid.features.scores.reads import count_reads, spread_reads

SAMPLER = SamplerConfig(fanouts=(4, 3))


@pytest.fixture(scope="module")
def graph():
    return graph_of(power_law_csc(3000, 20_000))


def auto(graph, **options):
    return features.score(graph, "auto", sampler=SAMPLER, schedule=schedule_of(graph, 50), **options)


def test_a_long_run_is_looked_ahead(graph):
    found = auto(graph, epochs=2, run_seconds=1e6)
    assert found.kind == "lookahead"
    assert "looking 2 epochs ahead would take about" in found.reason
    assert "of the run's 1e+06 s" in found.reason
    assert found.trial == {}
    named = features.score(graph, "lookahead", sampler=SAMPLER, schedule=schedule_of(graph, 50), epochs=2)
    assert torch.equal(found.values, named.values)
    assert found.made_from == named.made_from


@pytest.mark.parametrize(
    ("run_seconds", "said"),
    [(1e-9, "more than 2%"), (0.0, "of the run's 0 s"), (None, "how long the run is was not said")],
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
    assert found.made_from["batches"] == 4
    assert found.made_from["epochs"] == [5, 5]
    whole = features.score(graph, "presampled", sampler=SAMPLER, schedule=schedule_of(graph, 50))
    assert float(found.values.sum() / whole.values.sum()) == pytest.approx(1.0, abs=0.1)


def test_a_schedule_of_one_batch_can_be_weighed():
    graph = graph_of(power_law_csc(100, 500))
    found = features.score(graph, "auto", sampler=SAMPLER, schedule=schedule_of(graph, 1000), workers=2)
    assert found.kind in choice.CANDIDATES
