"""Files with node types, edge types or both: what they become, and what is wrong with broken ones."""

import numpy as np
import pytest
import torch

from graphbraid import datasets
from graphbraid.datasets import load_npz
from graphbraid.errors import DataError

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


def write(path, **changes):
    arrays = {key: value for key, value in (ARRAYS | changes).items() if value is not None}
    np.savez(path, **arrays)
    return path


def test_types_relations_and_what_belongs_to_them(tmp_path):
    graph = load_npz(write(tmp_path / "g.npz")).validate()
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
    graph = load_npz(write(tmp_path / "g.npz", node_type_names=None, edge_type_names=None, x_paper=None))
    assert graph.edge_types == (("0", "r0", "1"), ("0", "r1", "0"), ("1", "r2", "1"))
    graph = load_npz(write(tmp_path / "h.npz", edge_type=None, edge_type_names=None))
    assert {(src, dst) for src, _, dst in graph.edge_types} == {
        ("paper", "author"),
        ("paper", "paper"),
        ("author", "author"),
    }
    plain = load_npz(tmp_path / "g.npz", with_types=False)
    assert (plain.is_typed, plain.num_nodes, plain.num_edges) == (False, 5, 4)


BROKEN = {
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
    "a split": (
        {"train_idx": np.array([9])},
        r"'train' must hold node ids in \[0, 5\); train\[0\] is 9",
    ),
    "parts": ({"edge_split_ptr": np.array([0, 2, 1, 4])}, "edge_split_ptr must be four numbers that rise"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_name_themselves_and_the_fault(tmp_path, case):
    change, message = BROKEN[case]
    path = write(tmp_path / "g.npz", **change)
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
