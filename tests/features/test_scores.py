"""Scores made of the graph and of the sampler's settings: what they are, and that they are the twins'."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from benchmarks.tiers.belady import Trace, belady_hits
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads
from tests.sampling.graphs import power_law_csc, star_csc
from tests.suites import examples

from graphbraid import Csc, Graph, SamplerConfig, features
from graphbraid.errors import ConfigError, DataError
from graphbraid.features import reference
from graphbraid.features.scores import walks
from graphbraid.features.scores.walks import count_reads, spread_reads, with_other_seed
from graphbraid.loader import BatchLoader, LoaderSettings
from graphbraid.sampling import SeedSchedule

WALKED = ("degree", "reverse_pagerank", "weighted_reverse_pagerank", "inclusion")


def graph_of(csc):
    return Graph(csc=csc, splits={"train": torch.arange(0, csc.num_dst, 3)})


def schedule_of(graph, batch_size=16, **options):
    return SeedSchedule(seeds=graph.split("train"), batch_size=batch_size, shuffle=True, **options)


def values_of(graph, kind, sampler=None, seeds=None, **options):
    sampler = sampler or SamplerConfig(fanouts=(4, 3))
    schedule = schedule_of(graph)
    if seeds is not None:
        schedule = dataclasses.replace(schedule, seeds=seeds)
    return features.score(graph, kind, sampler=sampler, schedule=schedule, **options).values


samplers = st.builds(
    lambda fanouts, replace, layout, weighted: SamplerConfig(
        fanouts=tuple(abs(f) if replace else f for f in fanouts),
        replace=replace,
        layout=layout,
        weighted=weighted,
    ),
    st.lists(st.integers(-1, 6), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from(("subgraph", "blocks")),
    st.booleans(),
)


@st.composite
def graphs(draw):
    num_nodes, seed = draw(st.integers(1, 60)), draw(st.integers(0, 2**20))
    csc = power_law_csc(
        num_nodes, draw(st.integers(0, 300)), seed=seed, wide=draw(st.booleans()), weighted=True
    )
    return graph_of(csc)


@given(graphs(), samplers)
@needs_kernels
def test_compiled_walks_are_their_twins(graph, sampler):
    compiled = {kind: values_of(graph, kind, sampler) for kind in WALKED}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walks, "backend", lambda: reference)
        for kind in WALKED[:3]:
            assert torch.equal(values_of(graph, kind, sampler), compiled[kind]), kind
        torch.testing.assert_close(
            values_of(graph, "inclusion", sampler), compiled["inclusion"], rtol=1e-9, atol=1e-12
        )


@given(graphs(), samplers)
def test_scores_are_finite_and_not_negative_and_reads_no_more_than_batches(graph, sampler):
    for kind in WALKED:
        values = values_of(graph, kind, sampler)
        assert values.dtype == torch.float64
        assert values.shape == (graph.num_nodes,)
        assert bool((values.isfinite() & (values >= 0)).all()), kind
    assert float(values_of(graph, "inclusion", sampler).max()) <= schedule_of(graph).num_steps


@given(graphs(), samplers, st.integers(0, 2**20))
def test_other_numbers_of_the_nodes_change_no_score(graph, sampler, seed):
    order = torch.from_numpy(
        np.random.default_rng(seed).permutation(graph.num_nodes)
    )  # new position -> old id
    renumbered, seeds = renumber(graph, order)
    for kind in WALKED:
        here = values_of(graph, kind, sampler)
        there = values_of(renumbered, kind, sampler, seeds)
        assert torch.equal(there, here[order]), kind


def renumber(graph, order):
    """The same graph, each row's edges in the order they were stored; and where its training nodes went."""
    new_id = torch.empty_like(order)
    new_id[order] = torch.arange(len(order))
    csc = graph.csc
    rows = [torch.arange(int(csc.indptr[v]), int(csc.indptr[v + 1])) for v in order.tolist()]
    edges = torch.cat(rows)
    indptr = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    indices = new_id[csc.indices[edges].long()].to(csc.indices.dtype)
    renumbered = Graph(csc=Csc(indptr, indices, csc.num_dst, csc.weight[edges]))
    seeds = new_id[graph.split("train")]
    return renumbered.replace(splits={"train": seeds}), seeds


