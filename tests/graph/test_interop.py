"""Conversions from and to SciPy, PyG and DGL give back what went in."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import PATIENCE, ran
from tests.graph import dgl_checks, fake_dgl
from tests.graph.cases import edge_lists, graphs, pairs_of
from tests.graph.edge_cases import random_edges
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

from graphbraid.errors import DataError
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.interop.pyg import entries_of


def random_data(num_nodes: int = 20, num_edges: int = 90) -> Data:
    """A PyG Data with everything a Graph takes over."""
    split = torch.randint(4, (num_nodes,))
    return Data(
        x=torch.rand(num_nodes, 5),
        edge_index=random_edges(num_nodes, num_edges),
        edge_weight=torch.rand(num_edges),
        y=torch.randint(3, (num_nodes,)),
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
        num_nodes=num_nodes,
    )


def test_pyg_data_comes_back_equal():
    data = random_data()
    graph = Graph.from_pyg(data, name="g").validate()
    back = graph.to_pyg()
    assert sorted(back.keys()) == sorted(data.keys())
    for key, value in data.to_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(back[key], value), key
            assert back[key].dtype == value.dtype
    assert back.num_nodes == data.num_nodes
    assert (graph.x is data.x, graph.y is data.y, graph.name) == (True, True, "g")


@given(edge_lists())
def test_pyg_edges_survive_the_round_trip(case):
    num_nodes, edges = case
    back = Graph.from_pyg(Data(edge_index=edges, num_nodes=num_nodes)).to_pyg()
    assert torch.equal(back.edge_index, edges)
    assert back.num_nodes == num_nodes


def test_pyg_weights_are_found():
    data = random_data()
    assert torch.equal(Graph.from_pyg(data).to_pyg().edge_weight, data.edge_weight)
    assert Graph.from_pyg(data, edge_weight=None).csc.weight is None
    data.distance = torch.rand(90, 1)
    assert torch.equal(Graph.from_pyg(data, edge_weight="distance").to_pyg().edge_weight, data.distance[:, 0])
    data.edge_attr, data.edge_weight = data.edge_weight, None
    assert torch.equal(Graph.from_pyg(data).to_pyg().edge_attr, data.edge_attr)
    data.edge_attr = torch.rand(90, 4)  # features of edges, not weights
    assert Graph.from_pyg(data).csc.weight is None


def test_pyg_labels_come_in_many_shapes():
    data = random_data()
    data.y = torch.randint(3, (20, 1))  # OGB's shape
    assert torch.equal(Graph.from_pyg(data).y, data.y[:, 0])
    data.y = torch.randint(2, (20, 7))
    assert Graph.from_pyg(data).task == "multi-label"
    data.y = torch.rand(20, dtype=torch.float64)
    assert Graph.from_pyg(data).task == "regression"


def test_one_of_several_pyg_splits_is_taken():
    data = random_data()
    data.train_mask = torch.rand(20, 10) < 0.5
    graph = Graph.from_pyg(data, split=7)
    assert torch.equal(graph.split("train"), data.train_mask[:, 7].nonzero().flatten())
    with pytest.raises(DataError, match="train_mask holds 10 splits; split=10 is none of them"):
        Graph.from_pyg(data, split=10)


def test_sparse_pyg_features_stay_sparse():
    data = random_data()
    dense = data.x * (data.x > 0.7)
    data.x = dense.to_sparse()
    graph = Graph.from_pyg(data)
    assert isinstance(graph.x, SparseFeatures)
    back = graph.to_pyg().x
    assert back.layout == torch.sparse_csr
    assert torch.equal(back.to_dense(), dense)
    assert torch.equal(Graph.from_edge_index(data.edge_index, 20, x=back).dense_x(), dense)


@pytest.mark.parametrize("values", [False, True])
def test_a_pyg_transposed_adjacency_is_taken(values):
    edges = random_edges(20, 90).unique(dim=1)
    weight = torch.rand(edges.shape[1]) + 2 if values else torch.ones(edges.shape[1])
    adj_t = torch.sparse_coo_tensor(edges.flip(0), weight, (20, 20), check_invariants=True).coalesce()
    graph = Graph.from_pyg(Data(adj_t=adj_t, num_nodes=20))
    expected = Graph.from_edge_index(edges, 20, edge_weight=weight if values else None)
    assert pairs_of(graph) == pairs_of(expected)
    assert (graph.csc.weight is None) == (not values)
    if values:
        assert torch.equal(graph.csc.weight, expected.csc.weight)


def as_adjacency(edges, weight, layout):
    """The transposed matrix of an edge list as PyG stores it, repeated edges as entries of their own."""
    dst, src = edges[1], edges[0]
    order = np.lexsort((src, dst)) if layout != "csc" else np.lexsort((dst, src))
    dst, src, weight = dst[order], src[order], weight[order]
    ends = torch.zeros(21, dtype=torch.int64)
    ends[1:] = torch.bincount(src if layout == "csc" else dst, minlength=20).cumsum(0)
    if layout == "csr":
        return torch.sparse_csr_tensor(ends, src, weight, (20, 20), check_invariants=False)
    if layout == "csc":
        return torch.sparse_csc_tensor(ends, dst, weight, (20, 20), check_invariants=False)
    return torch.sparse_coo_tensor(torch.stack((dst, src)), weight, (20, 20), check_invariants=True)


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta state")
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_sparse_adjacency_is_read_as_it_is_stored(layout, dtype):
    edges = torch.cat((random_edges(20, 90), torch.tensor([[3, 3, 3], [4, 4, 4]])), dim=1)
    weight = torch.arange(1, 94).to(dtype)
    graph = Graph.from_pyg(Data(adj_t=as_adjacency(edges, weight, layout), num_nodes=20))
    seen = zip(*graph.to_edge_index().tolist(), graph.csc.weight.tolist(), strict=True)
    assert sorted(seen) == sorted(zip(*edges.tolist(), weight.tolist(), strict=True))


def test_an_adjacency_of_blocks_is_refused():
    with pytest.raises(DataError, match=r"adj_t must be .* CSR, CSC or COO; got torch.sparse_bsr"):
        entries_of(torch.ones(4, 4).to_sparse_bsr((2, 2)), "adj_t")


@pytest.mark.parametrize("sort_order", [None, "row", "col"])
@pytest.mark.parametrize("is_undirected", [False, True])
def test_pygs_edge_index_class_is_read_as_its_values(sort_order, is_undirected):
    edges = random_edges(20, 90)
    if is_undirected:
        edges = torch.cat((edges, edges.flip(0)), dim=1)
    if sort_order is not None:
        edges = edges[:, edges[0 if sort_order == "row" else 1].argsort(stable=True)]
    typed = EdgeIndex(edges, sparse_size=(20, 20), sort_order=sort_order, is_undirected=is_undirected)
    if sort_order is not None:
        typed.fill_cache_()
    graph = Graph.from_pyg(Data(edge_index=typed, x=torch.rand(20, 3)))
    assert torch.equal(graph.to_edge_index(original_order=True), edges)
    assert type(graph.csc.indices) is torch.Tensor
    assert torch.equal(Graph.from_edge_index(typed, 20).to_edge_index(original_order=True), edges)


def test_other_tensor_classes_are_read_as_their_values():
    class Tagged(torch.Tensor):
        pass

    edges = random_edges(20, 90)
    graph = Graph.from_edge_index(edges.as_subclass(Tagged), 20, x=torch.rand(20, 2).as_subclass(Tagged))
    assert torch.equal(graph.to_edge_index(original_order=True), edges)
    assert type(graph.x) is type(graph.csc.indices) is torch.Tensor


class OldSparseTensor:
    """What torch_sparse.SparseTensor offers of itself; the package has no wheel for our torch."""

    def __init__(self, row, col, value):
        self._coo = row, col, value

    def coo(self):
        return self._coo


def test_a_torch_sparse_adjacency_is_taken():
    edges = random_edges(20, 90)
    adj_t = OldSparseTensor(edges[1], edges[0], None)
    data = Data(num_nodes=20)
    data.adj_t = adj_t
    assert pairs_of(Graph.from_pyg(data)) == sorted(map(tuple, edges.t().tolist()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": None}, "data holds no edges: neither edge_index nor adj_t is set"),
        ({"y": torch.zeros(1, dtype=torch.int64)}, "y has 1 rows, but the graph has 20 nodes"),
        ({"train_mask": torch.ones(3, dtype=torch.bool)}, "train_mask must mark 20 nodes; got shape (3,)"),
        ({"edge_index": torch.full((2, 90), 20)}, "sources must be node ids in [0, 20)"),
        ({"edge_weight": torch.rand(4)}, "edge_weight must have shape (90,); got (4,)"),
    ],
)
def test_pyg_data_that_does_not_fit_is_named(change, message):
    data = random_data()
    for key, value in change.items():
        data[key] = value
    with pytest.raises(DataError) as error:
        Graph.from_pyg(data)
    assert message in str(error.value)


def test_pyg_data_of_another_kind_is_named():
    hetero = HeteroData()
    hetero["a", "to", "b"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    hetero["a"].num_nodes, hetero["b"].num_nodes = 1, 0
    with pytest.raises(
        DataError, match=r"'to', 'b'\): destinations, of type 'b', must be node ids in \[0, 0\)"
    ):
        Graph.from_pyg(hetero)
    with pytest.raises(DataError, match="no attribute 'length' to take weights from"):
        Graph.from_pyg(random_data(), edge_weight="length")


@given(graphs(), st.sampled_from(["csc", "csr", "coo", "lil"]))
def test_scipy_entries_survive_the_round_trip(graph, form):
    graph = graph.without_duplicates()  # SciPy's other formats add duplicates up
    matrix = graph.to_scipy()
    assert matrix.shape == (graph.num_nodes, graph.num_nodes)
    for (u, v), w in zip(
        graph.to_edge_index().t().tolist(),
        (torch.ones(graph.num_edges) if graph.csc.weight is None else graph.csc.weight).tolist(),
        strict=True,
    ):
        assert matrix[u, v] == w
    back = Graph.from_scipy(matrix.asformat(form), weighted=graph.csc.weight is not None).validate()
    assert torch.equal(back.csc.indptr, graph.csc.indptr)
    assert torch.equal(back.csc.indices, graph.csc.indices)
    if graph.csc.weight is not None:
        assert torch.equal(back.csc.weight, graph.csc.weight)


def test_scipy_csc_is_shared_and_other_formats_keep_their_order():
    matrix = sp.random(50, 50, density=0.1, random_state=1, format="csc", dtype=np.float32)
    graph = Graph.from_scipy(matrix, x=sp.eye(50, format="csr"), y=np.zeros(50, int), splits={"train": [3]})
    assert graph.csc.indices.numpy().ctypes.data == matrix.indices.ctypes.data
    assert graph.csc.weight.numpy().ctypes.data == matrix.data.ctypes.data
    assert (graph.edge_id, graph.num_features, graph.num_classes) == (None, 50, 1)
    csr = matrix.tocsr()
    from_csr = Graph.from_scipy(csr)
    assert np.array_equal(from_csr.csc.weight.numpy(), csr.data[from_csr.edge_id])


def test_scipy_weights_are_taken_when_they_say_something():
    ones = sp.csc_matrix(np.eye(3))
    assert Graph.from_scipy(ones).csc.weight is None
    assert Graph.from_scipy(ones, weighted=True).csc.weight.tolist() == [1, 1, 1]
    assert Graph.from_scipy(2 * ones).csc.weight.tolist() == [2, 2, 2]
    assert Graph.from_scipy(2 * ones, weighted=False).csc.weight is None
    assert Graph.from_scipy(ones.astype(bool)).csc.weight is None


def test_unsorted_scipy_columns_are_sorted():
    matrix = sp.csc_matrix(
        (np.array([1.0, 2.0, 3.0]), np.array([2, 0, 1]), np.array([0, 2, 3, 3])), shape=(3, 3)
    )
    graph = Graph.from_scipy(matrix)
    assert graph.csc.indices.tolist() == [0, 2, 1]
    assert graph.csc.weight.tolist() == [2, 1, 3]
    assert graph.edge_id.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (sp.csc_matrix((3, 4)), "must be square; got shape (3, 4)"),
        (sp.csc_matrix(np.eye(2) * 1j), "must hold real numbers; got complex128"),
        (sp.csr_matrix(np.eye(2) * 1j), "must hold real numbers; got complex128"),
    ],
)
def test_scipy_matrices_that_do_not_fit_are_named(matrix, message):
    with pytest.raises(DataError) as error:
        Graph.from_scipy(matrix)
    assert message in str(error.value)


class OwnGraph(Graph):
    """A graph of a user's own class."""

    __slots__ = ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: OwnGraph.from_edge_index([[0, 1], [1, 0]]),
        lambda: OwnGraph.from_scipy(sp.csr_matrix(np.eye(2))),
        lambda: OwnGraph.from_scipy(sp.csc_matrix(np.eye(2))),
        lambda: OwnGraph.from_relations({("a", "to", "b"): [[0], [0]]}).with_reverse_relations(),
        lambda: OwnGraph.from_edge_index([[0, 1], [1, 0]]).symmetrized(),
    ],
)
def test_conversions_make_graphs_of_the_class_that_they_are_called_on(make):
    assert type(make()) is OwnGraph


