"""Draws that are constrained: disjoint trees, times, excluded edges; compiled against reference, and both
against the definition."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.extras import NO_KERNELS
from tests.sampling.graphs import power_law_csc, star_csc
from tests.sampling.test_sampler import assert_same

from graphbraid import native
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import only_types
from graphbraid.sampling import SamplerConfig, rng
from graphbraid.sampling.batch_seeds import Constraints, EdgeTimes
from graphbraid.sampling.cpu import make_pipeline
from graphbraid.sampling.reference import sample_checked

FANOUTS = [(5, 3), (-1, 2), (20, 60)]


def timed(csc, *, seed=0, last=False, most=50):
    """Times of the edges, rising in each row; many are equal."""
    time = torch.from_numpy(np.random.default_rng(seed).integers(0, most, csc.num_edges))
    order = torch.from_numpy(np.lexsort((time.numpy(), csc.destinations().numpy())))
    return EdgeTimes(time=time[order], last=last)


def constraints_of(csc, seeds, *, disjoint, with_times, with_excluded):
    numbers = np.random.default_rng(5)
    times = torch.from_numpy(numbers.integers(-1, 55, len(seeds))) if with_times else None
    excluded = (
        torch.from_numpy(np.flatnonzero(numbers.random(csc.num_edges) < 0.2)) if with_excluded else None
    )
    return Constraints(disjoint=disjoint, times=times, excluded=excluded)


def compiled(csc, config, seeds, constraints, edge_times, *, num_threads=2):
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    pipeline = make_pipeline(Graph(csc=csc), config, num_threads=num_threads, depth=2, edge_times=edge_times)
    [prepared] = pipeline.begin(seeds, 7, 2, 3, constraints)
    return prepared.sampled


def reference(csc, config, seeds, constraints, edge_times):
    key = rng.batch_key(7, 2, 3)
    return sample_checked(
        only_types(csc), config, None, seeds, key, constraints=constraints, edge_times=edge_times
    )


@pytest.mark.parametrize(("disjoint", "with_times"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("with_excluded", [False, True])
@pytest.mark.parametrize(
    ("weighted", "replace"), [(False, False), (True, False), (False, True), (True, True)]
)
@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_compiled_equals_reference_bit_for_bit(
    layout, weighted, replace, with_excluded, disjoint, with_times
):
    for (nodes, edges, wide), fanouts, last in itertools.product(
        [(50, 400, False), (600, 3000, True)], FANOUTS, [False, True] if with_times else [False]
    ):
        if replace and -1 in fanouts:
            continue
        csc = power_law_csc(nodes, edges, wide=wide, weighted=weighted)
        config = SamplerConfig(
            fanouts=fanouts, replace=replace, layout=layout, weighted=weighted, return_edge_id=True
        )
        seeds = torch.from_numpy(np.random.default_rng(1).integers(0, nodes, 20))  # some of them twice
        constraints = constraints_of(
            csc, seeds, disjoint=disjoint, with_times=with_times, with_excluded=with_excluded
        )
        edge_times = timed(csc, last=last) if with_times else None
        expected = reference(csc, config, seeds, constraints, edge_times)
        got = compiled(csc, config, seeds, constraints, edge_times)
        assert_same(got, expected)
        assert (got.trees is None) == (expected.trees is None) == (not disjoint)
        assert not disjoint or torch.equal(got.trees, expected.trees)


@pytest.mark.slow
def test_a_constraint_that_allows_everything_changes_nothing():
    csc = power_law_csc(300, 3000)
    seeds = torch.arange(0, 60)
    for fanouts in FANOUTS:
        config = SamplerConfig(fanouts=fanouts, return_edge_id=True)
        free = sample_checked(only_types(csc), config, None, seeds, rng.batch_key(7, 2, 3))
        assert_same(reference(csc, config, seeds, Constraints(), None), free)


@given(st.data())
def test_a_constrained_sample_is_what_it_says(data):
    num_nodes = data.draw(st.integers(1, 40))
    csc = power_law_csc(num_nodes, data.draw(st.integers(0, 200)), seed=data.draw(st.integers(0, 99)))
    edge_times = timed(csc, last=data.draw(st.booleans()), most=data.draw(st.sampled_from([2, 30])))
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=6)))
    times = torch.tensor([data.draw(st.integers(-1, 31)) for _ in seeds])
    edges = list(range(csc.num_edges))
    excluded = sorted(data.draw(st.lists(st.sampled_from(edges), unique=True, max_size=20)) if edges else [])
    constraints = Constraints(
        disjoint=True, times=times, excluded=torch.tensor(excluded, dtype=torch.int64) if excluded else None
    )
    fanout = data.draw(st.integers(-1, 6))
    config = SamplerConfig(fanouts=(fanout, fanout), layout="subgraph", return_edge_id=True)
    sampled = reference(csc, config, seeds, constraints, edge_times)
    assert torch.equal(sampled.n_id[: len(seeds)], seeds)
    assert torch.equal(sampled.trees[: len(seeds)], torch.arange(len(seeds)))
    pairs = set(zip(sampled.trees.tolist(), sampled.n_id.tolist(), strict=True))
    assert len(pairs) == len(sampled.n_id)  # no node twice in a tree
    [drawn] = sampled.edges
    for row in range(drawn.indptr.numel() - 1):
        node, tree = int(sampled.n_id[row]), int(sampled.trees[row])
        got = drawn.positions[drawn.indptr[row] : drawn.indptr[row + 1]]
        sources = drawn.indices[drawn.indptr[row] : drawn.indptr[row + 1]].long()
        assert torch.equal(sampled.n_id[sources], csc.indices[got].long())
        assert torch.equal(sampled.trees[sources], torch.full_like(sources, tree))
        allowed = [
            position
            for position in range(int(csc.indptr[node]), int(csc.indptr[node + 1]))
            if int(edge_times.time[position]) <= int(times[tree]) and position not in excluded
        ]
        assert set(got.tolist()) <= set(allowed)
        assert (
            len(set(got.tolist())) == len(got) == (len(allowed) if fanout < 0 else min(fanout, len(allowed)))
        )
        if edge_times.last and fanout >= 0:
            assert got.tolist() == allowed[len(allowed) - len(got) :]  # exactly the most recent


def drawn_positions(csc, fanout, trials, constraints, edge_times, *, replace=False):
    """How often each edge of node 0 is drawn, over batches of different keys."""
    counts = np.zeros(csc.num_edges, dtype=np.int64)
    config = SamplerConfig(fanouts=(fanout,), replace=replace, return_edge_id=True)
    for step in range(trials):
        sampled = sample_checked(
            only_types(csc),
            config,
            None,
            torch.tensor([0]),
            rng.batch_key(3, 0, step),
            constraints=constraints,
            edge_times=edge_times,
        )
        np.add.at(counts, sampled.edges[0].positions.numpy(), 1)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(("degree", "fanout"), [(7, 3), (20, 5)])
@pytest.mark.parametrize("kind", ["excluded", "times"])
@pytest.mark.parametrize("replace", [False, True])
def test_every_allowed_edge_is_equally_likely(kind, degree, fanout, replace):
    csc = star_csc(degree)
    edge_times, trials = EdgeTimes(time=torch.arange(degree)), 1500
    if kind == "excluded":
        constraints = Constraints(excluded=torch.tensor([0, degree // 2]))
        allowed = [e for e in range(degree) if e not in (0, degree // 2)]
    else:
        constraints = Constraints(disjoint=True, times=torch.tensor([degree - 3]))
        allowed = list(range(degree - 2))
    counts = drawn_positions(csc, fanout, trials, constraints, edge_times, replace=replace)
    assert counts.sum() == trials * fanout == counts[allowed].sum()
    # Draws of one row without replacement repel each other, so the statistic is below chi-square.
    assert stats.chisquare(counts[allowed]).pvalue > 1e-4


def test_trees_draw_independently_of_each_other():
    csc = star_csc(40)
    seeds = torch.zeros(30, dtype=torch.int64)
    config = SamplerConfig(fanouts=(4,), return_edge_id=True)
    sampled = reference(csc, config, seeds, Constraints(disjoint=True), None)
    drawn = sampled.edges[0].positions.view(30, 4).tolist()
    assert len({tuple(row) for row in drawn}) > 25


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"times": torch.tensor([1])}, "times need disjoint trees"),
        ({"disjoint": True, "times": torch.tensor([1, 2])}, "times must have length 1; got 2"),
        ({"excluded": torch.tensor([1, 0])}, "excluded must be positions of edges, rising"),
        ({"excluded": torch.tensor([1, 1])}, "excluded must be positions of edges, rising"),
        ({"excluded": torch.tensor([2])}, "excluded must be positions of edges, rising"),
        ({"excluded": torch.tensor([-1])}, "excluded must be positions of edges, rising"),
    ],
)
def test_the_compiled_run_refuses_constraints_that_do_not_fit(wrong, message):
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    csc = Csc(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32), 2)
    config = SamplerConfig(fanouts=(1,))
    pipeline = make_pipeline(
        Graph(csc=csc), config, num_threads=1, depth=1, edge_times=EdgeTimes(time=torch.tensor([0, 1]))
    )
    with pytest.raises(ValueError, match=message):
        list(pipeline.begin(torch.tensor([0]), 0, 0, 0, Constraints(**wrong)))
