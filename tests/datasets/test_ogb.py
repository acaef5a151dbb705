import gzip
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from graphbraid import datasets
from graphbraid.datasets import from_ogb, load_ogb
from graphbraid.errors import DataError

EDGES = np.array([[0, 1, 2, 4], [1, 2, 0, 3]])
X = np.array([[0.5, -1.25], [3, 4], [0, 0], [1e-3, 7], [2, 2]], np.float32)
Y = np.array([[0.0], [2], [np.nan], [1], [0]])
SPLIT = {"train": [0, 1], "valid": [3], "test": [4]}


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)

    path.write_bytes(gzip.compress(pd.DataFrame(rows).to_csv(header=False, index=False).encode()))


def write_split(folder, name="time"):
    for part, ids in SPLIT.items():
        write_csv(folder / "split" / name / f"{part}.csv.gz", [[i] for i in ids])


def text_folder(folder):
    """A folder laid out as ogb unpacks ogbn-arxiv."""
    raw = folder / "raw"
    write_csv(raw / "edge.csv.gz", EDGES.T)
    write_csv(raw / "num-node-list.csv.gz", [[5]])
    write_csv(raw / "num-edge-list.csv.gz", [[4]])
    write_csv(raw / "node-feat.csv.gz", X)
    write_csv(raw / "node-label.csv.gz", Y)
    write_split(folder)
    return folder


def binary_folder(folder):
    """A folder laid out as ogb unpacks ogbn-papers100M."""
    (folder / "raw").mkdir(parents=True)
    np.savez_compressed(
        folder / "raw" / "data.npz",
        edge_index=EDGES,
        num_nodes_list=np.array([5]),
        num_edges_list=np.array([4]),
        node_feat=X,
        node_year=np.zeros((5, 1)),
    )
    np.savez_compressed(folder / "raw" / "node-label.npz", node_label=Y)
    write_split(folder)
    return folder


def check(graph):
    graph.validate()
    assert graph.num_nodes == 5
    assert graph.to_edge_index(original_order=True).tolist() == EDGES.tolist()
    np.testing.assert_array_equal(graph.x, X)
    assert graph.y.tolist() == [0, 2, -1, 1, 0]
    assert {name: ids.tolist() for name, ids in graph.splits.items()} == {
        "train": [0, 1],
        "val": [3],
        "test": [4],
    }


@pytest.mark.parametrize("make", [text_folder, binary_folder])
def test_every_form_of_folder_gives_the_same_graph(tmp_path, make):
    graph = load_ogb(make(tmp_path / "ogbn_test"))
    check(graph)
    assert graph.name == "ogbn_test"
    check(datasets.load("ogbn-test", root=tmp_path))


def test_text_is_read_without_pyarrow_too(tmp_path, monkeypatch):
    for module in ("pyarrow", "pyarrow.csv"):
        monkeypatch.setitem(sys.modules, module, None)
    check(load_ogb(text_folder(tmp_path / "g")))


@pytest.mark.parametrize(("name", "edges"), [("ogbn_products", 8), ("ogbn_arxiv", 4), ("other", 4)])
def test_published_datasets_that_store_an_edge_once_get_its_reverse(tmp_path, name, edges):
    folder = text_folder(tmp_path / name)
    assert load_ogb(folder).num_edges == edges
    both = load_ogb(folder, add_inverse_edge=True).to_edge_index(original_order=True)
    assert both[:, :4].tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]  # ogb puts the reverse right after an edge
    assert load_ogb(folder, add_inverse_edge=False).num_edges == 4


def test_several_tasks_become_a_label_matrix(tmp_path):
    folder = text_folder(tmp_path / "g")
    write_csv(folder / "raw" / "node-label.csv.gz", np.eye(5)[:, :3])
    graph = load_ogb(folder)
    assert graph.task == "multi-label"
    assert graph.num_classes == 3


