"""Graphs with types on the command line: train and predict from end to end, convert and info."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.datasets.test_store import assert_same
from tests.datasets.test_typed_tables import FILES
from tests.features.tables import flip_a_byte
from tests.graph.typed_cases import bibliography as small_bibliography
from tests.train.typed_communities import AUTHORS, PAPERS, VENUES, bibliography

from graphbraid import Graph, datasets

QUICK = ("--model", "rgcn", "--hidden", 8, "--batch-size", 32, "--fanouts", "5,5", "--quiet", "--epochs", 5)


@pytest.fixture(scope="module")
def typed_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = bibliography()
    names = list(graph.node_types)
    first = np.cumsum([0, AUTHORS, PAPERS, VENUES])
    forwards = {one: p for one, p in graph.to_edge_indices().items() if not one[1].startswith("rev_")}
    shifted = [
        pairs.numpy() + np.array([[first[names.index(one[0])]], [first[names.index(one[2])]]])
        for one, pairs in forwards.items()
    ]
    papers = graph.nodes_of("paper")
    y = np.full(first[-1], -1)
    y[first[1] : first[2]] = papers.y
    path = tmp_path_factory.mktemp("typed") / "bibliography.npz"
    np.savez(
        path,
        edge_index=np.concatenate(shifted, 1),
        edge_type=np.repeat(np.arange(len(shifted)), [pairs.shape[1] for pairs in shifted]),
        node_type=np.repeat(np.arange(3), np.diff(first)),
        node_type_names=np.array(names),
        x_author=graph.nodes_of("author").x,
        x_paper=papers.x,
        y=y,
        **{f"{split}_idx": ids.numpy() + first[1] for split, ids in papers.splits.items()},
    )
    return path


@pytest.mark.slow
def test_a_file_with_types_trains_goes_on_and_predicts(graphbraid, typed_file, tmp_path):
    run = tmp_path / "run"
    learning = ("--lr", 0.02, "--set", "dropout=0.2")
    done = graphbraid(
        "train", "--data", typed_file, "--symmetrize", "--out", run, *QUICK, *learning, "--json"
    )
    kept = json.loads((run / "config.json").read_text())
    assert kept["info"]["settings"]["node_type"] == "paper"  # data to predict may have no labels
    assert done.json["result"]["test"]["accuracy"] > 0.5
    more = graphbraid("train", "--resume", "--out", run, "--epochs", 6, "--quiet", "--json")
    assert more.json["result"]["num_epochs"] == 6
    out = tmp_path / "papers.csv"
    done = graphbraid("predict", "--run", run, "--out", out, "--json")
    assert done.json["num_nodes"] == PAPERS
    rows = list(csv.DictReader(out.read_text().splitlines()))
    graph = datasets.load(typed_file)
    papers = graph.nodes_of("paper")
    test = papers.split("test").tolist()
    assert papers.y is not None
    right = [int(rows[node]["prediction"]) == int(papers.y[node]) for node in test]
    assert np.mean(right) == pytest.approx(more.json["result"]["test"]["accuracy"])
    done = graphbraid("predict", "--run", run, "--split", "val", "--sampled", "--out", out, "--json")
    assert done.json["num_nodes"] == papers.split("val").numel()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--model", "sage"), "--model sage does not go with .*a graph with types; choose one of rgcn"),
        (("--set", "model_options={num_nodes: 3}"), "model_options: num_nodes"),
        (("--set", "model_options={bases: 3}"), "model 'rgcn' has no option 'bases'"),
    ],
)
def test_wrong_options_are_named(graphbraid, typed_file, tmp_path, options, says):
    done = graphbraid("train", "--data", typed_file, "--out", tmp_path / "run", *QUICK, *options, code=None)
    assert done.exit_code != 0
    assert re.search(says, done.stderr.replace("\n", " ")), done.stderr


@pytest.mark.slow
def test_rgcn_trains_on_the_whole_graph(graphbraid, typed_file, tmp_path):
    run = tmp_path / "run"
    options = ("--model", "rgcn", "--mode", "full", "--symmetrize", "--epochs", 20, "--json", "--quiet")
    done = graphbraid("train", "--data", typed_file, "--out", run, *options)
    assert done.json["result"]["num_epochs"] == 20
    done = graphbraid("predict", "--run", run, "--out", tmp_path / "papers.csv", "--json")
    assert done.json["num_nodes"] == PAPERS


def test_a_model_of_types_needs_them_and_estimates_do_not_take_them(graphbraid, typed_file, tmp_path):
    done = graphbraid(
        "train", "--out", tmp_path / "run", "--set", "data_options={cache: false}", *QUICK, code=2
    )
    assert "a graph without types; choose one of gcn" in done.stderr.replace("\n", " ")
    done = graphbraid("estimate", "--data", typed_file, "--model", "rgcn", code=None)
    assert "graphbraid estimate takes graphs of one node type" in done.stderr.replace("\n", " ")


def test_reverse_relations_are_added_on_loading(typed_file):
    stored, both = (datasets.load(typed_file, symmetrize=both) for both in (False, True))
    assert len(both.edge_types) == 2 * len(stored.edge_types)
    assert both.num_edges == 2 * stored.num_edges
    source, name, destination = stored.edge_types[0]
    back = both.to_edge_indices()[destination, f"rev_{name}", source]
    assert torch.equal(back.flip(0), stored.to_edge_indices()[source, name, destination])


@pytest.mark.slow
def test_predictions_of_a_store_have_the_type_s_own_ids_and_classes(graphbraid, tmp_path):
    graph = bibliography()
    ids = np.array([f"paper {number}" for number in range(PAPERS)], dtype=object)
    names = {
        "paper": datasets.StoreNames(ids=datasets.NodeIds(ids), class_names=("art", "law", "war")),
        "venue": datasets.StoreNames(ids=datasets.NodeIds(np.arange(VENUES) + 7)),
    }
    datasets.save_store(graph, tmp_path / "store", names=names)
    run, out, chosen = tmp_path / "run", tmp_path / "papers.csv", tmp_path / "ids.txt"
    graphbraid("train", "--data", tmp_path / "store", "--out", run, *QUICK)
    chosen.write_text("paper 12\npaper 3\n")
    graphbraid("predict", "--run", run, "--nodes", chosen, "--out", out)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["node"] for row in rows] == ["paper 12", "paper 3"]
    assert all(row["class"] == ("art", "law", "war")[int(row["prediction"])] for row in rows)


# ---- convert and info


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
    datasets.save_store(small_bibliography(), tmp_path / "s")
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
    path = datasets.save_store(small_bibliography(), tmp_path / "s")
    datasets.open_store(path, verify=True)
    flip_a_byte(path / "node0_x.npy", -1)
    done = graphbraid("info", path, "--check", "--json", code=3)
    assert "node0_x.npy has changed" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("key", ["num_nodes", "num_edges"])
@pytest.mark.parametrize("typed", [True, False])
def test_info_names_a_size_that_the_arrays_do_not_have(graphbraid, store, tmp_path, key, typed):
    path = datasets.save_store(small_bibliography(), tmp_path / "s") if typed else store
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
