"""None"""

import zipfile

import numpy as np
import pytest
import torch
from tests.datasets.helpers import EDGES, csr, write

from graphbraid import datasets
from graphbraid.datasets import load_npz
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.graph import SparseFeatures


def test_a_dense_file_becomes_the_graph_it_describes(tmp_path):
    x, y = np.random.default_rng(0).random((4, 3), np.float32), np.array([0, 1, -1, 0])
    path = write(tmp_path / "g.npz", x=x, y=y, train_idx=np.array([1, 0]), test_idx=np.array([3]))
    graph = load_npz(path)
    graph.validate()
    assert graph.name == "g"
    assert graph.num_nodes == 4
    assert graph.to_edge_index(original_order=True).tolist() == EDGES.tolist()
    assert torch.equal(graph.x, torch.from_numpy(x))
    assert graph.y.tolist() == y.tolist()
    assert {name: ids.tolist() for name, ids in graph.splits.items()} == {"train": [1, 0], "test": [3]}


def test_sparse_features_multi_labels_masks_and_weights(tmp_path):
    y = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], np.float32)
    mask = np.array([True, False, True, False])
    graph = load_npz(write(tmp_path / "g.npz", **csr(), y=y, val_mask=mask, edge_weight=np.arange(4.0)))
    assert isinstance(graph.x, SparseFeatures)
    assert graph.x.to_dense().tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert graph.task == "multi-label"
    assert graph.splits["val"].tolist() == [0, 2]
    assert graph.in_original_order(graph.csc.weight).tolist() == [0, 1, 2, 3]


def test_one_of_several_splits_can_be_taken(tmp_path):
    masks = np.array([[True, False, False, False], [False, False, False, True]])
    path = write(tmp_path / "g.npz", train_masks=masks, train_idx=np.array([2]))
    assert load_npz(path).splits["train"].tolist() == [2]
    assert load_npz(path, split_index=1).splits["train"].tolist() == [3]
    with pytest.raises(ConfigError, match=r"split_index must be in \[0, 2\) .* got 2"):
        load_npz(path, split_index=2)


