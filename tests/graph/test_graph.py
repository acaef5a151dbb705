"""Graph: construction from edge lists, what it says about itself, and the errors of misfitting arrays."""

import numpy as np
import pytest
import torch
from hypothesis import given
from tests.graph.cases import edge_lists, pairs_of, reference_kernels
from tests.graph.edge_cases import random_edges

from graphbraid.errors import DataError, GraphbraidError
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.csc import Csc

TRIANGLE = [[0, 1, 2], [1, 2, 0]]


def csc_of(num_dst: int = 3, *, num_src: int | None = None) -> Csc:
    """An adjacency without edges."""
    indptr, indices = torch.zeros(num_dst + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
    return Csc(indptr, indices, num_dst if num_src is None else num_src)


@given(edge_lists())
def test_edges_survive_the_round_trip(case):
    num_nodes, edges = case
    graph = Graph.from_edge_index(edges, num_nodes).validate()
    assert (graph.num_nodes, graph.num_edges) == (num_nodes, edges.shape[1])
    assert pairs_of(graph) == sorted(map(tuple, edges.t().tolist()))
    assert torch.equal(graph.to_edge_index(original_order=True), edges)
    again = Graph.from_edge_index(graph.to_edge_index(), num_nodes)
    assert again.edge_id is None  # in order already
    assert torch.equal(again.csc.indices, graph.csc.indices)


@given(edge_lists())
def test_transposing_twice_is_the_identity(case):
    num_nodes, edges = case
    csc = Graph.from_edge_index(edges, num_nodes).csc
    once, perm = csc.transpose()
    twice, back = once.transpose()
    assert torch.equal(twice.indptr, csc.indptr)
    assert torch.equal(twice.indices, csc.indices)
    assert torch.equal(perm[back], torch.arange(csc.num_edges))


@pytest.mark.parametrize(
    "edges",
    [
        np.array(TRIANGLE, dtype=np.int32),
        np.array(TRIANGLE, dtype=np.uint32),
        np.array(TRIANGLE, dtype=np.uint64),
        np.array(TRIANGLE, dtype=">i4"),
        np.array(TRIANGLE, dtype=np.int16),
        np.array(TRIANGLE).T.copy().T,
        np.array(TRIANGLE)[:, ::-1],
        (np.array(TRIANGLE[0]), np.array(TRIANGLE[1], dtype=np.int32)),
        torch.tensor(TRIANGLE, dtype=torch.int32),
        torch.tensor(TRIANGLE).t().contiguous().t(),
        TRIANGLE,
        (TRIANGLE[0], TRIANGLE[1]),
    ],
    ids=str,
)
def test_edge_lists_come_in_many_forms(edges):
    assert pairs_of(Graph.from_edge_index(edges, 3)) == [(0, 1), (1, 2), (2, 0)]


def test_read_only_arrays_are_taken_without_a_warning():
    edges = np.array(TRIANGLE)
    edges.setflags(write=False)
    x = np.ones((3, 2), dtype=np.float32)
    x.setflags(write=False)
    graph = Graph.from_edge_index(edges, x=x)
    assert graph.dense_x().numpy().ctypes.data == x.ctypes.data  # shared


def test_number_of_nodes_is_found():
    assert Graph.from_edge_index(TRIANGLE).num_nodes == 3
    assert Graph.from_edge_index(TRIANGLE, x=torch.ones(5, 2)).num_nodes == 5
    assert Graph.from_edge_index(TRIANGLE, y=[0, 1, 0, 1]).num_nodes == 4
    assert Graph.from_edge_index(torch.empty(2, 0)).num_nodes == 0


def test_weights_follow_their_edges():
    edges = random_edges(30, 200)
    weight = torch.rand(200)
    graph = Graph.from_edge_index(edges, 30, edge_weight=weight.double().numpy()[:, None])
    assert torch.equal(graph.csc.weight, weight[graph.edge_id])
    assert torch.equal(graph.in_original_order(graph.csc.weight), weight)
    without_ids = Graph.from_edge_index(edges, 30, edge_weight=weight, keep_edge_id=False)
    assert without_ids.edge_id is None
    assert torch.equal(without_ids.csc.weight, graph.csc.weight)
    assert without_ids.in_original_order(without_ids.csc.weight) is without_ids.csc.weight


def test_original_order_is_given_up_when_edges_were_edited():
    graph = Graph.from_edge_index([[2, 1, 0], [0, 0, 1]], 3)
    edited = graph.with_self_loops()
    assert torch.equal(edited.to_edge_index(original_order=True), edited.to_edge_index())


def test_masks_and_ids_are_splits():
    mask = np.array([True, False, True])
    graph = Graph.from_edge_index(
        TRIANGLE, splits={"train": mask, "val": torch.tensor([1], dtype=torch.int32)}
    )
    assert graph.split("train").tolist() == [0, 2]
    assert graph.split("val").dtype == torch.int64


@pytest.mark.parametrize(
    ("y", "task", "num_classes", "dtype"),
    [
        ([0, 2, -1], "single-label", 3, torch.int64),
        (np.array([[0], [4], [1]], dtype=np.int32), "single-label", 5, torch.int64),
        (torch.tensor([True, False, True]), "single-label", 2, torch.int64),
        (torch.eye(3), "multi-label", 3, torch.float32),
        (torch.eye(3, dtype=torch.int64), "multi-label", 3, torch.float32),
        (torch.eye(3, dtype=torch.bool), "multi-label", 3, torch.float32),
        (torch.rand(3, 4, dtype=torch.float64) + 1, "regression", 4, torch.float32),
        ([0.0, 1.0, 0.0], "regression", 1, torch.float32),
    ],
)
def test_task_follows_from_the_labels(y, task, num_classes, dtype):
    graph = Graph.from_edge_index(TRIANGLE, y=y).validate()
    assert (graph.task, graph.num_classes, graph.y.dtype) == (task, num_classes, dtype)


def test_a_late_value_makes_a_large_label_matrix_a_target():
    y = torch.zeros(400_000, 3)  # more than one scan
    y[-1, -1] = 0.5
    graph = Graph(csc=csc_of(400_000), y=y)
    assert graph.task == "regression"
    y[-1, -1] = 1
    assert graph.task == "multi-label"


@pytest.mark.parametrize(
    ("x", "dtype", "kind"),
    [
        (torch.ones(3, 2, dtype=torch.bfloat16), torch.bfloat16, torch.Tensor),
        (np.ones((3, 2), dtype=np.float16), torch.float16, torch.Tensor),
        (np.ones((3, 2)), torch.float32, torch.Tensor),
        (torch.ones(3, 2, dtype=torch.uint8), torch.float32, torch.Tensor),
        (torch.ones(3), torch.float32, torch.Tensor),
        (torch.ones(3, 2).to_sparse(), torch.float32, SparseFeatures),
        (torch.ones(3, 2, dtype=torch.float64).to_sparse(), torch.float32, SparseFeatures),
    ],
)
def test_features_come_in_many_forms(x, dtype, kind):
    graph = Graph.from_edge_index(TRIANGLE, x=x).validate()
    assert isinstance(graph.x, kind)
    assert graph.x.dtype == dtype
    assert graph.num_features == graph.dense_x().shape[1] == (1 if x.ndim == 1 else 2)
    assert bool((graph.dense_x() == 1).all())


def test_features_that_fit_are_shared():
    x = torch.ones(3, 2)
    assert Graph.from_edge_index(TRIANGLE, x=x).x is x


def test_size_and_name_in_words():
    x = SparseFeatures.from_dense(torch.eye(3))
    graph = Graph.from_edge_index(TRIANGLE, x=x, y=[0, 1, 2], splits={"train": [0, 1]}, name="tri")
    assert repr(graph) == "Graph(tri: 3 nodes, 3 edges, 3 sparse features, 2 train)"
    assert (
        repr(graph.replace(x=torch.ones(3, 7), name="", splits={}))
        == "Graph(3 nodes, 3 edges, 7 dense features)"
    )
    assert repr(graph.replace(x=None, splits={})) == "Graph(tri: 3 nodes, 3 edges)"
    topology = 4 * 8 + 3 * 4
    assert graph.nbytes == topology + 3 * 8 + x.nbytes + 3 * 8 + 2 * 8


def test_replace_checks_again():
    graph = Graph.from_edge_index(TRIANGLE)
    assert graph.replace(x=torch.ones(3, 4)).num_features == 4
    with pytest.raises(DataError, match="x has 4 rows, but the graph has 3 nodes"):
        graph.replace(x=torch.ones(4, 4))


@pytest.mark.parametrize(
    ("edge_index", "kwargs", "message"),
    [
        (TRIANGLE, {"x": torch.ones(2, 2)}, "sources must be node ids in [0, 2); position 2 holds 2"),
        (TRIANGLE, {"splits": {"val": [True, False]}}, "mask of 2 nodes, but the graph has 3"),
        (
            TRIANGLE,
            {"splits": [[0], [1]]},
            "splits must map names such as 'train' to node ids or masks; got list",
        ),
        (None, {}, "edge_index must hold numbers; got dtype object of type NoneType"),
        (TRIANGLE, {"x": [[1.0], [1.0, 2.0], [3.0]]}, "x must be an array of numbers"),
        (TRIANGLE, {"x": torch.ones(3, 2, 2).to_sparse()}, "x must have shape (num_nodes, num_features)"),
    ],
)
def test_from_edge_index_names_what_does_not_fit(edge_index, kwargs, message):
    with pytest.raises(DataError) as error:
        Graph.from_edge_index(edge_index, **kwargs)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"csc": Csc(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32), 5)},
            "has 5 and 3",
        ),
        ({"edge_id": torch.zeros(2, dtype=torch.int64)}, "edge_id must be torch.int64 of shape (0,)"),
        ({"edge_id": torch.zeros(0)}, "got torch.float32"),
        ({"x": torch.ones(3)}, "x must be a 2-d float32"),
        ({"x": torch.ones(3, 2, dtype=torch.float64)}, "got torch.float64 of shape (3, 2)"),
        ({"y": torch.zeros(3, dtype=torch.int32)}, "y must be 1-d int64 classes"),
        ({"y": torch.zeros(3, 2, dtype=torch.int64)}, "got torch.int64 of shape (3, 2)"),
        ({"splits": {"train": torch.ones(3, dtype=torch.bool)}}, "split 'train' must be 1-d int64 node ids"),
    ],
)
def test_graph_checks_shapes_and_dtypes_when_made(fields, message):
    with pytest.raises(DataError) as error:
        Graph(**{"csc": csc_of(), **fields})
    assert message in str(error.value)