@pytest.mark.parametrize("weighted", [False, True])
def test_the_number_of_threads_changes_no_bit(weighted):
    graph = graph_of(
        power_law_csc(20_000, 200_000, weighted=True)
    )  # several chunks, with hubs in many of them
    sampler = SamplerConfig(fanouts=(10, -1, 5), weighted=weighted)
    assert_same_bits_with_any_threads(lambda: [values_of(graph, kind, sampler) for kind in WALKED])


def dense_rounds(csc, scores, damping, rounds):
    """Algorithm 1 by a dense matrix: entry (u, v) is the number of edges u -> v."""
    edges = np.zeros((csc.num_dst, csc.num_dst))
    np.add.at(edges, (csc.indices.numpy(), csc.destinations().numpy()), 1.0)
    in_degree = np.maximum(csc.degrees().numpy(), 1)
    for _ in range(rounds):
        scores = (1 - damping) / csc.num_dst + damping * (edges @ (scores / in_degree))
    return scores


def test_the_weighted_pagerank_is_algorithm_1_of_the_paper():
    graph = graph_of(power_law_csc(200, 1500))  # has nodes without in-edges
    train = graph.split("train").numpy()
    begin = np.full(200, 1 / 200)
    begin[train] *= 200 / len(train)
    expected = dense_rounds(graph.csc, begin, 0.85, 5)
    np.testing.assert_allclose(features.score(graph, "weighted_reverse_pagerank").values, expected, rtol=1e-9)
    other = features.score(graph, "weighted_reverse_pagerank", damping=0.5)
    np.testing.assert_allclose(other.values, dense_rounds(graph.csc, begin, 0.5, 5), rtol=1e-9)


def test_the_reverse_pagerank_has_converged():
    graph = graph_of(power_law_csc(200, 1500))
    expected = dense_rounds(graph.csc, np.full(200, 1 / 200), 0.85, 1000)
    np.testing.assert_allclose(
        features.score(graph, "reverse_pagerank").values, expected, atol=walks.CONVERGED * 10 / 200
    )


def test_repeated_training_nodes_count_once():
    graph = graph_of(power_law_csc(50, 300))
    seeds = graph.split("train")
    twice = values_of(graph, "weighted_reverse_pagerank", seeds=torch.cat([seeds, seeds]))
    assert torch.equal(twice, values_of(graph, "weighted_reverse_pagerank"))


