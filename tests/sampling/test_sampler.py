"""The compiled sampler against the reference, and the reference against the definition."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_KERNELS
from tests.sampling.graphs import power_law_csc, star_csc

from graphbraid import native
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.sampling import SamplerConfig, SeedSchedule, rng, sample_batch
from graphbraid.sampling.cpu import make_pipeline

FANOUTS = [(15, 10, 5), (3,), (-1, 2), (20, 60), (100, 0, 7), (-1, -1), (17, 8, 1)]


def assert_same(got, expected):
    assert torch.equal(got.n_id, expected.n_id)
    assert got.nodes_per_hop == expected.nodes_per_hop
    assert got.edges_per_hop == expected.edges_per_hop
    for a, b in zip(got.edges, expected.edges, strict=True):
        assert torch.equal(a.indptr, b.indptr)
        assert torch.equal(a.indices, b.indices)
        assert (a.positions is None) == (b.positions is None)
        assert a.positions is None or torch.equal(a.positions, b.positions)


def epoch_of(csc, config, schedule, *, x=None, num_threads=1, depth=2, epoch=2, first=0, last=None):
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    pipeline = make_pipeline(Graph(csc=csc), config, [x], num_threads=num_threads, depth=depth)
    return list(pipeline.run(schedule, epoch, first, schedule.num_steps if last is None else last))


@pytest.mark.parametrize(
    ("threads", "depth"), [(1, 1), (3, 4), (4, 1)]
)  # (4, 1): idle threads share each batch
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_compiled_equals_reference_bit_for_bit(layout, replace, weighted, threads, depth):
    for (nodes, edges, wide), fanouts in itertools.product(
        [(50, 400, False), (1000, 8000, False), (1000, 8000, True), (3, 2, False), (5000, 100_000, False)],
        FANOUTS,
    ):
        if replace and -1 in fanouts:
            continue
        csc = power_law_csc(nodes, edges, wide=wide, weighted=weighted)
        config = SamplerConfig(
            fanouts=fanouts,
            replace=replace,
            layout=layout,
            weighted=weighted,
            return_edge_id=len(fanouts) > 1,
        )
        seeds = torch.from_numpy(np.random.default_rng(1).integers(0, nodes, 60))  # some of them twice
        schedule = SeedSchedule(seeds=seeds, batch_size=16, shuffle=True, seed=5)
        x = torch.randn(nodes, 7)
        batches = epoch_of(csc, config, schedule, x=x, num_threads=threads, depth=depth)
        assert [batch[0] for batch in batches] == [0, 1, 2, 3]
        for step, input_id, sampled, rows in batches:
            expected = sample_batch(csc, config, schedule.seeds_of(2, step), rng.batch_key(5, 2, step))
            assert torch.equal(input_id, schedule.positions_of(2, step))
            assert_same(sampled, expected)
            assert torch.equal(rows[0], x[sampled.n_id])


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_large_batches_grow_every_buffer_and_keep_their_bits(layout):
    csc = power_law_csc(60_000, 900_000)
    config = SamplerConfig(fanouts=(15, 10, 5), layout=layout, return_edge_id=True)
    schedule = SeedSchedule(seeds=torch.arange(60_000), batch_size=9000, shuffle=True)
    for threads, depth in [(1, 1), (3, 1)]:
        for step, _, sampled, _ in epoch_of(csc, config, schedule, num_threads=threads, depth=depth, last=3):
            assert_same(
                sampled, sample_batch(csc, config, schedule.seeds_of(2, step), rng.batch_key(0, 2, step))
            )


def test_a_long_pipeline_reuses_its_table_without_mixing_batches():
    csc = power_law_csc(300, 4000)
    config = SamplerConfig(fanouts=(4, 4))
    schedule = SeedSchedule(seeds=torch.arange(300).repeat(10), batch_size=3)
    for step, _, sampled, _ in epoch_of(csc, config, schedule, num_threads=1, depth=3):
        if step % 37 == 0:
            assert_same(
                sampled, sample_batch(csc, config, schedule.seeds_of(2, step), rng.batch_key(0, 2, step))
            )


@given(st.data())
def test_a_sample_is_what_it_says(data):
    num_nodes = data.draw(st.integers(1, 60))
    csc = power_law_csc(num_nodes, data.draw(st.integers(0, 300)), seed=data.draw(st.integers(0, 99)))
    fanouts = tuple(data.draw(st.lists(st.integers(-1, 9), min_size=1, max_size=4)))
    layout = data.draw(st.sampled_from(["subgraph", "blocks"]))
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=20)))
    config = SamplerConfig(fanouts=fanouts, layout=layout, return_edge_id=True)
    sampled = sample_batch(csc, config, seeds, rng.batch_key(0, 0, data.draw(st.integers(0, 2**31))))
    assert torch.equal(sampled.n_id[: len(seeds)], seeds)
    found = sampled.n_id[len(seeds) :]
    assert len(found.unique()) == len(found)
    assert not torch.isin(found, seeds).any()
    assert sum(sampled.nodes_per_hop) == len(sampled.n_id)
    hops_of = [[h] for h in range(len(fanouts))] if layout == "blocks" else [list(range(len(fanouts)))]
    for edges, hops in zip(sampled.edges, hops_of, strict=True):
        degree = csc.degrees()[sampled.n_id[: edges.indptr.numel() - 1]]
        bounds = np.cumsum([0, *sampled.nodes_per_hop])
        for hop in hops:
            rows = slice(0 if layout == "blocks" or hop == 0 else bounds[hop], bounds[hop + 1])
            fanout = fanouts[hop]
            expected = degree[rows] if fanout < 0 else degree[rows].clamp(max=fanout)
            assert torch.equal(edges.indptr.diff()[rows], expected)
        # Each edge is the graph's edge at its position, into the row's node; none is drawn twice for a row.
        row = torch.repeat_interleave(torch.arange(len(degree)), edges.indptr.diff())
        assert torch.equal(csc.indices[edges.positions].long(), sampled.n_id[edges.indices.long()])
        assert torch.equal(csc.destinations()[edges.positions].long(), sampled.n_id[row])
        pairs = torch.stack([row, edges.positions])
        assert pairs.unique(dim=1).shape == pairs.shape


def test_local_ids_go_by_first_appearance():
    csc = power_law_csc(200, 3000)
    sampled = sample_batch(
        csc, SamplerConfig(fanouts=(5, 5)), torch.tensor([3, 1, 3]), rng.batch_key(0, 0, 0)
    )
    local = sampled.edges[0].indices.long()
    new = local[local >= 3]
    first_seen = list(dict.fromkeys(new.tolist()))
    assert first_seen == list(range(3, len(sampled.n_id)))


def counts_of(csc, fanout, *, trials, **options):
    """How often each in-neighbour of node 0 is drawn, a step per trial (in a step a node draws the same)."""
    counts = np.zeros(csc.num_src - 1)
    pipeline = make_pipeline(
        Graph(csc=csc), SamplerConfig(fanouts=(fanout,), **options), num_threads=1, depth=1
    )
    schedule = SeedSchedule(seeds=torch.zeros(trials, dtype=torch.int64), batch_size=1, seed=fanout)
    for _, _, sampled, _ in pipeline.run(schedule, 0, 0, trials):
        nodes = sampled.n_id[sampled.edges[0].indices.long()].numpy() - 1
        np.add.at(counts, nodes, 1)
    return counts


@pytest.mark.slow
def test_neighbours_are_drawn_with_probability_fanout_over_degree():
    """Try every degree and fanout from 1 to 40, on all rows of one graph at once.

    Each step gives every row fresh draws. Floyd's algorithm with an exclusive bound, or a shuffle that stops
    one short, fails this for almost every pair.
    """
    copies = 250  # rows per degree
    degrees = np.repeat(np.arange(1, 41), copies)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    offset = np.arange(indptr[-1]) - np.repeat(indptr[:-1], degrees)
    num_nodes = len(degrees)
    csc = Csc(torch.from_numpy(indptr), torch.from_numpy(offset.astype(np.int32)), num_nodes)
    seeds = torch.arange(num_nodes)
    steps = 8
    worst = 0.0
    for fanout in range(1, 41):
        config = SamplerConfig(fanouts=(fanout,), return_edge_id=True)
        pipeline = make_pipeline(Graph(csc=csc), config, num_threads=2, depth=2)
        schedule = SeedSchedule(seeds=seeds.repeat(steps), batch_size=num_nodes, seed=fanout)
        counts = np.zeros(indptr[-1])
        for _, _, sampled, _ in pipeline.run(schedule, 0, 0, steps):
            counts += np.bincount(sampled.edges[0].positions.numpy(), minlength=indptr[-1])
        for degree in range(1, 41):
            per_neighbour = counts[np.repeat(degrees == degree, degrees)].reshape(copies, degree).sum(0)
            trials = copies * steps
            if fanout >= degree:
                assert (per_neighbour == trials).all()
                continue
            p = fanout / degree
            # Without replacement the counts are correlated: (d - 1) / d / (p (1 - p)) is the chi-square's
            # scale.
            chi2 = ((per_neighbour - trials * p) ** 2).sum() / (trials * p * (1 - p)) * (degree - 1) / degree
            assert abs(per_neighbour.sum() - trials * fanout) == 0
            z = (chi2 - (degree - 1)) / np.sqrt(2 * (degree - 1))
            worst = max(worst, z)
    assert worst < 7.0  # the largest of 780 chi-square scores; an off-by-one bound gives hundreds


@pytest.mark.parametrize("options", [{"replace": True}, {}])
def test_weighted_draws_follow_the_weights(options):
    degree, trials = 6, 3000
    csc = star_csc(degree)
    csc.weight = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 10.0])
    counts = counts_of(csc, 1, trials=trials, weighted=True, **options)
    expected = trials * csc.weight.numpy() / 20
    assert counts[0] == 0
    chi2 = ((counts[1:] - expected[1:]) ** 2 / expected[1:]).sum()
    assert chi2 < 24  # 4 degrees of freedom: 1e-4


@pytest.mark.slow
def test_weighted_draws_without_replacement_take_neighbours_in_order_of_the_race():
    # P(the heavy one is among 2 of 3) = 1 - P(both others first) with weights 1, 1, 4:
    # both others first: 2 * (1/6 * 1/5) = 1/15.
    csc = star_csc(3)
    csc.weight = torch.tensor([1.0, 1.0, 4.0])
    counts = counts_of(csc, 2, trials=6000, weighted=True)
    assert abs(counts[2] / 6000 - 14 / 15) < 4.5 * np.sqrt(14 / 15 / 15 / 6000)


def test_draws_with_replacement_are_uniform_and_may_repeat():
    counts = counts_of(star_csc(7), 14, trials=1500, replace=True)
    assert counts.sum() == 14 * 1500
    assert ((counts - 3000) ** 2 / 3000).sum() < 30  # 6 degrees of freedom: 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fanouts": ()}, "at least one hop"),
        ({"fanouts": (5, -2)}, r"fanouts\[1\] must be .*; got -2"),
        ({"fanouts": (5, 2.5)}, r"fanouts\[1\] must be .*; got 2.5"),
        ({"fanouts": (5,), "layout": "graph"}, "layout must be one of 'subgraph', 'blocks'; got 'graph'"),
        ({"fanouts": (5, -1), "replace": True}, "replace=True needs a fanout >= 0"),
    ],
)
def test_bad_configs_say_why(options, message):
    with pytest.raises(ConfigError, match=message):
        SamplerConfig(**options)
