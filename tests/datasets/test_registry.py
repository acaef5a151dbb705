import gzip

import numpy as np
import pytest
from tests.datasets.helpers import assert_same_graph, small_graph

from graphbraid import datasets
from graphbraid.errors import ConfigError, DataError


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
