"""Symmetrise, duplicates, self-loops: against brute force, the reference twins and other thread counts."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_PYG
from tests.graph.cases import assert_same_graph, case_graph, edge_lists, graphs, pairs_of, reference_kernels
from tests.graph.edge_cases import EDGE_CASES, random_edges
from tests.ops.graphs import threads

from graphbraid import datasets
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.train.run_folder.contract import graph_identity

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


def telling(edges):
    """Features that say which edge a row belongs to: source, destination, position in the list."""
    return torch.cat([edges, torch.arange(edges.shape[1])[None]]).t().float()


def graph_of(num_nodes, edges, **more):
    return Graph.from_edge_index(edges, num_nodes, edge_attr=telling(edges), **more)


def assert_rows_are_their_edges(graph):
    assert torch.equal(graph.edge_attr[:, :2].t().long(), graph.to_edge_index())


@given(edge_lists())
def test_rows_follow_their_edges(case):
    num_nodes, edges = case
    graph = graph_of(num_nodes, edges)
    assert_rows_are_their_edges(graph)
    assert torch.equal(graph.in_original_order(graph.edge_attr), telling(edges))
    assert torch.equal(graph_of(num_nodes, edges, keep_edge_id=False).edge_attr, graph.edge_attr)


@given(edge_lists(), st.sampled_from([name for name in EDITS if "no ids" not in name]))
def test_after_an_edit_an_edge_has_the_row_of_the_edge_whose_id_it_has(case, edit):
    num_nodes, edges = case
    attr = telling(edges) + 1  # no row of a stored edge is 0
    graph = Graph.from_edge_index(edges, num_nodes, edge_attr=attr)
    plain, edited = EDITS[edit](graph.replace(edge_attr=None)), EDITS[edit](graph)
    assert torch.equal(plain.csc.indptr, edited.csc.indptr)
    assert torch.equal(plain.csc.indices, edited.csc.indices)
    assert torch.equal(plain.edge_id, edited.edge_id)
    expected, kept = torch.zeros(plain.num_edges, 3), plain.edge_id >= 0
    expected[kept] = attr[plain.edge_id[kept]]
    assert torch.equal(edited.edge_attr, expected)


def test_an_edit_may_leave_ids_out():
    edges = random_edges(20, 90)
    for edit in (
        Graph.symmetrized,
        Graph.without_duplicates,
        Graph.with_self_loops,
        Graph.without_self_loops,
    ):
        found = edit(graph_of(20, edges), keep_edge_id=False)
        assert found.edge_id is None
        assert torch.equal(found.edge_attr, edit(graph_of(20, edges)).edge_attr)


def test_rows_are_shared_where_the_list_is_in_order():
    attr = torch.rand(3, 2)
    graph = Graph.from_edge_index([[1, 0, 2], [0, 1, 1]], 3, edge_attr=attr)
    assert graph.edge_attr is attr
    assert graph.nbytes == graph.csc.nbytes + attr.nbytes
    assert "2 edge features" in repr(graph)
    assert (graph.num_edge_features, graph.replace(edge_attr=None).num_edge_features) == (2, 0)


def test_other_numbers_become_float32_and_one_an_edge_a_column():
    graph = Graph.from_edge_index([[1, 0], [0, 1]], edge_attr=[3, 4])
    assert graph.edge_attr.dtype == torch.float32
    assert graph.edge_attr.tolist() == [[3], [4]]
    half = Graph.from_edge_index([[1, 0], [0, 1]], edge_attr=torch.ones(2, 3).half())
    assert half.edge_attr.dtype == torch.float16


@pytest.mark.parametrize(
    ("attr", "message"),
    [
        (torch.rand(3, 2), "edge_attr has 3 rows, but the graph has 2 edges"),
        (torch.rand(2, 2, 2), r"edge_attr must be a dense 2-d .* of shape \(2, 2, 2\)"),
        (torch.rand(2, 2).to_sparse(), "edge_attr must be a dense"),
        ([["a"], ["b"]], "edge_attr must hold numbers"),
    ],
)
def test_what_does_not_fit_is_named(attr, message):
    with pytest.raises(DataError, match=message):
        Graph.from_edge_index([[1, 0], [0, 1]], edge_attr=attr)


@pytest.mark.parametrize("attr", [torch.rand(2), torch.rand(2, 1).double(), "features"])
def test_a_graph_takes_a_matrix_of_floats(attr):
    graph = Graph.from_edge_index([[1, 0], [0, 1]])
    with pytest.raises(DataError, match="edge_attr must be a"):
        graph.replace(edge_attr=attr)


def test_values_that_are_not_finite_are_found():
    graph = Graph.from_edge_index([[1, 0], [0, 1]], edge_attr=torch.tensor([[1.0, 2.0], [3.0, torch.nan]]))
    with pytest.raises(DataError, match=r"features must be finite; edge_attr\[1, 1\] is nan"):
        graph.validate()


def test_the_store_and_pickle_keep_them(tmp_path):
    for dtype in (torch.float32, torch.bfloat16):
        edges = random_edges(20, 90)
        graph = Graph.from_edge_index(edges, 20, edge_attr=telling(edges).to(dtype))
        stored = open_store(save_store(graph, tmp_path / str(dtype)))
        for copy in (stored, pickle.loads(pickle.dumps(graph))):
            assert copy.edge_attr.dtype == dtype
            assert torch.equal(copy.edge_attr, graph.edge_attr)


def test_a_run_on_other_edge_features_is_another():
    edges = random_edges(20, 90)
    graph = graph_of(20, edges)
    other = graph.replace(edge_attr=graph.edge_attr + 1)
    first, second, third = map(graph_identity, (graph, other, graph.replace(edge_attr=None)))
    assert first.keys() - third.keys() == {"array edge_attr"}
    assert [name for name in first if first[name] != second[name]] == ["array edge_attr"]


def test_pyg_data_brings_a_matrix_of_floats_and_gets_it_back():
    data_class = pytest.importorskip("torch_geometric.data", reason=NO_PYG).Data
    edges = random_edges(20, 90)
    data = data_class(edge_index=edges, edge_attr=telling(edges), num_nodes=20)
    graph = Graph.from_pyg(data)
    assert_rows_are_their_edges(graph)
    assert torch.equal(graph.to_pyg().edge_attr, data.edge_attr)
    kept = {
        torch.Size([90, 3]): data.edge_attr.double(),
        torch.Size([90, 1]): torch.rand(90, 1),  # a matrix, not weights
    }
    for shape, attr in kept.items():
        data.edge_attr = attr
        graph = Graph.from_pyg(data)
        assert graph.edge_attr.shape == shape
        assert graph.csc.weight is None
    for attr in (torch.rand(90), torch.arange(90), torch.ones(90, 3, dtype=torch.int64), None):
        data.edge_attr = attr
        assert Graph.from_pyg(data).edge_attr is None
    data.edge_attr = torch.rand(90, 1)
    graph = Graph.from_pyg(data, edge_weight="edge_attr")
    assert graph.edge_attr is None
    assert torch.equal(graph.to_pyg().edge_weight, data.edge_attr[:, 0])
    data.edge_attr = torch.rand(7, 3)
    with pytest.raises(DataError, match="edge_attr has 7 rows, but the graph has 90 edges"):
        Graph.from_pyg(data)