BROKEN = {
    "one row": ({"edge_index": EDGES[0]}, r"edge_index must have shape \(2, num_edges\)"),
    "incomplete csr": ({"x_data": np.ones(2, np.float32)}, "missing: x_indices, x_indptr, x_shape"),
    "csr rows": (csr(x_indptr=np.array([0, 2])), "x_indptr has 2 entries; 4 rows need 5"),
    "csr columns": (
        csr(x_indices=np.array([0, 3], np.int32)),
        r"x_indices\[1\] is 3; columns are in \[0, 3\)",
    ),
    "csr ends": (csr(x_indptr=np.array([0, 1, 1, 2, 9])), "do not fit together|indptr"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_name_themselves_and_the_fault(tmp_path, case):
    change, message = BROKEN[case]
    with pytest.raises(DataError, match=message) as caught:
        load_npz(write(tmp_path / "g.npz", **change))
    assert str(caught.value).count("g.npz") == 1


def test_a_folder_and_a_missing_file_are_said(tmp_path):
    with pytest.raises(ResourceError, match="cannot be read: Is a directory"):
        load_npz(tmp_path)
    with pytest.raises(DataError, match=r"there is no file .*nothing\.npz"):
        load_npz(tmp_path / "nothing.npz")


def test_nothing_pickled_is_ever_run(tmp_path):
    path = write(tmp_path / "g.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(
            "evil.npy",
            b"\x93NUMPY\x01\x00\x76\x00"
            + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117)
            + b"\n"
            + b"cos\nabort\n(tR.",
        )
    with pytest.raises(DataError, match="Python objects, which are never loaded"):
        load_npz(path)


REAL = {
    "cora": (2_708, 10_858, 1_433, "single-label", 7, (140, 500, 1_000)),
    "citeseer": (3_327, 9_464, 3_703, "single-label", 6, (120, 500, 1_000)),
    "amazon_computers": (13_752, 287_209, 767, "single-label", 10, None),
    "blogcatalog_multilabel": (10_312, 667_966, 0, "multi-label", 39, None),
    "tolokers": (11_758, 519_000, 10, "single-label", 2, (5_879, 2_939, 2_940)),
    "pubmed_nofeat": (19_717, 88_676, 0, "single-label", 3, (60, 500, 1_000)),
}


@pytest.mark.parametrize("name", REAL)
def test_real_graphs_have_their_published_counts(shared_graph, name):
    nodes, edges, features, task, classes, splits = REAL[name]
    graph = datasets.load(shared_graph(name))
    graph.validate()
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (nodes, edges, features)
    assert (graph.task, graph.num_classes) == (task, classes)
    assert (tuple(len(graph.splits[s]) for s in ("train", "val", "test")) if splits else None) == splits


@pytest.mark.parametrize(("name", "edges"), [("kg_fb15k237", 310_116), ("tmp_collegemsg", 59_835)])
def test_typed_and_timed_edges_can_be_looked_up_by_edge_id(shared_graph, name, edges):
    path = shared_graph(name)
    graph = datasets.load(path, with_types=False)
    assert graph.num_edges == edges
    stored = np.load(path)["edge_index"]
    np.testing.assert_array_equal(stored[:, graph.edge_id.numpy()], graph.to_edge_index().numpy())


@pytest.mark.parametrize(
    ("name", "edges"), [("cora", 5_278), ("citeseer", 4_552), ("amazon_computers", 245_861)]
)
def test_symmetrised_counts_are_those_of_the_literature(shared_graph, name, edges):
    graph = datasets.load(shared_graph(name), symmetrize=True)
    assert graph.without_self_loops().num_edges == 2 * edges


@pytest.mark.parametrize("index", [0, 9])
def test_tolokers_has_ten_splits(shared_graph, index):
    path = shared_graph("tolokers")
    graph = datasets.load(path, split_index=index)
    mask = np.load(path)["test_masks"][index]
    assert graph.split("test").tolist() == np.flatnonzero(mask).tolist()


ARRAYS = {
    "edge_index": np.array([[0, 1, 3, 0], [3, 4, 4, 1]]),
    "num_nodes": np.int64(5),
    "node_type": np.array([0, 0, 0, 1, 1], np.int8),
    "node_type_names": np.array(["paper", "author"]),
    "edge_type": np.array([0, 0, 2, 1], np.int8),
    "edge_type_names": np.array(["paper--author", "cites", "knows"]),
    "x_paper": np.eye(3, dtype=np.float32),
    "y": np.array([1, 0, -1, -1, -1]),
    "train_idx": np.array([0, 1]),
    "edge_time": np.arange(4),
}


def write_typed(path, **changes):
    arrays = {key: value for key, value in (ARRAYS | changes).items() if value is not None}
    np.savez(path, **arrays)
    return path


def test_types_relations_and_what_belongs_to_them(tmp_path):
    graph = load_npz(write_typed(tmp_path / "g.npz")).validate()
    assert graph.node_types == ("paper", "author")
    assert graph.edge_types == (
        ("paper", "to", "author"),
        ("paper", "cites", "paper"),
        ("author", "knows", "author"),
    )
    lists = {key: pairs.tolist() for key, pairs in graph.to_edge_indices().items()}
    assert list(lists.values()) == [[[0, 1], [0, 1]], [[0], [1]], [[0], [1]]]
    papers, authors = graph.nodes_of("paper"), graph.nodes_of("author")
    assert torch.equal(papers.x, torch.eye(3))
    assert (papers.y.tolist(), authors.y) == ([1, 0, -1], None)
    assert (papers.splits["train"].tolist(), authors.splits) == ([0, 1], {})
    assert graph.edges_of(("author", "knows", "author")).time.tolist() == [2]
    assert graph.name == "g"


def test_what_is_not_said_follows_from_the_edges(tmp_path):
    graph = load_npz(
        write_typed(tmp_path / "g.npz", node_type_names=None, edge_type_names=None, x_paper=None)
    )
    assert graph.edge_types == (("0", "r0", "1"), ("0", "r1", "0"), ("1", "r2", "1"))
    graph = load_npz(write_typed(tmp_path / "h.npz", edge_type=None, edge_type_names=None))
    assert {(src, dst) for src, _, dst in graph.edge_types} == {
        ("paper", "author"),
        ("paper", "paper"),
        ("author", "author"),
    }
    plain = load_npz(tmp_path / "g.npz", with_types=False)
    assert (plain.is_typed, plain.num_nodes, plain.num_edges) == (False, 5, 4)


BROKEN_TYPES = {
    "falling types": ({"node_type": np.array([0, 1, 0, 1, 1])}, r"node_type\[2\] is 0"),
    "another length": ({"node_type": np.array([0, 1])}, "node_type has 2 entries; num_nodes is 5"),
    "names": ({"node_type_names": np.array(["a", "a"])}, "node_type_names must be 2 different names"),
    "an id out of range": ({"edge_index": np.full((2, 4), 5)}, r"edge_index\[0, 0\] is 5"),
    "edge types": ({"edge_type": np.array([0])}, "edge_type must have a number from 0 for each of 4 edges"),
    "mixed ends": (
        {"edge_type": np.array([0, 0, 0, 1]), "edge_type_names": np.array(["paper--author", "cites"])},
        "relation paper--author joins paper to author; one of its edges joins author to author",
    ),
    "an empty relation": (
        {"edge_type_names": np.array(["paper--author", "cites", "knows", "likes"])},
        "relation likes has no edge that would say what types it joins",
    ),
    "times": ({"edge_time": np.arange(3)}, "edge_time must have a row for each of 4 edges"),
    "features": ({"x_paper": np.eye(2, dtype=np.float32)}, "type 'paper': x has 2 rows, but the graph has 3"),
    "a split": ({"train_idx": np.array([9])}, r"'train' must hold node ids in \[0, 5\); train\[0\] is 9"),
    "parts": ({"edge_split_ptr": np.array([0, 2, 1, 4])}, "edge_split_ptr must be four numbers that rise"),
}


@pytest.mark.parametrize("case", BROKEN_TYPES)
def test_broken_files_with_types_name_themselves_and_the_fault(tmp_path, case):
    change, message = BROKEN_TYPES[case]
    path = write_typed(tmp_path / "g.npz", **change)
    with pytest.raises(DataError, match=message) as caught:
        load_npz(path)
    assert "g.npz" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "types", "edges"),
    [
        ("het_acm", {"paper": 4019, "author": 7167, "subject": 60}, [13407, 4019]),
        ("het_dblp", {"author": 4057, "paper": 14328, "conference": 20, "term": 7723}, [19645, 14328, 85810]),
        ("het_movielens_small", {"user": 671, "movie": 9125}, [100_004]),
    ],
)
def test_published_counts_of_graphs_with_types(shared_graph, name, types, edges):
    graph = datasets.load(shared_graph(name)).validate()
    assert {one: graph.nodes_of(one).num_nodes for one in graph.node_types} == types
    assert [graph.edges_of(one).num_edges for one in graph.edge_types] == edges
    labelled = [one for one in graph.node_types if graph.nodes_of(one).y is not None]
    assert len(labelled) == (name != "het_movielens_small")
    if labelled:
        assert graph.nodes_of(labelled[0]).splits["val"].numel() == 1000


@pytest.mark.slow
def test_a_knowledge_graph_has_a_relation_for_each_type_of_edge(shared_graph):
    graph = load_npz(shared_graph("kg_fb15k237")).validate()
    assert (len(graph.edge_types), graph.node_types) == (237, ("node",))
    parts = [graph.edges_of(one).splits for one in graph.edge_types]
    counts = [sum(split[name].numel() for split in parts) for name in ("train", "val", "test")]
    assert counts == [272_115, 17_535, 20_466]