def test_classes_keep_their_number_where_float32_has_none(tmp_path):
    folder = text_folder(tmp_path / "g")
    write_csv(folder / "raw" / "node-label.csv.gz", [[0], [2**24 + 1], [np.nan], [1], [0]])
    assert load_ogb(folder).y.tolist() == [0, 2**24 + 1, -1, 1, 0]


def test_features_labels_and_splits_may_be_absent(tmp_path):
    folder = text_folder(tmp_path / "g")
    (folder / "raw" / "node-feat.csv.gz").unlink()
    (folder / "raw" / "node-label.csv.gz").unlink()
    for file in (folder / "split" / "time").iterdir():
        file.unlink()
    (folder / "split" / "time").rmdir()
    graph = load_ogb(folder)
    assert graph.x is None
    assert graph.y is None
    assert graph.splits == {}


def test_one_of_several_splits_is_chosen_by_name(tmp_path):
    folder = text_folder(tmp_path / "g")
    write_split(folder, "species")
    with pytest.raises(DataError, match=r"several splits \(species, time\); choose one with split_name"):
        load_ogb(folder)
    check(load_ogb(folder, split_name="time"))
    with pytest.raises(DataError, match="no split 'sales'; there is: species, time"):
        load_ogb(folder, split_name="sales")


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


BROKEN = {
    "no nodes": (
        lambda f: (f / "raw" / "num-node-list.csv.gz").unlink(),
        r"num-node-list\.csv\.gz is missing",
    ),
    "two graphs": (lambda f: write_csv(f / "raw" / "num-node-list.csv.gz", [[5], [6]]), "holds 2 graphs"),
    "three ends": (
        lambda f: write_csv(f / "raw" / "edge.csv.gz", [[0, 1, 2]]),
        "has 3 columns; an edge list has 2",
    ),
    "words": (
        lambda f: (f / "raw" / "edge.csv.gz").write_bytes(gzip.compress(b"0,1\na,b\n")),
        r"edge\.csv\.gz is truncated or not a gzipped CSV file of numbers",
    ),
    "hole": (
        lambda f: (f / "raw" / "edge.csv.gz").write_bytes(gzip.compress(b"0,1\n,2\n")),
        r"edge\.csv\.gz",
    ),
    "not gzip": (
        lambda f: (f / "raw" / "edge.csv.gz").write_text("0,1\n"),
        r"edge\.csv\.gz is truncated or not",
    ),
    "cut": (lambda f: cut(f / "raw" / "node-feat.csv.gz"), r"node-feat\.csv\.gz is truncated or not"),
    "out of range": (lambda f: write_csv(f / "raw" / "edge.csv.gz", [[0, 9]] * 4), "9"),
    "rows": (lambda f: write_csv(f / "raw" / "node-feat.csv.gz", X[:3]), "3 rows"),
    "edges": (
        lambda f: write_csv(f / "raw" / "edge.csv.gz", EDGES.T[:3]),
        r"raw/edge\.csv\.gz has 3 edges; the dataset says it has 4",
    ),
    "no label": (
        lambda f: write_csv(f / "raw" / "node-label.csv.gz", [[0], [1], [np.inf], [2], [0]]),
        r"node-label\.csv\.gz must hold labels within 2\.14748e\+09; it holds inf",
    ),
    "split of pairs": (
        lambda f: write_csv(f / "split" / "time" / "train.csv.gz", [[0, 1], [2, 3]]),
        r"train\.csv\.gz must be one column of node ids",
    ),
    "split": (
        lambda f: (f / "split" / "time" / "valid.csv.gz").unlink(),
        r"not complete: valid\.csv\.gz is missing",
    ),
    "split ids": (lambda f: write_csv(f / "split" / "time" / "test.csv.gz", [[7]]), "split 'test'.*holds 7"),
    "hetero": (lambda f: write_csv(f / "raw" / "triplet-type-list.csv.gz", []), "num-node-dict"),
    "a folder": (
        lambda f: [(f / "raw" / "node-feat.csv.gz").unlink(), (f / "raw" / "node-feat.csv.gz").mkdir()],
        r"node-feat\.csv\.gz is missing",
    ),
    "no labels": (lambda f: (f / "raw" / "node-label.csv.gz").unlink(), "it has splits, and no labels"),
    "no edges": (lambda f: (f / "raw" / "edge.csv.gz").unlink(), "is no OGB node dataset"),
}