def test_weights_of_another_length_are_refused():
    csc = csc_of()
    csc.weight = torch.ones(1)
    with pytest.raises(DataError, match=r"edge weights must be torch.float32 of shape \(0,\)"):
        Graph(csc=csc)


def test_missing_parts_are_named():
    graph = Graph.from_edge_index(TRIANGLE, splits={"train": [0], "test": []})
    with pytest.raises(DataError, match=r"no split 'val' \(present: train, test\)"):
        graph.split("val")
    with pytest.raises(DataError, match="split 'test' is empty"):
        graph.split("test")
    with pytest.raises(DataError, match="no features"):
        graph.dense_x()
    for read in (lambda: graph.task, lambda: graph.num_classes):
        with pytest.raises(DataError, match="no labels"):
            read()
    assert graph.num_features == 0


def test_errors_are_also_value_errors():
    with pytest.raises(ValueError, match="must be node ids"):
        Graph.from_edge_index([[7], [0]], 3)
    assert issubclass(DataError, GraphbraidError)


def test_reference_kernels_build_the_same_graph():
    edges = random_edges(40, 500)
    graph = Graph.from_edge_index(edges, 40)
    with reference_kernels():
        expected = Graph.from_edge_index(edges, 40)
        assert torch.equal(expected.to_edge_index(original_order=True), edges)
    assert torch.equal(graph.csc.indices, expected.csc.indices)
    assert torch.equal(graph.edge_id, expected.edge_id)
