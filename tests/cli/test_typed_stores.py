"""convert and info on graphs with types."""

import json

import pytest
import torch
from tests.datasets.test_store import assert_same
from tests.datasets.test_typed_tables import FILES
from tests.features.tables import flip_a_byte
from tests.graph.typed_cases import bibliography

from graphbraid import Graph, datasets


@pytest.fixture
def described(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "typed.yaml"


def test_convert_makes_a_store_of_described_tables(graphbraid, described, tmp_path):
    done = graphbraid("convert", described, tmp_path / "s", "--json")
    assert done.json["node_types"]["paper"] == {
        "num_nodes": 3,
        "num_features": 2,
        "features_dtype": "float32",
        "num_classes": 2,
        "task": "single-label",
        "splits": {"train": 1, "val": 1, "test": 1},
    }
    assert [one["num_edges"] for one in done.json["relations"]] == [3, 2, 3]
    stored = datasets.open_store(tmp_path / "s")
    assert_same(stored, datasets.load(described))
    assert stored.schema == datasets.load(described).schema
    assert stored.schema.class_names == {"paper": ("biology", "maths")}
    columns = {of: one.names for of, one in stored.schema.columns.items()}
    assert (columns["author"], columns[("paper", "cites", "paper")]) == (("h",), ("kind",))
    names = datasets.open_names(tmp_path / "s")
    assert names.types["author"].ids.values.tolist() == [30, -5, 7]
    assert names.types["paper"].class_names == ("biology", "maths")
    assert "name" in done.stderr  # the column that was left out


def test_predictions_of_described_tables_and_of_their_store_have_the_same_ids(
    graphbraid, described, tmp_path
):
    graphbraid("convert", described, tmp_path / "s")
    run, quick = (
        tmp_path / "r",
        ("--epochs", 1, "--layers", 1, "--hidden", 4, "--set", "threads=1", "--quiet"),
    )
    graphbraid("train", "--data", described, "--model", "rgcn", "--out", run, *quick)
    for data in (described, tmp_path / "s"):
        out = tmp_path / "p.csv"
        graphbraid("predict", "--run", run, "--data", data, "--out", out)
        rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
        assert [row[0] for row in rows] == ["p3", "p1", "p2"]
        assert {row[-1] for row in rows} <= {"maths", "biology"}


def test_convert_keeps_the_names_of_a_store_with_types(graphbraid, described, tmp_path):
    graphbraid("convert", described, tmp_path / "s")
    done = graphbraid("convert", tmp_path / "s", tmp_path / "again")
    assert "paper: 3 nodes, 2 features, 2 classes (single-label), times" in done.stderr
    assert "author writes paper: 3 edges, weights, times" in done.stderr
    assert datasets.open_names(tmp_path / "again").types["author"].ids.values.tolist() == [30, -5, 7]


def test_info_shows_each_type_and_relation(graphbraid, tmp_path):
    datasets.save_store(bibliography(), tmp_path / "s")
    done = graphbraid("info", tmp_path / "s", "--check")
    assert "71 nodes of 3 types, 630 edges of 4 relations" in done.stdout
    assert "paper: 40 nodes, 5 features, 4 classes (single-label), times, 20 train / 10 test" in done.stdout
    assert "paper cites paper: 300 edges, 2 edge features" in done.stdout
    assert "no problems found" in done.stdout
    facts = graphbraid("info", tmp_path / "s", "--json").json
    assert facts["node_types"]["author"]["num_features"] == 3
    assert facts["checked"] is False


def test_info_tells_a_graph_of_one_type(graphbraid, store):
    done = graphbraid("info", store, "--json")
    assert (done.json["num_nodes"], done.json["num_features"]) == (200, 8)


def test_info_checks_what_a_store_holds(graphbraid, tmp_path):
    path = datasets.save_store(bibliography(), tmp_path / "s")
    datasets.open_store(path, verify=True)
    flip_a_byte(path / "node0_x.npy", -1)
    done = graphbraid("info", path, "--check", "--json", code=3)
    assert "node0_x.npy has changed" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("key", ["num_nodes", "num_edges"])
@pytest.mark.parametrize("typed", [True, False])
def test_info_names_a_size_that_the_arrays_do_not_have(graphbraid, store, tmp_path, key, typed):
    path = datasets.save_store(bibliography(), tmp_path / "s") if typed else store
    manifest = json.loads((path / "graph.json").read_text())
    del manifest["checksum"]  # as a person does who changes the file
    (path / "graph.json").write_text(json.dumps(manifest | {key: 99_999_999_999}))
    assert "99999999999" in graphbraid("info", path, "--check", code=3).stderr


@pytest.mark.parametrize("remedy", [("--split", "0.6,0.2"), ("--split-seed", 0)])
def test_a_typed_graph_without_splits_gets_those_that_the_refusal_names(graphbraid, tmp_path, remedy):
    nodes = torch.arange(120)
    lists = {("a", "to", "b"): torch.stack([nodes, nodes])}
    graph = Graph.from_relations(lists, {"a": 120, "b": 120}, y={"b": nodes % 2})
    store = datasets.save_store(graph, tmp_path / "s")
    train = ("train", "--data", store, "--model", "rgcn", "--epochs", 1, "--out", tmp_path / "run")
    assert "--split 0.6,0.2 or --split-seed 0" in graphbraid(*train, code=3).stderr
    graphbraid(*train, *remedy)
