"""Negative links: uniform over what is allowed, a function of their key, and refused where there are none."""

import numpy as np
import pytest
import torch
from scipy import stats
from tests.sampling.graphs import power_law_csc

from graphbraid import Graph
from graphbraid.errors import ConfigError, DataError
from graphbraid.ops import rng
from graphbraid.sampling import NegativeSampling
from graphbraid.sampling.links.negatives import EdgeLookup, NegativeDraws

LINKS = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def graph_of(num_nodes, edges):
    return Graph.from_edge_index(torch.tensor(edges).t().reshape(2, -1), num_nodes).csc


def complete(num_nodes, but=()):
    pairs = [(u, v) for u in range(num_nodes) for v in range(num_nodes) if u != v and (u, v) not in but]
    return graph_of(num_nodes, pairs)


def counted(draws, num_nodes, src, trials, times=None):
    """How often each pair is drawn over batches of different keys."""
    counts = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    for step in range(trials):
        heads, tails = draws.draw(rng.batch_key(1, 0, step), src, times)
        np.add.at(counts, (heads, tails), 1)
    return counts


def test_pairs_are_uniform_over_all_nodes():
    draws = NegativeDraws(NegativeSampling("binary", 50), graph_of(6, [(0, 1)]), LINKS)
    counts = counted(draws, 6, LINKS[0].numpy(), 40)
    assert counts.sum() == 40 * 50 * 4
    assert stats.chisquare(counts.ravel()).pvalue > 1e-4


def test_rejected_pairs_never_come_and_the_others_are_uniform():
    csc = graph_of(6, [(0, 1), (0, 2), (3, 3), (4, 0), (4, 0)])
    draws = NegativeDraws(NegativeSampling("binary", 50, reject_edges=True), csc, LINKS)
    counts = counted(draws, 6, LINKS[0].numpy(), 40)
    allowed = np.ones((6, 6), dtype=bool)
    np.fill_diagonal(allowed, False)
    for u, v in [(0, 1), (0, 2), (4, 0), *LINKS.t().tolist()]:
        allowed[u, v] = False
    assert not counts[~allowed].any()
    assert stats.chisquare(counts[allowed]).pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_what_hardly_anything_is_left_of_is_uniform_too(mode):
    """All but three pairs are edges, so that most negatives are drawn from a list of what is allowed."""
    left = [(0, 5), (0, 9), (7, 2)]
    csc = complete(40, but=left)
    links = torch.tensor([[0, 7], [1, 1]])
    draws = NegativeDraws(NegativeSampling(mode, 4, reject_edges=True), csc, links)
    counts = counted(draws, 40, links[0].numpy(), 200)
    seen = {(int(u), int(v)): int(counts[u, v]) for u, v in zip(*counts.nonzero(), strict=True)}
    assert set(seen) == set(left)
    expected = [1 / 3] * 3 if mode == "binary" else [1 / 4, 1 / 4, 1 / 2]
    assert stats.chisquare([seen[pair] for pair in left], 1600 * np.array(expected)).pvalue > 1e-4
    if mode == "triplet":
        assert seen[7, 2] == 800


def test_weights_and_degrees_are_drawn_by():
    csc = graph_of(5, [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (4, 0)])
    weight = torch.tensor([0.0, 1.0, 2.0, 0.0, 5.0])
    how = NegativeSampling("binary", 100, weight, "degree")
    counts = counted(NegativeDraws(how, csc, LINKS), 5, LINKS[0].numpy(), 20)
    assert not counts[[0, 3]].any()
    assert not counts[:, 4].any()  # no in-edges
    assert stats.chisquare(counts.sum(1)[[1, 2, 4]], 8000 * np.array([1, 2, 5]) / 8).pvalue > 1e-4
    assert stats.chisquare(counts.sum(0)[:4], 8000 * np.array([1, 1, 1, 3]) / 6).pvalue > 1e-4


def test_triplets_keep_the_sources_of_their_links():
    draws = NegativeDraws(NegativeSampling("triplet", 3, reject_edges=True), graph_of(9, [(0, 1)]), LINKS)
    heads, tails = draws.draw(5, LINKS[0].numpy(), None)
    assert heads.tolist() == LINKS[0].tolist() * 3
    assert len(tails) == 12
    assert not (heads == tails).any()


