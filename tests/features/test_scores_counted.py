"""Reads counted in advance: they are those of the loader's batches, whoever samples them."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.features.test_scores import graph_of, graphs, samplers, schedule_of
from tests.sampling.graphs import power_law_csc
from tests.suites import examples

from graphbraid import SamplerConfig, features
from graphbraid.errors import ConfigError
from graphbraid.features import reference
from graphbraid.features.scores import walks
from graphbraid.features.scores.walks import count_reads, spread_reads, with_other_seed
from graphbraid.loader import BatchLoader, LoaderSettings

SAMPLER = SamplerConfig(fanouts=(4, 3))


def loader_counts(graph, sampler, schedule, epochs):
    """How often each row is gathered by a loader, one batch after the other."""
    settings = LoaderSettings(
        num_neighbors=sampler.fanouts,
        input_nodes=schedule.seeds,
        batch_size=schedule.batch_size,
        shuffle=schedule.shuffle,
        drop_last=schedule.drop_last,
        replace=sampler.replace,
        weighted=sampler.weighted,
        layout=sampler.layout,
        seed=schedule.seed,
    )
    counts = torch.zeros(graph.num_nodes)
    with BatchLoader(graph, settings) as loader:
        for epoch in epochs:
            for batch in loader.batches(epoch):
                for node in batch.n_id.tolist():
                    counts[node] += 1
    return counts.double()


@settings(max_examples=examples(25))
@given(graphs(), samplers, st.integers(0, 2**62), st.integers(1, 40), st.booleans())
def test_looking_ahead_counts_what_the_loader_gathers(graph, sampler, seed, batch_size, shuffle):
    graph = graph.replace(x=torch.rand(graph.num_nodes, 3))
    schedule = dataclasses.replace(schedule_of(graph, batch_size, seed=seed), shuffle=shuffle)
    found = features.score(graph, "lookahead", sampler=sampler, schedule=schedule, epochs=range(3, 5))
    assert torch.equal(found.values * 2, loader_counts(graph, sampler, schedule, range(3, 5)))
    assert found.made_from["epochs"] == [3, 4]
    assert found.made_from["seed"] == seed


def test_a_seed_that_is_repeated_in_a_batch_is_read_as_often():
    graph = graph_of(power_law_csc(50, 200))
    schedule = dataclasses.replace(schedule_of(graph, 10), seeds=torch.tensor([7, 7, 7, 1]))
    found = features.score(graph, "lookahead", sampler=SAMPLER, schedule=schedule)
    assert torch.equal(found.values, loader_counts(graph, SAMPLER, schedule, range(1)))
    assert found.values[7] >= 3


def test_the_best_fixed_choice_is_the_one_looked_ahead():
    graph = graph_of(power_law_csc(500, 4000))
    schedule = schedule_of(graph, seed=5)
    reads = loader_counts(graph, SAMPLER, schedule, range(2)).long()
    ahead = features.score(graph, "lookahead", sampler=SAMPLER, schedule=schedule, epochs=2)
    assert features.coverage(ahead.values, reads) == features.coverage(reads.double(), reads)


def test_presampled_reads_are_those_of_another_seed():
    graph = graph_of(power_law_csc(500, 4000))
    schedule = schedule_of(graph, seed=5)
    other = with_other_seed(schedule)
    of = {"sampler": SAMPLER, "epochs": 2}
    found = features.score(graph, "presampled", schedule=schedule, **of)
    assert other.seed != schedule.seed
    assert found.made_from["seed"] == other.seed
    assert torch.equal(found.values, features.score(graph, "lookahead", schedule=other, **of).values)
    assert not torch.equal(found.values, features.score(graph, "lookahead", schedule=schedule, **of).values)


@pytest.mark.parametrize("workers", [1, 3])
def test_reads_come_in_the_order_of_steps_whatever_the_number_of_threads(workers):
    graph = graph_of(power_law_csc(500, 4000))
    schedule = schedule_of(graph, seed=5)
    with BatchLoader(
        graph, LoaderSettings(num_neighbors=(4, 3), input_nodes="train", batch_size=16, shuffle=True, seed=5)
    ) as loader:
        expected = [batch.n_id.clone() for epoch in (1, 2) for batch in loader.batches(epoch, 2, 9)]
    found = features.batch_reads(graph, SAMPLER, schedule, range(1, 3), steps=range(2, 9), workers=workers)
    found = [n_id.clone() for n_id in found]
    assert len(found) == len(expected) == 14
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def test_steps_are_spread_over_the_epoch_and_all_are_taken_where_there_are_few():
    graph = graph_of(power_law_csc(500, 4000))
    schedule = schedule_of(graph)
    whole = [n_id.clone() for n_id in features.batch_reads(graph, SAMPLER, schedule)]
    few = [n_id.clone() for n_id in spread_reads(graph, SAMPLER, schedule, count=3)]
    assert len(whole) == schedule.num_steps == 11
    for n_id, step in zip(few, (0, 3, 7), strict=True):
        assert torch.equal(n_id, whole[step])
    assert len(list(spread_reads(graph, SAMPLER, schedule, count=99))) == 11


def test_reading_may_stop_early():
    graph = graph_of(power_law_csc(500, 4000))
    first = next(features.batch_reads(graph, SAMPLER, schedule_of(graph), 1000, workers=2))
    assert first.numel() >= 16


@pytest.mark.parametrize("steps", [range(0), range(3, 2), range(12), range(-1, 3), range(0, 4, 2)])
def test_steps_that_there_are_not_are_refused(steps):
    graph = graph_of(power_law_csc(500, 4000))
    with pytest.raises(ConfigError, match=r"steps must be a rising range of at least one in \[0, 11\)"):
        features.batch_reads(graph, SAMPLER, schedule_of(graph), steps=steps)


def test_ids_that_are_no_nodes_are_refused_and_counting_is_the_twin_s():
    ids, counts, twin = (
        torch.tensor([3, 1, 3, 0]),
        torch.ones(4, dtype=torch.int64),
        torch.ones(4, dtype=torch.int64),
    )
    walks.backend().count_ids(ids, counts)
    reference.count_ids(ids, twin)
    assert counts.tolist() == twin.tolist() == [2, 2, 1, 3]
    with pytest.raises((ValueError, RuntimeError)):
        count_reads([torch.tensor([0, 4])], 4)
