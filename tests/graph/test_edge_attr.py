"""Edge features: kept with their edges by conversions, edits, the store and copies; refused where wrong."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_PYG
from tests.graph.cases import edge_lists
from tests.graph.edge_cases import random_edges
from tests.graph.test_edges import EDITS

from graphbraid.datasets import open_store, save_store
from graphbraid.errors import DataError
from graphbraid.graph import Graph
from graphbraid.train.run_folder.contract import graph_identity


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
