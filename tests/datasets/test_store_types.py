"""Graphs of several types in the on-disk store."""

import json

import numpy as np
import pytest
import torch
from tests.datasets.helpers import small_graph
from tests.datasets.test_store import edit_manifest, flip, truncate
from tests.graph.typed_cases import CITES, PAPERS, WRITES, bibliography

from graphbraid.datasets import NodeIds, StoreNames, load, open_names, open_store, save_store
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph, SparseFeatures


def tensors(graph):
    """All arrays of a graph with types by name; sparse features as their parts."""
    csc, types = graph.csc, graph.types
    found = {"indptr": csc.indptr, "indices": csc.indices, "weight": csc.weight, "edge_id": graph.edge_id}
    found["rows"] = types.rows.indptr
    for name, nodes in types.nodes.items():
        x = nodes.x
        parts = (
            {"": x} if not isinstance(x, SparseFeatures) else {"p": x.indptr, "i": x.indices, "v": x.values}
        )
        found |= {(name, "x" + key): value for key, value in parts.items()}
        found |= {(name, "y"): nodes.y, (name, "time"): nodes.time}
        found |= {(name, split): ids for split, ids in nodes.splits.items()}
    for one, edges in types.edges.items():
        found |= {(one, "attr"): edges.edge_attr, (one, "time"): edges.time}
        found |= {(one, split): ids for split, ids in edges.splits.items()}
    return found


def assert_same(a, b):
    """Equal to the bit: names and order of types, dtypes included."""
    assert (a.node_types, a.edge_types, a.name) == (b.node_types, b.edge_types, b.name)
    for one in a.node_types:
        assert a.nodes_of(one).num_nodes == b.nodes_of(one).num_nodes
    for one in a.edge_types:
        assert a.edges_of(one).num_edges == b.edges_of(one).num_edges
        assert a.edges_of(one).weighted == b.edges_of(one).weighted
    first, second = tensors(a), tensors(b)
    assert list(first) == list(second)
    for name, values in first.items():
        assert (values is None) == (second[name] is None), name
        if values is not None:
            assert values.dtype == second[name].dtype, name
            assert torch.equal(values, second[name]), name


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_graph_with_types_comes_back_to_the_bit(tmp_path, mmap, weighted):
    graph = bibliography(weighted=weighted)
    path = save_store(graph, tmp_path / "s")
    assert_same(open_store(path, mmap=mmap, verify=True), graph)
    assert_same(load(path), graph)


def test_sparse_features_splits_of_edges_and_any_names_come_back(tmp_path):
    dense = torch.tensor([[0.0, 2, 0], [1, 0, 0], [0, 0, 0]])
    graph = Graph.from_relations(
        {("a/b", "x_y", "ü z"): [[0, 1, 2], [1, 1, 0]], ("ü z", "../up", "a/b"): [[0], [2]]},
        {"a/b": 3, "ü z": 2, "no edges": 0},
        x={"a/b": SparseFeatures.from_dense(dense)},
        y={"ü z": torch.tensor([[0.5, 1.5], [2.5, 3.5]])},
        edge_splits={("a/b", "x_y", "ü z"): {"train": torch.tensor([0, 2]), "test": torch.tensor([1])}},
        node_time={"ü z": torch.tensor([0.5, 1.5], dtype=torch.float64)},
    )
    path = save_store(graph, tmp_path / "s")
    assert_same(open_store(path, verify=True), graph)
    assert sorted(p.parent.name for p in tmp_path.rglob("*.npy")) == ["s"] * len(list(path.glob("*.npy")))


def test_what_is_read_from_a_store_samples_the_same_bits(tmp_path):
    from graphbraid.loader import NeighborLoader

    graph = bibliography(weighted=True)
    stored = open_store(save_store(graph, tmp_path / "s"))
    for one, other in zip(
        *(NeighborLoader(g, [3, 2], ("paper", "train"), batch_size=7, seed=3) for g in (graph, stored)),
        strict=True,
    ):
        for edge_type in graph.edge_types:
            assert torch.equal(one[edge_type].edge_index, other[edge_type].edge_index)
        assert torch.equal(one["paper"].x, other["paper"].x)


def test_the_arrays_are_plain_npy_files_named_by_number(tmp_path):
    graph = bibliography()
    path = save_store(graph, tmp_path / "s")
    np.testing.assert_array_equal(np.load(path / "node0_x.npy"), graph.nodes_of("paper").x.numpy())
    np.testing.assert_array_equal(np.load(path / "edge0_time.npy"), graph.edges_of(WRITES).time.numpy())
    np.testing.assert_array_equal(np.load(path / "edge1_attr.npy"), graph.edges_of(CITES).edge_attr.numpy())
    described = json.loads((path / "graph.json").read_text())
    assert described["version"] == 4
    assert [one["name"] for one in described["types"]["nodes"]] == ["paper", "author", "field"]


def test_a_store_of_one_type_has_no_entry_for_types(tmp_path):
    path = save_store(small_graph(), tmp_path / "s")
    described = json.loads((path / "graph.json").read_text())
    assert described["version"] == 4
    assert list(described) == [
        "format",
        "version",
        "name",
        "num_nodes",
        "num_edges",
        "num_features",
        "class_names",
        "arrays",
        "checksum",
    ]
    assert list(described["arrays"]) == [
        "indptr",
        "indices",
        "indices_sums",
        "weight",
        "edge_id",
        "y",
        "x",
        "x_sums",
        "split_train",
        "split_val",
        "split_test",
    ]


