"""Metrics of link prediction: against their definition, filtered or not, and in parts of any size."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from graphbraid.errors import ConfigError, DataError
from graphbraid.train import Ranking, link_auc, rank_links


def rank_by_definition(scores, source, target, known):
    """One more than the candidates above the target, and half of those alike."""
    others = [node for node in range(scores.shape[1]) if node != target and (source, node) not in known]
    own = scores[source, target]
    return (
        1 + sum(scores[source, o] > own for o in others) + sum(scores[source, o] == own for o in others) / 2
    )


@given(st.data())
def test_ranks_are_those_of_the_definition(data):
    num_nodes = data.draw(st.integers(1, 9))
    numbers = np.random.default_rng(data.draw(st.integers(0, 999)))
    scores = torch.from_numpy(numbers.integers(-2, 3, (num_nodes, num_nodes))).float()  # many are equal
    scores[numbers.random((num_nodes, num_nodes)) < 0.1] = -torch.inf
    links = torch.from_numpy(numbers.integers(0, num_nodes, (2, data.draw(st.integers(0, 8)))))
    known = torch.from_numpy(numbers.integers(0, num_nodes, (2, data.draw(st.integers(0, 30)))))
    filtered = data.draw(st.booleans())
    found = rank_links(
        lambda src: scores[src],
        links,
        num_nodes,
        known=known if filtered else None,
        most_scores=data.draw(st.sampled_from([1, 20, 10**6])),
    )
    out = set(map(tuple, known.t().tolist())) if filtered else set()
    expected = [rank_by_definition(scores, s, t, out) for s, t in links.t().tolist()]
    assert found.ranks.tolist() == [float(rank) for rank in expected]


def test_the_scores_of_the_caller_stay_as_they_are():
    scores = torch.rand(4, 4)
    before = scores.clone()
    links = torch.tensor([[0, 1], [2, 3]])
    rank_links(lambda src: scores[: len(src)], links, 4, known=links)
    assert torch.equal(scores, before)


def test_a_link_of_the_lowest_score_is_ranked_among_those_that_are_not_left_out():
    scores = torch.tensor([[-torch.inf, -torch.inf, 1.0, 2.0]])
    links, known = torch.tensor([[0], [0]]), torch.tensor([[0], [2]])
    found = rank_links(lambda src: scores[src], links, 4, known=known)
    assert found.ranks.tolist() == [2.5]


def test_scores_may_be_whole_numbers():
    scores = torch.tensor([[3, 1, 2, 2]])
    links, known = torch.tensor([[0], [2]]), torch.tensor([[0], [0]])
    assert rank_links(lambda src: scores[src], links, 4, known=known).ranks.tolist() == [1.5]


def test_summaries_of_ranks():
    ranking = Ranking(torch.tensor([1.0, 2.0, 4.5, 10.0], dtype=torch.float64))
    assert ranking.mrr == pytest.approx((1 + 1 / 2 + 1 / 4.5 + 1 / 10) / 4)
    assert [ranking.hits(k) for k in (1, 3, 5, 10)] == [0.25, 0.5, 0.75, 1.0]
    assert Ranking(torch.zeros(0)).mrr == Ranking(torch.zeros(0)).hits(1) == 0.0
    with pytest.raises(ConfigError, match="k must be"):
        ranking.hits(0)


def test_auc_is_that_of_scikit_learn():
    numbers = np.random.default_rng(0)
    positive, negative = numbers.integers(0, 12, 300) + 2, numbers.integers(0, 12, 500)
    expected = roc_auc_score([1] * 300 + [0] * 500, np.concatenate([positive, negative]))
    assert link_auc(torch.from_numpy(positive), torch.from_numpy(negative)) == pytest.approx(expected)
    assert link_auc(torch.ones(3), torch.ones(5)) == 0.5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"links": torch.tensor([[0], [4]])}, DataError, "destinations of links must be node ids in"),
        ({"links": torch.tensor([0, 1])}, DataError, r"links must have shape \(2, num_links\); got \(2,\)"),
        ({"known": torch.tensor([[9], [0]])}, DataError, "sources of known must be node ids in"),
        ({"num_nodes": 0}, ConfigError, "num_nodes must be"),
        ({"most_scores": 0}, ConfigError, "most_scores must be"),
        ({"score": lambda src: torch.zeros(4)}, ConfigError, r"got \(4,\)"),
        ({"score": lambda src: torch.full((len(src), 4), torch.nan)}, DataError, "NaN is among"),
    ],
)
def test_what_cannot_be_ranked_is_refused(change, error, message):
    sound = {
        "score": lambda src: torch.zeros(len(src), 4),
        "links": torch.tensor([[0, 1], [1, 2]]),
        "num_nodes": 4,
    }
    assert rank_links(**sound).ranks.tolist() == [2.5, 2.5]
    with pytest.raises(error, match=message):
        rank_links(**sound | change)


@pytest.mark.parametrize("name", ["positive", "negative"])
@pytest.mark.parametrize("wrong", [torch.zeros(0), torch.tensor([torch.nan]), torch.zeros(2, 2)])
def test_scores_without_an_auc_are_refused(name, wrong):
    with pytest.raises(DataError, match=name):
        link_auc(**{"positive": torch.zeros(1), "negative": torch.zeros(1)} | {name: wrong})


def rank_of(scores, own, others):
    left = [node for node in range(len(scores)) if node != own and node not in others]
    return 1 + sum(scores[o] > scores[own] for o in left) + sum(scores[o] == scores[own] for o in left) / 2


@given(st.data())
def test_ranks_of_both_ends_are_filtered_by_relation(data):
    num_nodes, num_kinds = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 3))
    numbers = np.random.default_rng(data.draw(st.integers(0, 999)))
    table = torch.from_numpy(numbers.integers(-2, 3, (num_kinds, num_nodes, num_nodes))).float()

    def triples(count):
        ends = torch.from_numpy(numbers.integers(0, num_nodes, (2, count)))
        return ends, torch.from_numpy(numbers.integers(0, num_kinds, count))

    (links, kind), (known, known_kind) = triples(6), triples(data.draw(st.integers(0, 30)))
    found = rank_links(
        lambda src, kind: table[kind, src],
        links,
        num_nodes,
        relation=kind,
        score_sources=lambda dst, kind: table[kind, :, dst],
        known=known,
        known_relation=known_kind,
        most_scores=data.draw(st.sampled_from([1, 20, 10**6])),
    )
    true = list(zip(*known.tolist(), known_kind.tolist(), strict=True))
    expected = [
        rank_of(table[r, s].tolist(), d, {b for a, b, k in true if (a, k) == (s, r)})
        for (s, d), r in zip(links.t().tolist(), kind.tolist(), strict=True)
    ] + [
        rank_of(table[r, :, d].tolist(), s, {a for a, b, k in true if (b, k) == (d, r)})
        for (s, d), r in zip(links.t().tolist(), kind.tolist(), strict=True)
    ]
    assert found.ranks.tolist() == [float(rank) for rank in expected]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"relation": None}, ConfigError, "relation is not given"),
        ({"known_relation": None}, ConfigError, "known_relation is not given"),
        (
            {"relation": torch.tensor([0])},
            DataError,
            "relation must have an entry for each of 2 links; got 1",
        ),
        ({"known_relation": torch.tensor([0, -1])}, DataError, r"known_relation must be in \[0, 65536\)"),
    ],
)
def test_relations_that_do_not_fit_are_refused(change, error, message):
    links = torch.tensor([[0, 1], [1, 2]])
    sound = {"relation": torch.tensor([0, 1]), "known": links, "known_relation": torch.tensor([0, 1])}
    with pytest.raises(error, match=message):
        rank_links(lambda src, kind: torch.zeros(len(src), 4), links, 4, **sound | change)


def test_sources_of_another_type_have_ids_of_their_own():
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(7, 4, generator=draw)
    links, known = torch.tensor([[6, 0, 3], [1, 3, 3]]), torch.tensor([[6, 6, 1, 3], [1, 2, 1, 3]])
    found = rank_links(
        lambda src: table[src],
        links,
        4,
        num_sources=7,
        score_sources=lambda dst: table.t()[dst],
        known=known,
        most_scores=5,
    )
    pairs = links.t().tolist()
    forth = [rank_by_definition(table, s, d, set(map(tuple, known.t().tolist()))) for s, d in pairs]
    back = [
        rank_by_definition(table.t(), d, s, set(map(tuple, known.flip(0).t().tolist()))) for s, d in pairs
    ]
    assert found.ranks.tolist() == [*map(float, forth), *map(float, back)]
    with pytest.raises(DataError, match="destinations of links"):
        rank_links(lambda src: table[src], links.flip(0), 4, num_sources=7)
    with pytest.raises(ConfigError, match="num_sources must be"):
        rank_links(lambda src: table[src], links, 4, num_sources=0)
