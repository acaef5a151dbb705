"""Archives of every kind: the store that `convert` makes holds and teaches what the file does."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from graphbraid import datasets
from graphbraid.errors import DataError
from graphbraid.graph import SparseFeatures
from graphbraid.graph.csc import Csc

NODES, EDGES = 60, 400
_draws = np.random.default_rng(0)
ENDS = _draws.integers(0, NODES, (2, EDGES)).astype(np.int32)
X = _draws.standard_normal((NODES, 6)).astype(np.float32)
Y = np.arange(NODES) % 3
IDS = {"train_idx": np.arange(0, 30), "val_idx": np.arange(30, 45), "test_idx": np.arange(45, 60)}
MASKS = {
    f"{name}_masks": np.arange(NODES)[None] % 3 == np.array([[at], [2 - at]])
    for at, name in enumerate(("train", "val", "test"))
}
BIPARTITE = {
    "edge_index": np.stack([ENDS[0] % 40, ENDS[1] % 20 + 40]),
    "edge_type": np.zeros(EDGES, np.int8),
    "edge_type_names": np.array(["paper--author"]),
    "node_type": np.repeat([0, 1], [40, 20]).astype(np.int8),
    "node_type_names": np.array(["paper", "author"]),
}


def sparse(x, prefix="x"):
    rows = SparseFeatures.from_dense(torch.from_numpy(x * (x > 0.5)))
    parts = {"data": rows.values, "indices": rows.indices, "indptr": rows.indptr}
    return {f"{prefix}_{key}": value.numpy() for key, value in parts.items()} | {f"{prefix}_shape": x.shape}


PLAIN = {"edge_index": ENDS, "num_nodes": NODES}
LABELLED = PLAIN | IDS | {"y": Y}
KINDS = {
    "dense": LABELLED | {"x": X},
    "sparse": LABELLED | sparse(X) | {"class_names": np.array(["red", "green", "blue"])},
    "several splits": LABELLED | MASKS | {"x": X},
    "several labels": PLAIN | IDS | {"x": X, "y": (X[:, :4] > 0).astype(np.float32)},
    "topology": PLAIN,
    "features of edges": LABELLED | {"x": X, "edge_attr": X[ENDS[0], :2], "edge_weight": X[ENDS[0], 0] ** 2},
    "node types": BIPARTITE
    | sparse(X[:40], "x_paper")
    | {"x_author": X[40:], "y": np.where(np.arange(NODES) < 40, Y, -1)}
    | {"train_idx": np.arange(30), "val_idx": np.arange(30, 38), "test_idx": np.arange(38, 40)},
    "times and features of edges": BIPARTITE
    | sparse(X[:40], "x_paper")
    | {"edge_attr": X[ENDS[0], 0], "edge_time": np.arange(EDGES)},
    "relations": PLAIN
    | {"edge_type": np.arange(EDGES) % 4, "num_edge_types": 4, "edge_split_ptr": [0, 300, 350, 400]},
    "times": PLAIN | {"edge_time": np.arange(EDGES)},
    "splits of edges": PLAIN | {"edge_split_ptr": [0, 300, 350, 400]},
}
LINKS = ("--task", "link", "--model", "embedding")
COMMANDS = {
    "sparse": ("--model", "gcn"),
    "several labels": ("--model", "sage"),
    "node types": ("--model", "rgcn", "--symmetrize"),
    "relations": (*LINKS, "--negatives", "shared"),
    "times": (*LINKS, "--temporal", "last"),
    "splits of edges": LINKS,
}
QUICK = ("--epochs", 2, "--batch-size", 64, "--hidden", 8, "--layers", 1, "--set", "threads=1", "--json")


def assert_same(a, b, place="graph"):
    """Compare all fields, and all fields of these, to the bit."""
    assert type(a) is type(b), place
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), place
        assert torch.equal(a, b), place
    elif isinstance(a, Mapping):
        assert list(a) == list(b), place
        for key in a:
            assert_same(a[key], b[key], f"{place}[{key!r}]")
    elif isinstance(a, Csc):
        for name in ("indptr", "indices", "num_src", "weight"):
            assert_same(getattr(a, name), getattr(b, name), f"{place}.{name}")
    elif dataclasses.is_dataclass(a):
        for one in dataclasses.fields(a):
            assert_same(getattr(a, one.name), getattr(b, one.name), f"{place}.{one.name}")
    else:
        assert a == b, place


def written(folder, kind):
    np.savez(folder / "g.npz", **KINDS[kind])
    return folder / "g.npz"


@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_archive_holds_what_the_file_does(graphbraid, tmp_path, kind):
    file = written(tmp_path, kind)
    graphbraid("convert", file, tmp_path / "s")
    graph = datasets.load(file)
    assert_same(datasets.load(tmp_path / "s"), graph)
    # Nothing that a graph holds of edges was left out on the way.
    held = [graph.edges_of(one) for one in graph.edge_types]
    arrays = KINDS[kind]
    assert ("edge_time" in arrays) == all(one.time is not None for one in held)
    assert ("edge_attr" in arrays) == all(one.edge_attr is not None for one in held)
    assert ("edge_split_ptr" in arrays) == all(len(one.splits) == 3 for one in held)
    assert ("class_names" in arrays) == bool(graph.schema.class_names)
    assert ("edge_type" not in arrays) or len(held) == len(np.unique(arrays["edge_type"]))


@pytest.mark.parametrize("kind", COMMANDS)
def test_training_on_the_store_has_the_losses_of_training_on_the_file(graphbraid, tmp_path, kind):
    file = written(tmp_path, kind)
    graphbraid("convert", file, tmp_path / "s")
    losses = []
    for data in (file, tmp_path / "s"):
        done = graphbraid(
            "train", "--data", data, "--out", tmp_path / f"of-{data.name}", *COMMANDS[kind], *QUICK
        )
        losses.append(
            [(row["train_loss"], row.get("val_loss")) for row in done.json["result"]["history"]]
            + [done.json["result"]["test"]]
        )
    assert losses[0] == losses[1]


def test_types_are_left_out_only_where_asked_for(graphbraid, tmp_path):
    file = written(tmp_path, "relations")
    done = graphbraid("convert", file, tmp_path / "s", "--without-types", "--order", "degree", "--json")
    assert done.json["num_edges"] == EDGES
    assert not datasets.open_store(tmp_path / "s").is_typed
    done = graphbraid("convert", file, tmp_path / "t", "--order", "degree", code=3)
    assert "--without-types" in done.stderr
    done = graphbraid("convert", tmp_path / "s", tmp_path / "t", "--without-types", code=2)
    assert "is for .npz files" in done.stderr
    for options in (("--delimiter", ";"), ("--no-header",), ("--skip-rows", 2)):
        done = graphbraid("convert", file, tmp_path / "t", "--without-types", *options, code=2)
        assert f"{options[0]} is for tables of text" in done.stderr


def test_features_of_no_type_in_a_file_of_several_are_refused(tmp_path):
    np.savez(tmp_path / "g.npz", **KINDS["node types"], x=X)
    with pytest.raises(DataError, match="an array of features needs the name of its type: x_paper, not x"):
        datasets.load(tmp_path / "g.npz")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "cora",
        "facebook_pages",
        "tolokers",
        "blogcatalog_multilabel",
        "email_enron",
        "het_acm",
        "het_dblp",
        "het_movielens_small",
        "kg_fb15k237",
        "tmp_collegemsg",
    ],
)
def test_real_archives_come_back_from_a_store(shared_graph, tmp_path, name):
    graph = datasets.load(shared_graph(name))
    datasets.save_store(graph, tmp_path / "s")
    assert_same(datasets.open_store(tmp_path / "s"), graph)