@pytest.mark.parametrize(
    ("sampler", "chance"),
    [
        (SamplerConfig(fanouts=(2,)), 2 / 5),
        (SamplerConfig(fanouts=(2,), replace=True), 1 - (4 / 5) ** 2),
        (SamplerConfig(fanouts=(7,), replace=True), 1 - (4 / 5) ** 7),
        (SamplerConfig(fanouts=(5,)), 1.0),
        (SamplerConfig(fanouts=(-1,)), 1.0),
        (SamplerConfig(fanouts=(0,)), 0.0),
        (SamplerConfig(fanouts=(2, 2), layout="blocks"), 1 - (3 / 5) ** 2),  # the seed draws twice
        (SamplerConfig(fanouts=(2, 2)), 2 / 5),  # it draws once
    ],
)
def test_the_neighbours_of_one_seed_are_included_as_often_as_drawn(sampler, chance):
    graph = Graph(csc=star_csc(5))
    schedule = SeedSchedule(seeds=torch.tensor([0]), batch_size=1)
    found = features.score(graph, "inclusion", sampler=sampler, schedule=schedule).values
    torch.testing.assert_close(found, torch.tensor([1.0, *[chance] * 5], dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
def test_by_weight_the_heavier_neighbours_are_included_as_often_as_sampled(replace):
    csc = star_csc(6)
    csc = Csc(csc.indptr, csc.indices, 7, torch.tensor([0.0, 1, 2, 4, 8, 16]))
    sampler = SamplerConfig(fanouts=(2,), weighted=True, replace=replace)
    schedule = SeedSchedule(seeds=torch.tensor([0]), batch_size=1)
    of = {"sampler": sampler, "schedule": schedule}
    expected = features.score(Graph(csc=csc), "inclusion", **of).values
    counted = features.score(Graph(csc=csc), "presampled", epochs=4000, **of).values
    # With replacement exact: 4000 draws deviate by 0.008. Without it the race's end is taken as its mean.
    assert float((expected - counted).abs().max()) < (0.04 if replace else 0.08)
    assert float(expected[1]) == 0.0
    assert bool((expected[2:].diff() > 0).all())
    if not replace:
        assert float(expected[1:].sum()) == pytest.approx(2.0)


def test_the_expected_reads_are_near_the_counted_ones():
    graph = graph_of(power_law_csc(3000, 20_000))
    of = {"sampler": SamplerConfig(fanouts=(5, 5)), "schedule": schedule_of(graph, batch_size=100)}
    expected = features.score(graph, "inclusion", **of).values
    counted = features.score(graph, "presampled", epochs=40, **of).values
    assert float(expected.sum() / counted.sum()) == pytest.approx(1.0, abs=0.02)
    assert torch.corrcoef(torch.stack([expected, counted]))[0, 1] > 0.99


def test_a_share_below_the_unit_is_lost_but_no_sum_is_wrong():
    indptr = torch.tensor([0, 3, 3, 3])
    sums = torch.empty(3, dtype=torch.int64)
    shares = torch.tensor([2**60, 5, 7])
    indices = torch.tensor([1, 1, 2], dtype=torch.int32)
    for kernels in (walks.backend(), reference):
        kernels.push_shares(indptr, indices, shares, sums)
        assert sums.tolist() == [0, 2**61, 2**60]


def test_a_node_that_hundreds_of_others_surely_draw_is_in_every_batch():
    csc = Csc(torch.arange(1001), torch.zeros(1000, dtype=torch.int32), 1000)
    missed, sums = torch.ones(1000, dtype=torch.float64), torch.empty(1000, dtype=torch.int64)
    for kernels in (walks.backend(), reference):
        missed.fill_(1.0)
        kernels.push_draws(csc.indptr, csc.indices, None, torch.ones_like(missed), -1, False, sums, missed)
        assert 0 <= float(missed[0]) < 1e-16
        assert bool((missed[1:] == 1).all())


def test_a_score_says_what_it_is():
    graph = graph_of(power_law_csc(100, 500))
    found = features.score(
        graph, "inclusion", sampler=SamplerConfig(fanouts=(3, -1)), schedule=schedule_of(graph)
    )
    assert found.kind == "inclusion"
    assert found.seconds > 0
    assert found.reason == ""


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "degre"}, ConfigError, r"kind must be one of .* Did you mean 'degree'\?"),
        ({"sampler": None}, ConfigError, "follows the sampler from its seeds: pass sampler="),
        ({"schedule": None}, ConfigError, "pass schedule="),
        ({"sampler": [15, 10]}, ConfigError, r"sampler must be SamplerConfig or None; got \[15, 10\]"),
        ({"epochs": 0}, ConfigError, "epochs must be a whole number in"),
        ({"epochs": range(0, 9, 2)}, ConfigError, "epochs must be a rising range"),
        ({"damping": 1.0}, ConfigError, r"damping must be a number in \[0, 1\)"),
        ({"kind": "auto", "run_seconds": -1.0}, ConfigError, "run_seconds must be a number"),
        ({"kind": "lookahead", "workers": 0}, ConfigError, "workers must be a whole number"),
        (
            {"schedule": SeedSchedule(seeds=torch.tensor([0, 100]), batch_size=2)},
            DataError,
            r"seeds must be node ids in \[0, 100\); position 1 holds 100",
        ),
        (
            {"schedule": SeedSchedule(seeds=torch.empty(0, dtype=torch.int64), batch_size=2)},
            ConfigError,
            "no seeds",
        ),
        ({"sampler": SamplerConfig(fanouts=(2,), weighted=True)}, DataError, "needs edge weights"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, error, message):
    graph = graph_of(power_law_csc(100, 500))
    given_ = {
        "kind": "inclusion",
        "sampler": SamplerConfig(fanouts=(2,)),
        "schedule": schedule_of(graph),
    } | options
    with pytest.raises(error, match=message):
        features.score(graph, **given_)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 2**20))
