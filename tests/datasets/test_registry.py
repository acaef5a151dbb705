"""None"""

import gzip

import numpy as np
import pytest
import torch
from tests.datasets.helpers import assert_same_graph, small_graph
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.transforms import NormalizeFeatures

from graphbraid import datasets
from graphbraid.datasets import from_pyg_dataset, prepare
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph, SparseFeatures


@pytest.fixture
def root(tmp_path):
    np.savez(tmp_path / "cora.npz", edge_index=np.array([[0], [1]]))
    np.savez(tmp_path / "cite-seer.npz", edge_index=np.array([[0], [1]]))
    datasets.save_store(small_graph(), tmp_path / "kept")
    raw = tmp_path / "ogbn_arxiv" / "raw"
    raw.mkdir(parents=True)
    (raw / "edge.csv.gz").write_bytes(gzip.compress(b"0,1\n"))
    (raw / "num-node-list.csv.gz").write_bytes(gzip.compress(b"2\n"))
    (tmp_path / "notes.md").write_text("")
    (tmp_path / "edges.csv").write_text("")
    return tmp_path


@pytest.mark.parametrize("name", ["cora", "cora.npz", "cite-seer", "kept", "ogbn_arxiv", "ogbn-arxiv"])
def test_names_and_paths_find_every_kind(root, name, monkeypatch):
    graph = datasets.load(name, root=root)
    assert graph.num_nodes in (2, 5)
    monkeypatch.chdir(root)
    assert datasets.load(name).num_nodes == graph.num_nodes
    assert datasets.load(root / name).num_nodes == graph.num_nodes


def test_options_reach_the_source_and_the_preparation(root):
    assert_same_graph(datasets.load("kept", root=root, mmap=False, verify=True), small_graph())
    assert datasets.load("cora", root=root, symmetrize=True, add_self_loops=True).num_edges == 4


def test_embedded_names_win_and_ignore_the_root(root):
    assert datasets.load("braid-10k", root=root, seed=3).num_nodes == 1_000


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "corra",
            ["no dataset, file or folder 'corra'", "did you mean 'cora'?", "cora.npz, kept, ogbn_arxiv"],
        ),
        ("no/such/place.npz", ["does not exist"]),
    ],
)
def test_a_wrong_name_lists_what_there_is(root, name, parts):
    with pytest.raises(DataError) as caught:
        datasets.load(name, root=root)
    for part in parts:
        assert part in str(caught.value)


def test_a_root_that_is_no_folder_is_said(root):
    with pytest.raises(DataError, match="is not a folder"):
        datasets.load("cora", root=root / "cora.npz")


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("kept", "verfy", r"an on-disk store takes no option 'verfy'; did you mean 'verify'\?"),
        (
            "braid-10k",
            "split_index",
            "an embedded dataset takes no option 'split_index'; it takes seed, mmap, cache",
        ),
    ],
)
def test_options_of_another_source_are_refused(root, name, option, message):
    with pytest.raises(ConfigError, match=message):
        datasets.load(name, root=root, **{option: True})


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


class Made(InMemoryDataset):
    def __init__(self, *graphs, name="made"):
        super().__init__()
        self.name = name
        self.data, self.slices = self.collate(list(graphs))


def data():
    masks = torch.tensor([[True, False], [False, True], [False, False]])
    return Data(
        x=torch.arange(6.0).view(3, 2),
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        y=torch.tensor([0, 1, 0]),
        train_mask=masks,
        test_mask=~masks,
    )


def test_the_graph_of_a_dataset_comes_with_its_splits():
    graph = from_pyg_dataset(Made(data()), split_index=1)
    assert graph.name == "made"
    assert graph.to_edge_index(original_order=True).tolist() == [[0, 1], [1, 2]]
    assert graph.split("train").tolist() == [1]
    assert graph.split("test").tolist() == [0, 2]
    assert torch.equal(graph.x, data().x)


def test_datasets_of_several_graphs_are_refused():
    with pytest.raises(DataError, match=r"Made\(made\) holds 2 graphs"):
        from_pyg_dataset(Made(data(), data()))


def test_heterogeneous_and_foreign_datasets_are_refused():
    hetero = HeteroData()
    hetero["paper"].x = torch.zeros(2, 2)
    with pytest.raises(DataError, match=r"is heterogeneous \(node types: paper\)"):
        from_pyg_dataset([hetero])
    with pytest.raises(DataError, match=r"is no PyG dataset; for one Data object use Graph\.from_pyg"):
        from_pyg_dataset(7)