def test_nodes_from_the_future_are_no_negatives():
    node_time, times = torch.arange(10), torch.tensor([0, 3, 9, 5])
    for mode in ("binary", "triplet"):
        draws = NegativeDraws(
            NegativeSampling(mode, 20),
            graph_of(10, [(0, 1)]),
            LINKS,
            node_times=(node_time, node_time),
            times=times,
        )
        heads, tails = draws.draw(3, LINKS[0].numpy(), times.numpy())
        until = np.tile(times.numpy(), 20)
        assert (tails <= until).all()
        assert set(tails[until == 9]) - set(range(6))
        assert mode == "triplet" or (heads <= until).all()


def test_a_batch_of_negatives_is_a_function_of_its_key():
    draws = NegativeDraws(NegativeSampling("binary", 2.5), power_law_csc(100, 500), LINKS)
    first, again, other = (draws.draw(key, LINKS[0].numpy(), None) for key in (8, 8, 9))
    assert len(first[0]) == 10
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], other[1])


def test_a_source_that_is_linked_to_every_node_is_named():
    csc = graph_of(4, [(2, 0), (2, 1), (2, 3)])
    with pytest.raises(ConfigError, match="for link 2: its source, node 2, is linked to every other node"):
        NegativeDraws(NegativeSampling("triplet", reject_edges=True), csc, LINKS)


def test_a_link_before_every_node_is_named():
    with pytest.raises(ConfigError, match="link 1 can have no negatives: no node is as early"):
        NegativeDraws(
            NegativeSampling("binary"),
            graph_of(4, [(0, 1)]),
            LINKS,
            node_times=(torch.full((4,), 5), torch.full((4,), 5)),
            times=torch.tensor([5, 4, 6, 7]),
        )


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(3), r"src_weight must have one weight per node, shape \(4,\); got \(3,\)"),
        (torch.tensor([1.0, -1, 0, 0]), r"src_weight\[1\] is -1"),
        (torch.tensor([1.0, 0, torch.nan, 0]), r"src_weight\[2\] is nan"),
        (torch.zeros(4), "all are 0"),
        ("degrees", "src_weight must be one of 'degree'"),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_refused(weight, message):
    with pytest.raises((ConfigError, DataError), match=message):
        NegativeDraws(NegativeSampling("binary", 1, weight), graph_of(4, [(0, 1)]), LINKS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "pairs"}, "mode of NegativeSampling must be one of 'binary', 'triplet'"),
        ({"mode": "binary", "amount": 0}, "amount of NegativeSampling must be greater than 0"),
        ({"mode": "binary", "amount": float("nan")}, "amount of NegativeSampling must be"),
        ({"mode": "triplet", "amount": 1.5}, "must be a whole number for mode 'triplet'; got 1.5"),
        ({"mode": "binary", "reject_edges": "yes"}, "reject_edges must be True or False"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        NegativeSampling(**options)


def test_forms_of_the_option():
    assert NegativeSampling.of(None) is None
    assert NegativeSampling.of("binary").amount == 1
    assert NegativeSampling.of({"mode": "triplet", "amount": 2}).is_triplet
    for wrong in ({"amount": 2}, {"mode": "binary", "ratio": 2}, 3):
        with pytest.raises(ConfigError, match="neg_sampling must"):
            NegativeSampling.of(wrong)


@pytest.mark.parametrize("wide", [False, True])
def test_edges_are_found_by_their_ends(wide):
    csc = power_law_csc(60, 500, wide=wide)  # rows in no order, edges repeated
    dst = csc.destinations().numpy().astype(np.int64)
    src = csc.indices.numpy().astype(np.int64)
    lookup = EdgeLookup(csc)
    edges = set(zip(src.tolist(), dst.tolist(), strict=True))
    heads, tails = (part.ravel() for part in np.meshgrid(np.arange(60), np.arange(60)))
    wanted = [pair in edges for pair in zip(heads.tolist(), tails.tolist(), strict=True)]
    assert lookup.has(heads, tails).tolist() == wanted
    some = np.array([3, 17, 200, 3])
    same = [e for e in range(csc.num_edges) if (src[e], dst[e]) in {(src[s], dst[s]) for s in some}]
    assert lookup.positions(src[some], dst[some]).tolist() == same