@pytest.mark.parametrize("dtype", [np.uint64, np.ulonglong])  # two types of one name
def test_ids_of_64_bits_without_a_sign_are_read_or_refused(dtype):
    found = Graph.from_edge_index(np.array([[1, 2], [0, 1]], dtype=dtype), 3)
    assert found.csc.indices.tolist() == [1, 2]
    for ids in (np.array([[1 << 63], [0]], dtype=dtype), [[(1 << 64) - 1], [0]]):
        with pytest.raises(DataError, match=r"must be below 2\*\*63; number 0 is "):
            Graph.from_edge_index(ids, 3)


# ---- DGL


ROOT = Path(__file__).parents[2]


@pytest.fixture
def dgl(monkeypatch):
    """The stand-in, in DGL's place."""
    monkeypatch.setitem(sys.modules, "dgl", fake_dgl)
    return fake_dgl


@pytest.mark.parametrize("check", dgl_checks.OF_BOTH, ids=lambda check: check.__name__)
def test_conversion(check, dgl):
    check(dgl)


@given(graphs())
def test_any_graph_goes_over_and_comes_back(graph):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "dgl", fake_dgl)
        patch.setattr(dgl_checks, "_graphs", lambda: [graph])
        dgl_checks.goes_over_and_comes_back(fake_dgl)


@pytest.mark.slow
def test_the_package_itself():
    python = os.environ.get("GRAPHBRAID_DGL_PYTHON")
    if not python:
        pytest.skip("needs DGL, which needs an older torch: name its Python in GRAPHBRAID_DGL_PYTHON")
    done = ran(
        [python, "-m", "tests.graph.real_dgl"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all agree" in done.stdout, done.stdout
