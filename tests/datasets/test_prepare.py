import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures

from graphbraid.datasets import prepare
from graphbraid.errors import DataError
from graphbraid.graph import Graph, SparseFeatures

EDGES = torch.tensor([[0, 0, 1, 2], [1, 1, 2, 2]])


def test_nothing_is_changed_unasked():
    graph = Graph.from_edge_index(EDGES)
    assert prepare(graph) is graph


def test_edges_are_changed_as_asked():
    graph = Graph.from_edge_index(EDGES)

    def edges(**options):
        return sorted(map(tuple, prepare(graph, **options).to_edge_index().T.tolist()))

    assert edges(dedupe=True) == [(0, 1), (1, 2), (2, 2)]
    assert edges(symmetrize=True) == [(0, 1), (1, 0), (1, 2), (2, 1), (2, 2)]
    assert edges(symmetrize=True, add_self_loops=True) == [
        *((0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1)),
        (2, 2),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_sum_to_one_like_pygs_and_zero_rows_stay(dtype, sparse):
    x = torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0], [5.0, 0.0, 5.0]]).to(dtype)
    graph = Graph.from_edge_index(EDGES, x=SparseFeatures.from_dense(x) if sparse else x)
    found = prepare(graph, normalize_features=True).x
    expected = NormalizeFeatures()(Data(x=x.float())).x.to(dtype)
    assert torch.equal(found.to_dense() if sparse else found, expected)
    assert found.dtype == dtype
    assert torch.equal(graph.dense_x(), x)


def test_normalising_needs_features():
    with pytest.raises(DataError, match="needs features"):
        prepare(Graph.from_edge_index(EDGES), normalize_features=True)
