"""Symmetrise, duplicates, self-loops: against brute force, the reference twins and other thread counts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.graph.cases import assert_same_graph, case_graph, graphs, pairs_of, reference_kernels
from tests.graph.edge_cases import EDGE_CASES, random_edges
from tests.ops.graphs import threads

from graphbraid import datasets
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc

EDITS = {
    "symmetrize, max": lambda g: g.symmetrized(),
    "symmetrize, mean": lambda g: g.symmetrized(weights="mean"),
    "symmetrize, sum": lambda g: g.symmetrized(weights="sum"),
    "duplicates, sum": lambda g: g.without_duplicates(),
    "duplicates, mean": lambda g: g.without_duplicates(weights="mean"),
    "duplicates, max": lambda g: g.without_duplicates(weights="max"),
    "duplicates, first": lambda g: g.without_duplicates(weights="first"),
    "add loops": lambda g: g.with_self_loops(weight=0.5),
    "remove loops": lambda g: g.without_self_loops(),
    "symmetrize, no ids": lambda g: g.symmetrized(keep_edge_id=False),
    "duplicates, no ids": lambda g: g.without_duplicates(keep_edge_id=False),
    "add loops, no ids": lambda g: g.with_self_loops(keep_edge_id=False),
    "remove loops, no ids": lambda g: g.without_self_loops(keep_edge_id=False),
}


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("case", EDGE_CASES)
def test_edits_equal_reference_on_edge_cases(case, edit, weighted):
    graph = case_graph(case, weighted=weighted)
    with reference_kernels():
        expected = EDITS[edit](graph)
    assert_same_graph(EDITS[edit](graph).validate(), expected)


@given(graphs(), st.sampled_from(list(EDITS)))
def test_edits_equal_reference(graph, edit):
    with reference_kernels():
        expected = EDITS[edit](graph)
    assert_same_graph(EDITS[edit](graph), expected)


@pytest.mark.parametrize("edit", EDITS)
def test_edits_do_not_depend_on_threads(edit):
    edges = random_edges(9000, 100_000)  # nine tasks of rows
    weight = torch.rand(100_000)
    graph = Graph.from_edge_index(edges, 9000, edge_weight=weight)
    with threads(1):
        alone = EDITS[edit](graph)
    for count in (2, 5):
        with threads(count):
            assert_same_graph(EDITS[edit](graph), alone)


@given(graphs())
def test_symmetrized_holds_both_directions_of_each_pair_once(graph):
    pairs = set(pairs_of(graph))
    assert pairs_of(graph.symmetrized()) == sorted(pairs | {(v, u) for u, v in pairs})


@pytest.mark.parametrize("weights", ["max", "mean"])
@given(graphs(weighted=True))
def test_symmetrizing_again_changes_nothing(weights, graph):
    once = graph.symmetrized(weights=weights)
    assert_same_graph(once.symmetrized(weights=weights), once)


@pytest.mark.parametrize("weights", ["max", "mean", "sum"])
@given(graphs(weighted=True))
def test_symmetrized_weights_are_symmetric(weights, graph):
    back, _ = (csc := graph.symmetrized(weights=weights).csc).transpose()
    assert torch.equal(back.indptr, csc.indptr)
    assert torch.equal(back.indices, csc.indices)
    assert torch.equal(back.weight, csc.weight)


@given(graphs(weighted=True))
def test_symmetrized_sum_adds_all_edges_of_a_pair(graph):
    total = {}
    for (u, v), w in zip(graph.to_edge_index().t().tolist(), graph.csc.weight.tolist(), strict=True):
        total[frozenset((u, v))] = total.get(frozenset((u, v)), 0) + w
    result = graph.symmetrized(weights="sum")
    for (u, v), w in zip(result.to_edge_index().t().tolist(), result.csc.weight.tolist(), strict=True):
        assert w == total[frozenset((u, v))]  # self-loops counted once, not once per direction


@given(graphs())
def test_ids_of_symmetrized_edges_name_an_edge_between_the_two(graph):
    original = graph.to_edge_index(original_order=True)
    result = graph.symmetrized()
    assert result.edge_id is not None
    for (u, v), e in zip(result.to_edge_index().t().tolist(), result.edge_id.tolist(), strict=True):
        stored = tuple(original[:, e].tolist())
        forward = (original == torch.tensor([[u], [v]])).all(0).nonzero().flatten()
        # the first u -> v if there is one, else some v -> u
        assert e == forward[0] if forward.numel() else stored == (v, u)


@given(graphs())
def test_without_duplicates_keeps_each_edge_once_and_again_changes_nothing(graph):
    once = graph.without_duplicates()
    assert pairs_of(once) == sorted(set(pairs_of(graph)))
    assert_same_graph(once.without_duplicates(), once)


@pytest.mark.parametrize(
    ("weights", "expected"), [("sum", 11.0), ("mean", 11 / 3), ("max", 6.0), ("first", 3.0)]
)
def test_duplicates_combine_their_weights(weights, expected):
    graph = Graph.from_edge_index([[1, 0, 1, 1], [2, 2, 2, 2]], 3, edge_weight=[3.0, 9.0, 6.0, 2.0])
    result = graph.without_duplicates(weights=weights)
    torch.testing.assert_close(result.csc.weight, torch.tensor([9.0, expected]))
    assert result.edge_id.tolist() == [1, 0]  # of 1 -> 2 the first stays


@given(graphs())
def test_self_loops_are_added_where_missing_and_all_removed(graph):
    loops = {v for u, v in pairs_of(graph) if u == v}
    missing = [(v, v) for v in range(graph.num_nodes) if v not in loops]
    added = graph.with_self_loops(weight=2.5)
    assert pairs_of(added) == sorted(pairs_of(graph) + missing)
    assert int((added.edge_id == -1).sum()) == len(missing)
    if added.csc.weight is not None:
        assert set(added.csc.weight[added.edge_id == -1].tolist()) <= {2.5}
    assert_same_graph(added.with_self_loops(), added)
    without = graph.without_self_loops()
    assert pairs_of(without) == [(u, v) for u, v in pairs_of(graph) if u != v]
    assert_same_graph(added.without_self_loops(), without)


def test_edits_sort_rows_that_are_not_sorted():
    # A topology made by hand need not have its sources in order; merging without order would lose edges.
    csc = Csc(torch.tensor([0, 3, 4, 4]), torch.tensor([2, 1, 2, 0], dtype=torch.int32), 3, torch.arange(4.0))
    graph = Graph(csc=csc, edge_id=torch.tensor([10, 11, 12, 13]))
    result = graph.without_duplicates(weights="first")
    assert result.to_edge_index().tolist() == [[1, 2, 0], [0, 0, 1]]
    assert result.edge_id.tolist() == [11, 10, 13]
    assert result.csc.weight.tolist() == [1, 0, 3]
    assert graph.with_self_loops().edge_id.tolist() == [-1, 11, 10, 12, 13, -1, -1]


@pytest.mark.parametrize("how", ["symmetrized", "without_duplicates"])
def test_unknown_way_to_combine_weights_is_named(how):
    with pytest.raises(ConfigError, match=r"weights must be one of .*got 'median'"):
        getattr(case_graph("duplicates"), how)(weights="median")
    with pytest.raises(ConfigError, match="got 'first'"):  # not symmetric
        case_graph("duplicates").symmetrized(weights="first")


def test_features_and_splits_stay():
    graph = Graph.from_edge_index(
        [[0], [1]], 2, x=torch.ones(2, 3), y=[0, 1], splits={"train": [1]}, name="g"
    )
    result = graph.symmetrized()
    assert result.x is graph.x
    assert result.y is graph.y
    assert result.splits is graph.splits
    assert result.name == "g"


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0, "1"])
def test_self_loops_of_no_sound_weight_are_refused(weight):
    graph = Graph.from_edge_index(torch.tensor([[0], [1]]), 2, edge_weight=torch.ones(1))
    with pytest.raises(ConfigError, match="weight must be"):
        graph.with_self_loops(weight=weight)


# ---- edits of real graphs give the published numbers of edges


@pytest.mark.parametrize(
    (
        "name",
        "undirected",
    ),  # unique undirected edges without self-loops, from the table in shared/data/README.md
    [
        ("cora", 5_278),
        ("citeseer", 4_552),
        ("amazon_computers", 245_861),
        ("nell", 125_775),
        ("polblogs", 16_715),
        pytest.param("web_cnr2000", 2_738_969, marks=pytest.mark.slow),
    ],
)
def test_symmetrizing_gives_the_published_number_of_edges(shared_graph, name, undirected):
    graph = datasets.load(str(shared_graph(name))).validate()
    assert graph.symmetrized().without_self_loops().num_edges == 2 * undirected