def test_names_are_kept_by_type(tmp_path):
    papers = NodeIds(np.array([f"p{i}" for i in range(PAPERS)], object))
    authors = NodeIds(np.arange(25) * 7)
    names = {
        "paper": StoreNames(ids=papers, class_names=("a", "b", "c", "d")),
        "author": StoreNames(ids=authors),
    }
    path = save_store(bibliography(), tmp_path / "s", names=names)
    assert_same(open_store(path), bibliography())
    kept = open_names(path)
    assert kept.ids is None
    assert kept.class_names is None
    assert kept.types["paper"].ids.values.tolist() == papers.values.tolist()
    assert kept.types["paper"].class_names == ("a", "b", "c", "d")
    assert kept.types["author"].ids.values.tolist() == authors.values.tolist()
    assert kept.types["field"] == StoreNames()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ids": NodeIds(np.arange(71))}, ConfigError, "are by node type: give names"),
        ({"class_names": ["a"]}, ConfigError, "are by node type: give names"),
        ({"names": {"pape": StoreNames()}}, DataError, "no node type 'pape'.*paper"),
        (
            {"names": {"paper": StoreNames(ids=NodeIds(np.arange(3)))}},
            DataError,
            r"'paper' must have .* \(40\)",
        ),
        ({"order": torch.arange(71)}, DataError, "renumbering takes graphs of one node type"),
        ({"feature_parts": [torch.zeros(71, 1)]}, DataError, "feature_parts takes graphs of one node type"),
    ],
)
def test_arguments_that_do_not_fit_types_are_refused(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        save_store(bibliography(), tmp_path / "s", **options)
    assert list(tmp_path.iterdir()) == []


def test_names_by_type_of_a_graph_without_types_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="the graph has no types"):
        save_store(small_graph(), tmp_path / "s", names={})


def in_types(change):
    return lambda path: edit_manifest(path, lambda m: change(m["types"]))


BROKEN = {
    "truncated": (lambda p: truncate(p, "node0_x.npy"), r"node0_x\.npy is truncated"),
    "missing": (lambda p: (p / "rows_indptr.npy").unlink(), r"rows_indptr\.npy of the store cannot be read"),
    "no rows": (
        lambda p: edit_manifest(p, lambda m: m["arrays"].pop("rows_indptr")),
        "describes no 'rows_indptr'",
    ),
    "no types": (lambda p: edit_manifest(p, lambda m: m.update(types={})), r"types\.nodes: Field required"),
    "fewer nodes": (in_types(lambda t: t["nodes"][2].update(num_nodes=5)), "does not hold a valid graph"),
    "far more nodes": (
        in_types(lambda t: t["nodes"][2].update(num_nodes=1 << 50)),
        "does not hold a valid graph: .* 71 nodes",
    ),
    "moved nodes": (
        in_types(lambda t: (t["nodes"][0].update(num_nodes=41), t["nodes"][1].update(num_nodes=24))),
        "does not hold a valid graph",
    ),
    "moved edges": (
        in_types(lambda t: (t["edges"][0].update(num_edges=149), t["edges"][1].update(num_edges=301))),
        "does not hold a valid graph",
    ),
    "a relation twice": (in_types(lambda t: t["edges"].append(t["edges"][0])), "stands there twice"),
    "an unknown end": (
        in_types(lambda t: t["edges"][0].update(source="autor")),
        "no node type 'autor'.*author",
    ),
    "other order": (in_types(lambda t: t["edges"].reverse()), "does not hold a valid graph"),
    "a number for a name": (
        in_types(lambda t: t["nodes"][0].update(name=3)),
        r"types\.nodes\.0\.name: Input",
    ),
    "edited": (
        lambda p: (p / "graph.json").write_text(
            (p / "graph.json").read_text().replace('"name": "author"', '"name": "writer"')
        ),
        r"graph\.json has changed since it was written",
    ),
    "newer": (lambda p: edit_manifest(p, lambda m: m.update(version=99)), "store version 99.*Upgrade"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_stores_say_what_is_wrong(tmp_path, case):
    path = save_store(bibliography(), tmp_path / "s")
    damage, message = BROKEN[case]
    damage(path)
    with pytest.raises(DataError, match=message):
        open_store(path)


def test_a_flipped_bit_in_any_array_is_found(tmp_path):
    names = {"paper": StoreNames(ids=NodeIds(np.arange(PAPERS)))}
    path = save_store(bibliography(weighted=True), tmp_path / "s", names=names)
    for file in sorted(path.glob("*.npy")):
        flip(path, file.name, -1)
        with pytest.raises(DataError, match=file.name):
            open_names(path) if "ids" in file.name else open_store(path, verify=True)
        flip(path, file.name, -1)
    assert_same(open_store(path, verify=True), bibliography(weighted=True))


def test_an_array_of_an_unknown_type_is_no_ids(tmp_path):
    names = {"field": StoreNames(ids=NodeIds(np.arange(6)))}
    path = save_store(bibliography(), tmp_path / "s", names=names)
    edit_manifest(path, lambda m: m["arrays"].update(node7_ids_int=m["arrays"].pop("node2_ids_int")))
    with pytest.raises(DataError, match="node7_ids_int is of a node type that does not exist"):
        open_names(path)


def test_rows_of_features_have_sums_of_their_blocks(tmp_path):
    path = save_store(bibliography(), tmp_path / "s")
    described = json.loads((path / "graph.json").read_text())["arrays"]
    assert {name for name in described if name.endswith("_sums")} == {
        "indices_sums",
        "node0_x_sums",
        "node1_x_sums",
    }