def test_no_choice_of_rows_serves_more_than_the_reads_themselves(reads, seed):
    reads = torch.tensor(reads)
    values = torch.from_numpy(np.random.default_rng(seed).random(len(reads)))
    shares = [0.0, 0.1, 0.5, 0.9, 1.0]
    served, best = features.coverage(values, reads, shares), features.coverage(reads.double(), reads, shares)
    assert all(one <= most for one, most in zip(served, best, strict=True))
    assert list(served) == sorted(served)
    assert served[-1] == best[-1] == 1.0


def test_coverage_counts_the_reads_of_the_top_rows():
    values, reads = torch.tensor([0.1, 0.4, 0.2, 0.4]), torch.tensor([10, 1, 4, 5])
    assert features.coverage(values, reads, (0.25, 0.5, 0.74, 0.75)) == (1 / 20, 6 / 20, 6 / 20, 10 / 20)
    expected = features.coverage(values, reads)
    assert features.coverage(values, reads.to(torch.uint16)) == expected
    assert features.coverage(values, reads / 64) == expected, "reads may be expected ones, less than one each"
    with pytest.raises(DataError, match="reads must be finite"):
        features.coverage(values, reads / 0)
    with pytest.raises(DataError, match="reads must be of 4 nodes"):
        features.coverage(values, reads[:3])
    with pytest.raises(ConfigError, match="a share of rows must be a number"):
        features.coverage(values, reads, (1.5,))


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


traces = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=12).map(
    lambda batches: Trace.of([torch.tensor(batch) for batch in batches], 10)
)


def optimal_hits(trace, capacity):
    """The most hits of any cache: which rows to hold from one of their reads to the next.

    A row that is held from one read to its next is a hit. It may be held before the first batch, too. It
    takes one place in each gap between batches until then, and each gap has ``capacity`` places. Each row of
    the matrix has its ones side by side, so the linear program has a solution in whole numbers.
    """
    held = []  # the gaps before which batches a row is held
    last = {}
    for number, batch in enumerate(trace.batches):
        for row in batch.tolist():
            held.append((last.get(row, -1) + 1, number))
            last[row] = number
    takes = np.zeros((len(trace.batches), len(held)))
    for column, (first, number) in enumerate(held):
        takes[first : number + 1, column] = 1
    found = linprog(
        -np.ones(len(held)), A_ub=takes, b_ub=np.full(len(trace.batches), capacity), bounds=(0, 1)
    )
    assert found.success
    return -found.fun


def static_hits(trace, rows):
    """Reads that fall on a fixed set of rows."""
    return sum(int(np.isin(batch, rows).sum()) for batch in trace.batches)


@given(traces, st.integers(0, 11))
def test_belady_is_the_optimum(trace, capacity):
    assert belady_hits(trace, capacity) == pytest.approx(optimal_hits(trace, capacity), abs=1e-6)


@given(traces, st.integers(0, 10))
def test_no_fixed_choice_of_rows_is_better(trace, capacity):
    best = belady_hits(trace, capacity)
    for rows in itertools.islice(itertools.combinations(range(10), capacity), 60):
        assert static_hits(trace, rows) <= best


@given(traces)
def test_a_cache_of_all_rows_misses_nothing(trace):
    assert belady_hits(trace, 10) == trace.num_reads
    assert belady_hits(trace, 0) == 0
    assert static_hits(trace, range(10)) == trace.num_reads


def test_next_uses_name_the_next_batch_that_reads_a_row():
    trace = Trace.of([torch.tensor([2, 0]), torch.tensor([1]), torch.tensor([0, 1])], 4)
    next_uses, first = trace.next_uses()
    assert [uses.tolist() for uses in next_uses] == [[2, 3], [2], [3, 3]]
    assert first.tolist() == [0, 1, 0, 3]
    assert trace.num_reads == 5
