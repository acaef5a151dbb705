"""OGB folders with node types and relations, in the layout of ogbn-mag."""

import shutil

import numpy as np
import pytest
from tests.datasets.test_ogb import write_csv

from graphbraid import datasets
from graphbraid.datasets import load_ogb
from graphbraid.errors import ConfigError, DataError

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
EDGES = {WRITES: [[0, 1, 1], [0, 2, 3]], CITES: [[0, 3, 1, 2], [1, 1, 0, 2]]}
X = np.array([[0.5, 1], [2, 3], [4, 5], [6, 7]], np.float32)


def mag_folder(folder):
    raw = folder / "raw"
    write_csv(raw / "num-node-dict.csv.gz", [["author", "paper"], [2, 4]])
    write_csv(raw / "triplet-type-list.csv.gz", [list(one) for one in EDGES])
    for one, edges in EDGES.items():
        write_csv(raw / "relations" / "___".join(one) / "edge.csv.gz", np.array(edges).T)
        write_csv(raw / "relations" / "___".join(one) / "num-edge-list.csv.gz", [[len(edges[0])]])
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", X)
    write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", [[2010], [2011], [2012], [2013]])
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", [[3], [0], [1], [0]])
    for part, ids in {"train": [0, 1], "valid": [2], "test": [3]}.items():
        write_csv(folder / "split" / "time" / "paper" / f"{part}.csv.gz", [[i] for i in ids])
    return folder


@pytest.fixture
def folder(tmp_path):
    return mag_folder(tmp_path / "ogbn_mag")


def test_a_folder_of_mag_becomes_a_graph_with_types(folder):
    graph = datasets.load("ogbn-mag", root=folder.parent)
    graph.validate()
    assert graph.name == "ogbn_mag"
    assert graph.node_types == ("author", "paper")
    assert {one: pairs.tolist() for one, pairs in graph.to_edge_indices().items()} == EDGES
    papers = graph.nodes_of("paper")
    np.testing.assert_array_equal(papers.x, X)
    assert papers.y.tolist() == [3, 0, 1, 0]
    assert papers.time.tolist() == [2010, 2011, 2012, 2013]
    assert {name: ids.tolist() for name, ids in papers.splits.items()} == {
        "train": [0, 1],
        "val": [2],
        "test": [3],
    }
    assert graph.nodes_of("author").x is None
    assert graph.nodes_of("author").splits == {}


def test_features_labels_years_and_splits_may_be_absent(folder):
    for name in ("raw/node-feat", "raw/node-label", "split"):
        shutil.rmtree(folder / name)
    graph = load_ogb(folder)
    papers = graph.nodes_of("paper")
    assert (papers.x, papers.y, papers.time, papers.splits) == (None, None, None, {})


def test_inverse_edges_are_refused_for_relations(folder):
    with pytest.raises(ConfigError, match="with_reverse_relations"):
        load_ogb(folder, add_inverse_edge=True)


BROKEN = {
    "no counts": (lambda p: (p / "raw/num-node-dict.csv.gz").unlink(), "num-node-dict.csv.gz is missing"),
    "no edges": (
        lambda p: (p / "raw/relations/author___writes___paper/edge.csv.gz").unlink(),
        r"author___writes___paper/edge\.csv\.gz is missing",
    ),
    "an unknown type": (
        lambda p: write_csv(p / "raw/triplet-type-list.csv.gz", [["author", "writes", "book"]]),
        r"triplet-type-list\.csv\.gz, line 1: num-node-dict\.csv\.gz has no node type 'book'",
    ),
    "half a relation": (
        lambda p: write_csv(p / "raw/triplet-type-list.csv.gz", [["author", "writes"]]),
        "line 1: source type, name and destination type are needed",
    ),
    "a relation twice": (
        lambda p: write_csv(p / "raw/triplet-type-list.csv.gz", [CITES, CITES]),
        "line 2: the relation .* stands there twice",
    ),
    "no number": (
        lambda p: write_csv(p / "raw/num-node-dict.csv.gz", [["author", "paper"], ["many", 4]]),
        "number of nodes of type 'author' is 'many'",
    ),
    "one row": (lambda p: write_csv(p / "raw/num-node-dict.csv.gz", [["author", "paper"]]), "it has 1 rows"),
    "an id outside": (
        lambda p: write_csv(
            p / "raw/relations/paper___cites___paper/edge.csv.gz", [[0, 1], [1, 4], [0, 0], [0, 0]]
        ),
        r"paper___cites___paper/edge\.csv\.gz, line 2: there are 4 nodes of type 'paper'; got the id 4",
    ),
    "another number of edges": (
        lambda p: write_csv(p / "raw/relations/paper___cites___paper/num-edge-list.csv.gz", [[5]]),
        r"edge\.csv\.gz has 4 edges; num-edge-list\.csv\.gz says \[5\]",
    ),
    "three columns": (
        lambda p: write_csv(p / "raw/relations/paper___cites___paper/edge.csv.gz", [[0, 1, 2]]),
        "has 3 columns",
    ),
    "other features": (
        lambda p: write_csv(p / "raw/node-feat/paper/node-feat.csv.gz", X[:3]),
        r"paper/node-feat\.csv\.gz has 3 rows; the dataset has 4 nodes",
    ),
    "other years": (
        lambda p: write_csv(p / "raw/node-feat/paper/node_year.csv.gz", [[1]]),
        r"node_year\.csv\.gz has 1 rows; its type has 4 nodes",
    ),
    "a split without labels": (
        lambda p: shutil.rmtree(p / "raw/node-label"),
        "splits nodes of type 'paper', which have no labels",
    ),
    "half a split": (lambda p: (p / "split/time/paper/test.csv.gz").unlink(), r"test\.csv\.gz is missing"),
    "a node outside the split": (lambda p: write_csv(p / "split/time/paper/test.csv.gz", [[9]]), "paper.*9"),
    "cut off": (
        lambda p: (p / "raw/triplet-type-list.csv.gz").write_bytes(
            (p / "raw/triplet-type-list.csv.gz").read_bytes()[:-9]
        ),
        r"triplet-type-list\.csv\.gz is truncated",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_say_which_file_is_wrong(folder, case):
    damage, message = BROKEN[case]
    damage(folder)
    with pytest.raises(DataError, match=message):
        load_ogb(folder)