@pytest.mark.parametrize("reader", ["pyarrow", "numpy"])
@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_name_the_file(tmp_path, monkeypatch, case, reader):
    if reader == "numpy":
        for module in ("pyarrow", "pyarrow.csv"):
            monkeypatch.setitem(sys.modules, module, None)
    folder = text_folder(tmp_path / "g")
    damage, message = BROKEN[case]
    damage(folder)
    with pytest.raises(DataError, match=message):
        load_ogb(folder)


def test_broken_binary_files_are_said(tmp_path):
    folder = binary_folder(tmp_path / "b")
    parts = {"edge_index": EDGES, "num_nodes_list": np.array([5]), "num_edges_list": np.array([4])}
    for wrong, (value, said) in {
        "num_nodes_list": (np.array([5.5]), r"data\.npz: its num_nodes_list must be a whole number"),
        "num_edges_list": (
            np.array([3]),
            r"data\.npz: its edge_index has 4 edges; the dataset says it has 3",
        ),
        "edge_index": (EDGES.T, r"data\.npz: its edge_index has 4 columns"),
        "node_feat": (X[:3], r"data\.npz: its node_feat has 3 rows; the dataset has 5 nodes"),
    }.items():
        np.savez(folder / "raw" / "data.npz", **parts | {wrong: value})
        with pytest.raises(DataError, match=said):
            load_ogb(folder)
    np.savez(folder / "raw" / "node-label.npz", other=Y)
    with pytest.raises(DataError, match="has no node_label; its keys are other"):
        load_ogb(folder)
    np.savez(folder / "raw" / "data.npz", edge_index=EDGES)
    with pytest.raises(DataError, match="has no num_nodes_list"):
        load_ogb(folder)
    with pytest.raises(DataError, match="there is no folder"):
        load_ogb(tmp_path / "nothing")


class OgbLike:
    """The interface of ogb.nodeproppred.NodePropPredDataset."""

    name = "ogbn-like"

    def __getitem__(self, at):
        assert at == 0
        return {"edge_index": EDGES, "edge_feat": None, "node_feat": X, "num_nodes": 5}, Y

    def get_idx_split(self):
        return {name: np.array(ids) for name, ids in SPLIT.items()}


class PygOgbLike(OgbLike):
    """The interface of ogb.nodeproppred.PygNodePropPredDataset."""

    def __getitem__(self, at):
        y = torch.from_numpy(np.nan_to_num(Y, nan=-1)).long()
        return Data(edge_index=torch.from_numpy(EDGES), x=torch.from_numpy(X), y=y)

    def get_idx_split(self):
        return {name: torch.tensor(ids) for name, ids in SPLIT.items()}


@pytest.mark.parametrize("kind", [OgbLike, PygOgbLike])
def test_dataset_objects_of_ogb_are_taken(kind):
    graph = from_ogb(kind())
    check(graph)
    assert graph.name == "ogbn-like"


def test_other_objects_and_heterogeneous_ones_are_refused():
    class Hetero(OgbLike):
        def __getitem__(self, at):
            return {"edge_index_dict": {}, "edge_index": {("a", "b", "c"): EDGES}, "num_nodes": 5}, Y

    with pytest.raises(DataError, match="is heterogeneous"):
        from_ogb(Hetero())
    with pytest.raises(DataError, match="list is no OGB node dataset"):
        from_ogb([])
